// Head counts that the ranks do not divide: AG+AR serves them, merges that scatter heads refuse them when made.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// 5 heads on each of two TP ranks, shared by groups of 4 or 3.
deployment undivided(std::int64_t pcp, std::int64_t dcp) {
    deployment d;
    d.sizes = {2, pcp, dcp, 1, 1, 1};
    d.q_heads = 10;
    d.kv_heads = dcp > pcp ? 1 : 2;
    d.interleave = 3;
    d.requests = {{131, 2}, {30}, {1}};
    return d;
}

std::string refusal_of(deployment d, merge_kind merge, output_placement placement) {
    d.merge = merge;
    d.placement = placement;
    const planted_data data = plant(d);
    try {
        run(d, data);
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "none";
}

} // namespace

TEST_CASE("AG+AR serves any number of heads") {
    for (const auto& [pcp, dcp] : {std::array{4, 4}, std::array{2, 4}, std::array{3, 3}}) {
        for (const output_placement placement : {output_placement::own_heads, output_placement::all_heads}) {
            for (const bool replicated_q : {false, true}) {
                for (const bool sinks : {false, true}) {
                    deployment d = undivided(pcp, dcp);
                    d.merge = merge_kind::ag_ar;
                    d.placement = placement;
                    d.replicated_q = replicated_q;
                    d.sinks = sinks;
                    check_exact(d);
                }
            }
        }
    }
}

TEST_CASE("merges and placements that scatter heads refuse what does not divide") {
    const deployment d = undivided(4, 4);
    for (const output_placement placement :
         {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
        CHECK(refusal_of(d, merge_kind::a2a, placement) == "scatter_heads");
        CHECK(refusal_of(d, merge_kind::ag_rs, placement) == "scatter_heads");
    }
    CHECK(refusal_of(d, merge_kind::ag_ar, output_placement::scattered) == "scatter_heads");
    CHECK(refusal_of(d, merge_kind::ag_ar, output_placement::own_heads) == "none");
    CHECK(refusal_of(undivided(1, 1), merge_kind::a2a, output_placement::scattered) == "none");
}
