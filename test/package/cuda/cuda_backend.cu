// Every kernel of the library, for a decoder and a prefiller of GQA and of MLA, and the operations that a merge over
// several ranks would call.
#include <ctxpar/cuda.cuh>

#include "alone.hpp"

using namespace ctxpar;

template <class Attention>
using chosen = policy<Attention, interleave<16>, merge::dynamic>;
template <class Attention>
using chosen_decoder = decoder<chosen<Attention>, cuda_backend, alone>;
template <class Attention>
using chosen_prefiller = prefiller<chosen<Attention>, cuda_backend, alone>;

using narrow_gqa = gqa<bf16, 128, 128, fp8_e4m3>;
using wide_mla = mla<bf16, 512, 64>;
template class ctxpar::decoder<chosen<narrow_gqa>, cuda_backend, alone>;
template class ctxpar::decoder<chosen<wide_mla>, cuda_backend, alone>;
template class ctxpar::prefiller<chosen<narrow_gqa>, cuda_backend, alone>;

template <class Attention>
void decode(chosen_decoder<Attention>& used, const decode_step& step, const head_view<const bf16>& q,
            const kv_view<const typename Attention::kv_element>& cache, const head_view<bf16>& out) {
    used.decode(step, q, cache, out, layer_options<>{}, nullptr);
}
template void decode<narrow_gqa>(chosen_decoder<narrow_gqa>&, const decode_step&, const head_view<const bf16>&,
                                 const kv_view<const fp8_e4m3>&, const head_view<bf16>&);
template void decode<wide_mla>(chosen_decoder<wide_mla>&, const decode_step&, const head_view<const bf16>&,
                               const kv_view<const bf16>&, const head_view<bf16>&);

void attend(chosen_prefiller<narrow_gqa>& used, const prefill_step& step, const head_view<const bf16>& q,
            const kv_view<const fp8_e4m3>& cache, const head_view<bf16>& out) {
    used.attend(step, q, cache, out, layer_options<>{}, nullptr);
    used.restore(step, head_view<const bf16>(out), out, nullptr);
}
