#include "engine_cuda.cuh"
#include "engine_processes.hpp"

std::unique_ptr<demo::process_engine> demo::make_cuda_gqa_process_engine(const problem& all, const kv_data& data) {
    using engine = cuda_engine<ctxpar::gqa<ctxpar::bf16, 128>, ctxpar::nccl_communicator, ctxpar::mpi_communicator>;
    return std::make_unique<engine>(all, data);
}
