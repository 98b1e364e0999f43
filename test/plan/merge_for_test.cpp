// The merge that the cost model chooses for a decoder.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include <ctxpar/attention/mla.hpp>
#include <ctxpar/plan/merge_for.hpp>

#include "refusal.hpp"

using namespace ctxpar;
using ctxpar_test::refusal_of;
using ctxpar_test::says;

namespace {

using latent = policy<mla<bf16, 512, 64>, interleave<16>, merge::dynamic, partial::output>;

// Calls cost alike. A reduction in the network is fast once there is something to send; an all_to_all is not.
machine_costs machine() {
    machine_costs costs;
    costs.collectives = {{collective_op::all_gather, 8, 12, 100'000},
                         {collective_op::all_to_all, 8, 12, 20'000},
                         {collective_op::reduce_scatter, 8, 12, 100'000},
                         {collective_op::all_reduce, 8, 12, 100'000}};
    costs.read_bytes_per_us = 4'000'000;
    costs.flops_per_us = 600'000'000;
    costs.merge_bytes_per_us = 2'000'000;
    costs.merge_us = 2;
    return costs;
}

decode_shape eight_ranks() {
    decode_shape shape;
    shape.sizes = {.tp = 8, .dcp = 8};
    shape.q_heads = 128;
    shape.max_rows = 256;
    shape.longest = 1 << 20;
    return shape;
}

} // namespace

TEST_CASE("few rows are merged by few calls, many by what sends them fastest") {
    decode_shape shape = eight_ranks();
    CHECK(merge_for(machine(), latent{}, shape, 1) == merge_kind::a2a);
    CHECK(merge_for(machine(), latent{}, shape, 256) == merge_kind::ag_rs);
    CHECK(merge_for(machine(), latent{}, shape, 0) == merge_kind::a2a);
    // Once the one is better it stays so.
    bool changed = false;
    for (std::int64_t rows = 1; rows <= 256; ++rows) {
        const bool reduces = merge_for(machine(), latent{}, shape, rows) == merge_kind::ag_rs;
        CHECK((reduces || !changed));
        changed = reduces;
    }
}

TEST_CASE("the merge that a policy already has does not matter, what its partials weigh does") {
    latent other;
    other.merging.kind = merge_kind::ag_ar;
    for (const std::int64_t rows : {1, 16, 64, 256})
        CHECK(merge_for(machine(), latent{}, eight_ranks(), rows) == merge_for(machine(), other, eight_ranks(), rows));
    using wide = policy<mla<bf16, 512, 64>, interleave<16>, merge::dynamic>; // fp32 partials
    std::int64_t narrow_at = 0, wide_at = 0;
    for (std::int64_t rows = 256; rows >= 1; --rows) {
        if (merge_for(machine(), latent{}, eight_ranks(), rows) == merge_kind::ag_rs) narrow_at = rows;
        if (merge_for(machine(), wide{}, eight_ranks(), rows) == merge_kind::ag_rs) wide_at = rows;
    }
    CHECK(wide_at < narrow_at);
    CHECK(wide_at > 1);
}

TEST_CASE("a merge is chosen among those that serve the heads and the placement") {
    decode_shape shape = eight_ranks();
    shape.placement = output_placement::partial_sums;
    for (const std::int64_t rows : {1, 256}) CHECK(merge_for(machine(), latent{}, shape, rows) == merge_kind::deferred);
    shape.placement = output_placement::own_heads;
    shape.sizes = {.tp = 1, .pcp = 8, .dcp = 8};
    shape.q_heads = 12; // over 8 ranks
    CHECK(merge_for(machine(), latent{}, shape, 1) == merge_kind::ag_ar);
    shape.placement = output_placement::scattered;
    CHECK(says(refusal_of([&] { merge_for(machine(), latent{}, shape, 1); }), "scatter_heads", {"12", "8 ranks"}));
}

TEST_CASE("packing for attention that writes dense partials is counted") {
    machine_costs costs = machine();
    costs.merge_us = 0;
    costs.merge_bytes_per_us = 2'000; // so slow that bytes of arithmetic decide
    costs.collectives[1].bytes_per_us = 100'000;
    const decode_shape shape = eight_ranks();
    std::int64_t differ = 0;
    for (std::int64_t rows = 1; rows <= 256; ++rows)
        differ += merge_for(costs, latent{}, shape, rows) != merge_for(costs, latent{}, shape, rows, true) ? 1 : 0;
    CHECK(differ > 0);
}

TEST_CASE("costs in another order choose the same") {
    machine_costs turned = machine();
    std::reverse(turned.collectives.begin(), turned.collectives.end());
    for (std::int64_t rows = 0; rows <= 256; ++rows)
        CHECK(merge_for(machine(), latent{}, eight_ranks(), rows) == merge_for(turned, latent{}, eight_ranks(), rows));
}

TEST_CASE("what is no step, no shape and no cost is refused") {
    const auto refused = [](auto change, std::int64_t rows) {
        decode_shape shape = eight_ranks();
        change(shape);
        return refusal_of([&] { merge_for(machine(), latent{}, shape, rows); });
    };
    const auto nothing = [](decode_shape&) {};
    CHECK(refused(nothing, 256) == "none");
    CHECK(says(refused(nothing, 257), "query_rows", {"257", "0 to 256"}));
    CHECK(says(refused(nothing, -1), "query_rows", {"-1"}));
    CHECK(says(refused([](decode_shape& s) { s.longest = 0; }, 1), "size", {"longest"}));
    CHECK(says(refused([](decode_shape& s) { s.q_heads = 0; }, 1), "q_heads", {"0"}));
    CHECK(refused([](decode_shape& s) { s.sizes.dcp = 3; }, 1) != "none");
    CHECK(says(refusal_of([] { merge_for(machine_costs{}, latent{}, eight_ranks(), 1); }), "costs", {"read_bytes"}));
}
