#include "layers_gpus.cuh"

#include <ctxpar/backend/cuda/operations.cuh>

#include "device_rank.cuh"
#include "layers_of.hpp"

namespace demo {

template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::nccl_communicator* kv,
                                         cudaStream_t stream) {
    return make_layers_of<device_kind<ctxpar::nccl_communicator>>(model, all, merge, pool, kv, stream);
}

template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::local_cuda_communicator* kv,
                                         cudaStream_t stream) {
    return make_layers_of<device_kind<ctxpar::local_cuda_communicator>>(model, all, merge, pool, kv, stream);
}

} // namespace demo
