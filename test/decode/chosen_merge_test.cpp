// Decoders whose merge the cost model chose, in two regimes and for every placement, are exact.
#include "runs.hpp"

#include <set>

#include <ctxpar/plan/merge_for.hpp>

using namespace ctxpar_test;

namespace {

// Calls dear and bytes cheap, or the other way round, where what a reduction sends is cheapest.
machine_costs machine(double call_us, double exchange_bytes_per_us) {
    machine_costs costs;
    costs.collectives = {{collective_op::all_gather, 2, call_us, 1e6},
                         {collective_op::all_to_all, 2, call_us, exchange_bytes_per_us},
                         {collective_op::reduce_scatter, 2, call_us, 1e6}};
    costs.read_bytes_per_us = costs.flops_per_us = costs.merge_bytes_per_us = 1e6;
    return costs;
}

} // namespace

TEST_CASE("a decoder with the merge that the cost model chose is exact, and regimes choose different ones") {
    using policy_type = policy<gqa<float, dynamic, dynamic>, interleave<>, merge::dynamic>;
    std::set<merge_kind> chosen;
    for (const auto& [tp, pcp, dcp] : {std::array{2, 1, 2}, std::array{1, 4, 4}, std::array{2, 2, 4}}) {
        for (const output_placement placement : {output_placement::own_heads, output_placement::scattered,
                                                 output_placement::all_heads, output_placement::partial_sums}) {
            for (const auto& costs : {machine(50, 1e6), machine(0.01, 10)}) {
                for (const std::int64_t heads : {16, 10}) {
                    deployment d;
                    d.element = d.kv_element = scalar_type::f32;
                    d.sizes = {tp, pcp, dcp, 1, 1, 1};
                    d.q_heads = heads;
                    d.placement = placement;
                    d.interleave = 2;
                    d.requests = {{65, 2}, {3, 1}};
                    if (heads == 10 && placement == output_placement::scattered && dcp > 2) continue;
                    d.merge = merge_for(costs, policy_for<policy_type>(d), shape_of(d, -1, -1), d.rows());
                    chosen.insert(d.merge);
                    check_exact(d);
                }
            }
        }
    }
    CHECK(chosen.size() == 4);
}
