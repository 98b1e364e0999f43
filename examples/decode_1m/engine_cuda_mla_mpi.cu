#include "engine_cuda.cuh"
#include "engine_processes.hpp"

std::unique_ptr<demo::process_engine> demo::make_cuda_mla_process_engine(const problem& all, const kv_data& data) {
    using engine = cuda_engine<ctxpar::mla<ctxpar::bf16, 512, 64>, ctxpar::nccl_communicator, ctxpar::mpi_communicator>;
    return std::make_unique<engine>(all, data);
}
