// A decoder of grouped-query attention, instantiated as an engine's one CUDA file does it.
#include "headers.cuh"

using policy = ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 128>, ctxpar::interleave<16>, ctxpar::merge::a2a>;
using decoder = ctxpar::decoder<policy, ctxpar::cuda_backend, bench::alone>;

template class ctxpar::decoder<policy, ctxpar::cuda_backend, bench::alone>;
template void decoder::decode(const ctxpar::decode_step&, const ctxpar::head_view<const ctxpar::bf16>&,
                              const ctxpar::kv_view<const ctxpar::bf16>&, const ctxpar::head_view<ctxpar::bf16>&,
                              const ctxpar::layer_options<>&, cudaStream_t);
