// The one CUDA file of the engine.
#include <ctxpar/cuda.cuh>

#include "engine.hpp"

template class ctxpar::decoder<policy, ctxpar::cuda_backend, alone>;
template void decoder::decode(const ctxpar::decode_step&, const ctxpar::head_view<const ctxpar::bf16>&,
                              const ctxpar::kv_view<const ctxpar::bf16>&, const ctxpar::head_view<ctxpar::bf16>&,
                              const options&, cudaStream_t);
