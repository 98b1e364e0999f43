#include "device_rank.cuh"
#include "process_world.hpp"
#include "runs.hpp"

std::vector<demo::record> demo::run_cuda_configurations(process_world& ranks, const problem& all,
                                                        const prompt_data& data,
                                                        const std::vector<configuration>& runs) {
    return run_configurations<device_ranks<ctxpar::nccl_communicator>>(ranks, all, data, runs);
}
