#include "engine_cuda.hpp"

#include "device_rank.cuh"
#include "runs.hpp"

namespace demo {

void check_cuda(const problem& all) {
    ctxpar::require(device_count() > 0, "backend", "there is no GPU here; --backend cpu needs none");
    ctxpar::require(all.head_dim == 128, "backend", "on GPUs this example has heads of 128 elements, not ",
                    all.head_dim);
    ctxpar::require(all.injected == fault::none, "backend", "faults are injected with --backend cpu");
}

std::vector<record> run_cuda_configurations(threads& ranks, const problem& all, const prompt_data& data,
                                            const std::vector<configuration>& runs) {
    if (all.through_nccl) return run_configurations<device_ranks<ctxpar::nccl_communicator>>(ranks, all, data, runs);
    return run_configurations<device_ranks<ctxpar::local_cuda_communicator>>(ranks, all, data, runs);
}

} // namespace demo
