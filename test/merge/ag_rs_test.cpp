// AG+RS keeps the merge law, over ranks that read each other's memory and over ranks that only move bytes.
#include <doctest/doctest.h>

#include <ctxpar/merge/ag_rs.hpp>

#include "merge_laws.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

TEST_CASE_TEMPLATE("AG+RS gives every example of the merge law on every rank", Tag, natural_lse, binary_lse) {
    check_examples<Tag::base>(merge::ag_rs{});
}

TEST_CASE("AG+RS of random parts is the merge in double, and moving bytes gives the bits of reading peers") {
    check_random_merges<float, float, lse_base::natural, lse_base::natural>(merge::ag_rs{});
    check_random_merges<float, bf16, lse_base::binary, lse_base::natural>(merge::ag_rs{});
    check_random_merges<bf16, float, lse_base::natural, lse_base::binary>(merge::ag_rs{});
    check_random_merges<f16, f16, lse_base::binary, lse_base::binary>(merge::ag_rs{});
}

TEST_CASE("AG+RS serves head widths of 80 and 192 with 5 rows and 3 heads") {
    for (const std::int64_t width : {80, 192}) {
        const plain::partials<float> from(3, 5, 3, width, 6);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::ag_rs{}, from, {});
    }
}

TEST_CASE("AG+RS keeps large LSEs") {
    for (const float offset : {1e4F, -1e4F}) {
        const plain::partials<float> from(4, 5, 4, 7, 7, offset);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::ag_rs{}, from, {.sinks = true});
    }
}

TEST_CASE_TEMPLATE("AG+RS keeps the bits of a part that is alone", P, float, bf16) {
    check_lone_parts<P>(merge::ag_rs{});
}

TEST_CASE("AG+RS merges parts in any order of ranks") {
    check_any_order(merge::ag_rs{});
}

TEST_CASE("AG+RS merges 64 shards") {
    check_64_shards(merge::ag_rs{});
}

TEST_CASE("AG+RS states a gather of LSEs and a reduce_scatter of outputs") {
    collective_schedule list;
    exchange_shape shape;
    shape.ranks = 4;
    shape.rows = 8;
    shape.gathered_heads = 32;
    shape.value_width = 128;
    shape.partial_type = scalar_type::bf16;
    merge::ag_rs::schedule(shape, list);
    CHECK(list.count == 2);
    CHECK(list.calls[0].op == collective_op::all_gather);
    CHECK(list.calls[0].type == scalar_type::f32);
    CHECK(list.calls[0].bytes_sent() == 3072);
    CHECK(list.calls[1].op == collective_op::reduce_scatter);
    CHECK(list.calls[1].type == scalar_type::bf16);
    CHECK(list.calls[1].bytes_sent() == 49152);
    CHECK(merge::ag_rs::scatters_heads());
    CHECK(merge::ag_rs::knows_all_lse());
}
