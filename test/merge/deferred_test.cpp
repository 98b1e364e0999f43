// The deferred merge: shares that add up to the merge of the definition, over ranks that read each other's memory and
// over ranks that only move bytes, for one collective.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/ag_ar.hpp>
#include <ctxpar/merge/deferred.hpp>
#include <ctxpar/merge/exchange.hpp>

#include <support/refusal.hpp>

#include "merge_laws.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

TEST_CASE_TEMPLATE("deferred shares add up to every example of the merge law", Tag, natural_lse, binary_lse) {
    check_examples<Tag::base>(merge::deferred{});
}

TEST_CASE("deferred shares of random parts add up to the merge in double, and moving bytes gives the same bits") {
    check_random_merges<float, float, lse_base::natural, lse_base::natural>(merge::deferred{});
    check_random_merges<float, bf16, lse_base::binary, lse_base::natural>(merge::deferred{});
    check_random_merges<bf16, float, lse_base::natural, lse_base::binary>(merge::deferred{});
    check_random_merges<f16, f16, lse_base::binary, lse_base::binary>(merge::deferred{});
}

TEST_CASE("deferred shares keep large LSEs") {
    for (const float offset : {1e4F, -1e4F}) {
        const plain::partials<float> from(4, 5, 4, 7, 7, offset);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::deferred{}, from, {.sinks = true});
    }
}

TEST_CASE_TEMPLATE("the share of a part that is alone has its bits, all others are 0", P, float, bf16) {
    check_lone_parts<P>(merge::deferred{});
}

TEST_CASE("deferred shares are of parts in any order of ranks, and of 64 shards") {
    check_any_order(merge::deferred{});
    check_64_shards(merge::deferred{});
}

TEST_CASE("each rank's share is its partial with its own weight, and of empty shards and rows exactly 0") {
    plain::partials<float> from(4, 6, 5, 3, 31);
    for (std::size_t i = 0; i < 4; ++i) from.live[i * 6 + 2] = from.live[i * 6 + 5] = 0; // nowhere any keys
    from.live[3] = 0;                                                                    // row 3 on rank 0
    for (const bool sinks : {false, true}) {
        const auto shares = run_merge<float, lse_base::natural, lse_base::natural>(merge::deferred{}, from,
                                                                                   {.sinks = sinks, .shares = true});
        for (std::size_t rank = 0; rank < 4; ++rank)
            for (std::int64_t row = 0; row < 6; ++row)
                for (std::int64_t head = 0; head < 5; ++head) {
                    const std::size_t at = from.at(row, head);
                    const plain::merged whole = from.expect(row, head, plain::base::e, sinks);
                    const bool empty = from.live[rank * 6 + static_cast<std::size_t>(row)] == 0 ||
                                       from.lse[rank][at] == -plain::infinity;
                    const double weight = empty ? 0 : std::exp(static_cast<double>(from.lse[rank][at]) - whole.lse);
                    for (std::size_t d = 0; d < 3; ++d) {
                        const float share = shares[rank].out[at * 3 + d];
                        if (empty) CHECK((share == 0 && !std::signbit(share)));
                        if (!empty) {
                            const double value = weight * static_cast<double>(from.out[rank][at * 3 + d]);
                            CHECK(plain::near(share, value, 2e-6 * std::fabs(value)));
                        }
                    }
                    CHECK(plain::near_lse(shares[rank].lses[at].value, whole.lse));
                }
    }
}

TEST_CASE("deferred states one gather of LSEs, for any number of heads and width") {
    exchange_shape shape;
    shape.ranks = shape.distinct_tp = 8;
    shape.rows = 32;
    shape.gathered_heads = 64;
    shape.query_width = shape.value_width = 128;
    shape.replicated_q = true;
    shape.merged_lse = true; // known on all ranks anyway
    shape.placement = output_placement::partial_sums;
    const collective_schedule list = layer_schedule(merge::deferred{}, shape);
    REQUIRE(list.count == 1);
    CHECK(list.calls[0].op == collective_op::all_gather);
    CHECK(list.calls[0].group == group_role::kv);
    CHECK(list.calls[0].type == scalar_type::f32);
    CHECK(exchange(merge::deferred{}, shape).total == 7 * 32 * 64 * 4);
    shape.gathered_heads = 61;
    shape.value_width = 5;
    CHECK(exchange(merge::deferred{}, shape).gather_lse == 7 * 32 * 61 * 4);
    CHECK(exchange(merge::deferred{}, shape).outputs == 0);
    shape.gathered_heads = 64;
    shape.replicated_q = false; // with the gather of queries: two calls
    const exchange_bytes both = exchange(merge::deferred{}, shape);
    CHECK(both.collectives == 2);
    CHECK(both.gather_q == 7 * 32 * 8 * 128 * 2);
    CHECK(both.total == both.gather_q + both.gather_lse);
    CHECK_FALSE(merge::deferred::scatters_heads());
    CHECK(merge::deferred::knows_all_lse());
}

TEST_CASE("deferred carves one partial and the LSEs of all ranks") {
    const plain::partials<bf16> from(4, 5, 6, 7, 1);
    const auto aligned = [](std::size_t bytes) {
        return (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
    };
    CHECK(carved_bytes<bf16, lse_base::natural>(merge::deferred{}, shape_of(from)) ==
          aligned(5 * 6 * 7 * 2) + aligned(4 * 5 * 6 * 4));
}

TEST_CASE("partial sums go with the deferred merge, and with no other") {
    CHECK(leaves_partial_sums(merge::deferred{}));
    CHECK_FALSE(leaves_partial_sums(merge::a2a{}));
    const auto refused = [](const auto& merge, output_placement placement) {
        return refusal_of([&] { detail::check_placement(merge, placement); });
    };
    CHECK(refused(merge::deferred{}, output_placement::partial_sums) == "none");
    for (const auto placement :
         {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
        CHECK(refused(merge::ag_ar{}, placement) == "none");
        CHECK(says(refused(merge::deferred{}, placement), "placement",
                   {"merge deferred leaves partial sums", name_of(placement), "deferred with partial_sums"}));
    }
    CHECK(says(refused(merge::ag_ar{}, output_placement::partial_sums), "placement",
               {"merge ag_ar leaves merged heads", "partial_sums", "own_heads, scattered or all_heads"}));
}
