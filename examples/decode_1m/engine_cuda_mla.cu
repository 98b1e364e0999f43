#include "engine_cuda.cuh"

std::unique_ptr<demo::engine> demo::make_cuda_mla_engine(const problem& all, const kv_data& data) {
    return make_cuda_engine_of<ctxpar::mla<ctxpar::bf16, 512, 64>>(all, data);
}
