// Sinks, soft caps, merged LSEs, merges and narrow partials of prefill rows, on every path.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

prefill_deployment over(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 2;
    d.block_size = 4;
    d.context_rows = 4 * dcp * d.interleave;
    d.serve({prefills(0, 19), prefills(37, 9), decodes(63, 2), prefills(50, 1), prefills(21, 0), prefills(8, 26)});
    return d;
}

const std::array<std::array<std::int64_t, 3>, 9> topologies{
    {{1, 2, 2}, {2, 2, 2}, {2, 2, 4}, {1, 4, 4}, {1, 4, 2}, {2, 1, 2}, {4, 1, 2}, {1, 3, 1}, {1, 1, 1}}};

// Every topology and merge, decode rows on both paths.
template <class Change>
void each_merge(const Change& change) {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            prefill_deployment d = over(tp, pcp, dcp);
            d.merge = merge;
            d.decode_rows = merge == merge_kind::a2a ? prefill_path::gather_kv : prefill_path::gather_q;
            d.split = merge == merge_kind::ag_ar ? zigzag_split::padded : zigzag_split::balanced;
            d.strided_views = merge == merge_kind::ag_rs;
            change(d);
            each_path(d);
        }
    }
}

} // namespace

TEST_CASE("all merges give the unsharded attention of prefill rows") {
    each_merge([](prefill_deployment&) {});
}

TEST_CASE("the merged LSE need not be wanted") {
    each_merge([](prefill_deployment& d) { d.merged_lse = false; });
}

TEST_CASE("the merged LSE may be wanted in base 2") {
    each_merge([](prefill_deployment& d) { d.lse = lse_base::binary; });
}

TEST_CASE("sinks join the denominators of prefill rows once") {
    each_merge([](prefill_deployment& d) { d.sinks = true; });
    each_merge([](prefill_deployment& d) {
        d.sinks = true;
        d.lse = lse_base::binary;
        d.mask.window = 12;
    });
}

TEST_CASE("a soft cap acts on every score of a prefill row") {
    each_merge([](prefill_deployment& d) {
        d.soft_cap = 8.0F;
        d.softmax_scale = 0.2F;
        d.sinks = d.merge == merge_kind::a2a;
    });
}

TEST_CASE("outputs of bf16 are rounded once") {
    each_merge([](prefill_deployment& d) { d.output = scalar_type::bf16; });
}

TEST_CASE("partials that cross ranks in bf16 are rounded as often as the merge sends them") {
    each_merge([](prefill_deployment& d) { d.partials = partial::output; });
    each_merge([](prefill_deployment& d) {
        d.partials = partial::output;
        d.output = scalar_type::bf16;
        d.sinks = d.merge == merge_kind::ag_rs;
    });
}

TEST_CASE("up-projected rows take sinks and soft caps too") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        prefill_deployment d = over(tp, pcp, dcp);
        d.is_mla = true;
        d.element = d.kv_element = scalar_type::f32;
        d.value_width = 24;
        d.key_width = 33;
        d.nope_width = 16;
        d.projected_value_width = 20;
        d.sinks = true;
        d.soft_cap = 10.0F;
        check_exact(d);
    }
}
