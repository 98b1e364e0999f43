// What a decoder asks of the CUDA backend, as one thing to instantiate:
//
//   template struct ctxpar::decode_operations<policy>;            in a CUDA file, with the headers of the policy
//   ctxpar::decoder<policy, cuda_backend, nccl_communicator> d;   in C++ files of any host compiler
//
// The CUDA file then compiles kernels and their launches, and nothing of decoders, topologies or communicators.
#pragma once

#include <type_traits>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/cuda/operations.cuh>

namespace ctxpar::inline v0_1 {

namespace merge {
struct a2a;
struct ag_ar;
struct ag_rs;
struct deferred;
} // namespace merge

// The operations of decoder<Policy, Backend, C> for any communicator C, where decode() writes Out and LSEs of LseBase.
// Explicit instantiation puts them, and all kernels that they launch, into the object file. Of a merge policy that is
// not the library's own, and of merge::dynamic, those of all merges. Maps of heads that take inputs of another type
// than the policy's partials need cuda.cuh and an instantiated decoder.
template <class Policy, class Out = typename Policy::element, lse_base LseBase = lse_base::natural,
          class Backend = cuda_backend>
struct decode_operations {
private:
    using attention = typename Policy::attention_type;
    using merging = typename Policy::merge_type;
    using element = typename attention::element;
    using kv_element = typename attention::kv_element;
    using part = typename Policy::partial_element;
    using stream = typename Backend::stream_type;
    static constexpr lse_base base = Backend::attend_lse_base;
    static constexpr bool is_ag_form = std::is_same_v<merging, merge::ag_ar> || std::is_same_v<merging, merge::ag_rs>;
    static constexpr bool is_deferred = std::is_same_v<merging, merge::deferred>;
    static constexpr bool exchanges = !is_ag_form && !is_deferred;
    static constexpr bool scales = !std::is_same_v<merging, merge::a2a>;
    static constexpr bool sums = scales && !is_deferred;

    // Where a function's address is taken it is defined, and what is defined is emitted: it says [[gnu::used]].
    template <class Call>
    using operation = Call Backend::*;
    template <class To>
    using attends =
        operation<void(const sized_attend_args<element, kv_element, To, base, fixed_query_width<attention>(),
                                               fixed_value_width<attention>()>&,
                       stream)>;
    template <class From, class To>
    using copies = operation<void(const head_view<const From>&, std::int64_t, const head_view<To>&, stream)>;
    template <class To>
    using adds =
        operation<void(const void* const*, std::int64_t, const head_view<const part>&, const head_view<To>&, stream)>;
    using merges =
        operation<void(const merge_parts<part, base>&, const head_view<Out>&, const head_view<lse<LseBase>>&, stream)>;
    using packs = operation<void(const head_view<const part>&, const head_view<const lse<base>>&,
                                 const head_view<part>&, stream)>;
    using weighs = operation<void(const merge_parts<part, base>&, std::int64_t, const head_view<const part>&,
                                  const head_view<part>&, const state_origin&, const head_view<lse<LseBase>>&, stream)>;

    template <class Operation>
    static void use(Operation) {}

public:
    // Is instantiated and never called.
    static void instantiate() {
        use<operation<void(const append_args<element, kv_element>&, stream)>>(&Backend::append);
        use<attends<part>>(&Backend::attend);
        use<attends<Out>>(&Backend::attend);           // of one rank alone
        use<merges>(&Backend::merge);                  // of A2A, and of one rank alone
        use<copies<element, element>>(&Backend::copy); // queries that are not dense
        use<copies<Out, Out>>(&Backend::copy);         // heads that are restored
        use<copies<lse<LseBase>, lse<LseBase>>>(&Backend::copy);
        if constexpr (exchanges) use<packs>(&Backend::pack);
        if constexpr (scales) {
            use<weighs>(&Backend::scale);
            use<copies<part, Out>>(&Backend::copy);
        }
        if constexpr (sums) {
            use<adds<Out>>(&Backend::sum_parts);
            use<adds<part>>(&Backend::sum_parts);
        }
    }
};

} // namespace ctxpar::inline v0_1
