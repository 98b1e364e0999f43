// What an engine's C++ files know of its CUDA decoder: the types, and that decoder.cu instantiates them; or, where they
// instantiate the decoder themselves, operations.cu what it calls.
#pragma once

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/ctxpar.hpp>

#include "alone.hpp"

using policy = ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 64>, ctxpar::interleave<16>, ctxpar::merge::a2a>;
using decoder = ctxpar::decoder<policy, ctxpar::cuda_backend, alone>;
using options = ctxpar::layer_options<>;

#ifndef HOLDS_DECODER
extern template class ctxpar::decoder<policy, ctxpar::cuda_backend, alone>;
extern template void decoder::decode(const ctxpar::decode_step&, const ctxpar::head_view<const ctxpar::bf16>&,
                                     const ctxpar::kv_view<const ctxpar::bf16>&, const ctxpar::head_view<ctxpar::bf16>&,
                                     const options&, cudaStream_t);
#endif
