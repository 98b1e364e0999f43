// Layers of ranks that compute on GPUs, each kind of attention compiled apart.
#pragma once

#include <memory>

#include <ctxpar/comm/local_cuda.hpp>
#include <ctxpar/comm/nccl.hpp>

#include "layers.hpp"

namespace demo {

// make_layers() of layers.hpp.
template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::nccl_communicator* kv,
                                         cudaStream_t stream);
template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::local_cuda_communicator* kv,
                                         cudaStream_t stream);

} // namespace demo
