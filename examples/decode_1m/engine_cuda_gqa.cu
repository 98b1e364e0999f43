#include "engine_cuda.cuh"

std::unique_ptr<demo::engine> demo::make_cuda_gqa_engine(const problem& all, const kv_data& data) {
    return make_cuda_engine_of<ctxpar::gqa<ctxpar::bf16, 128>>(all, data);
}
