// The policy of a decoder or prefiller: attention type, interleave, merge, and how partials cross ranks.
#pragma once

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/merge/merge.hpp>

namespace ctxpar::inline v0_1 {

// policy<gqa<bf16, 128>, interleave<16>, merge::a2a>, an empty object; with run-time parts it holds their values:
// policy<gqa<bf16, dynamic>, interleave<>, merge::dynamic>{gqa<bf16, dynamic>{128}, {16}, {merge_kind::a2a}}.
template <class Attention, class Interleave, class Merge, partial Partial = partial::fp32>
struct policy {
    static_assert(attention_policy<Attention>,
                  "ctxpar::policy: the first argument must be an attention policy, such as gqa<bf16, 128> or "
                  "mla<bf16, 512, 64>");
    static_assert(interleave_policy<Interleave>,
                  "ctxpar::policy: the second argument must be an interleave policy, such as interleave<16>");
    static_assert(merge_policy<Merge>, "ctxpar::policy: the third argument must be a merge policy, such as merge::a2a");

    using attention_type = Attention;
    using interleave_type = Interleave;
    using merge_type = Merge;
    using element = typename Attention::element;
    using partial_element = std::conditional_t<Partial == partial::fp32, float, element>;
    static constexpr partial partials = Partial;

    [[no_unique_address]] Attention attention{};
    [[no_unique_address]] Interleave interleaving{};
    [[no_unique_address]] Merge merging{};
};

} // namespace ctxpar::inline v0_1
