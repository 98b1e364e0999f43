// A decoder, and others that differ from it in one argument each: built with MORE=0, 1, 2 ... and compared by
// kernel_set.py, which lists the kernels of each.
#include <ctxpar/cuda.cuh>

#include "alone.hpp"

using namespace ctxpar;

// Another communicator of the same stream.
struct another : alone {};

template <class Attention, class Interleave, class Merge, partial Partial, class Communicator>
struct use {
    using type = decoder<policy<Attention, Interleave, Merge, Partial>, cuda_backend, Communicator>;
    template <class Out>
    static void decode(type& used, const decode_step& step, const head_view<const bf16>& q, const kv_view<bf16>& cache,
                       const head_view<Out>& out, const decode_batch& batch, const workspace& memory) {
        used.append(step, q, q, cache, nullptr);
        used.decode(used.plan(batch, memory, nullptr), q, kv_view<const bf16>(cache), out, layer_options<>{}, nullptr);
    }
};
template <class Attention, class Interleave, class Merge, class Communicator = alone, class Out = bf16,
          partial Partial = partial::fp32>
inline constexpr auto decode = &use<Attention, Interleave, Merge, Partial, Communicator>::template decode<Out>;

using attention = gqa<bf16, 128>;

auto first = decode<attention, interleave<16>, merge::dynamic>;
#if MORE == 1 // arguments that no kernel depends on
auto one_merge = decode<attention, interleave<16>, merge::a2a>;
auto another_merge = decode<attention, interleave<16>, merge::ag_rs>;
auto third_merge = decode<attention, interleave<16>, merge::ag_ar>;
auto another_communicator = decode<attention, interleave<16>, merge::dynamic, another>;
auto another_interleave = decode<attention, interleave<1>, merge::dynamic>;
auto interleave_at_run_time = decode<attention, interleave<>, merge::dynamic>;
#elif MORE == 2 // head sizes, where they are known when the kernels are compiled
auto another_size = decode<gqa<bf16, 64>, interleave<16>, merge::dynamic>;
auto size_at_run_time = decode<gqa<bf16, dynamic>, interleave<16>, merge::dynamic>;
auto latent = decode<mla<bf16, 512, 64>, interleave<16>, merge::dynamic>;
#elif MORE == 3 // element types
auto partials_as_output = decode<attention, interleave<16>, merge::dynamic, alone, bf16, partial::output>;
auto wide_output = decode<attention, interleave<16>, merge::dynamic, alone, float>;
#endif
