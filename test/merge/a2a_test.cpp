// A2A keeps the merge law, over ranks that read each other's memory and over ranks that only move bytes.
#include <doctest/doctest.h>

#include <ctxpar/merge/a2a.hpp>

#include "merge_laws.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

TEST_CASE_TEMPLATE("A2A gives every example of the merge law on every rank", Tag, natural_lse, binary_lse) {
    check_examples<Tag::base>(merge::a2a{});
}

TEST_CASE("A2A of random parts is the merge in double, and moving bytes gives the bits of reading peers") {
    check_random_merges<float, float, lse_base::natural, lse_base::natural>(merge::a2a{});
    check_random_merges<float, bf16, lse_base::binary, lse_base::natural>(merge::a2a{});
    check_random_merges<bf16, float, lse_base::natural, lse_base::binary>(merge::a2a{});
    check_random_merges<f16, f16, lse_base::binary, lse_base::binary>(merge::a2a{});
}

TEST_CASE("A2A serves head widths of 80 and 192 with 5 rows and 3 heads") {
    for (const std::int64_t width : {80, 192}) {
        const plain::partials<float> from(3, 5, 3, width, 6);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::a2a{}, from, {});
    }
}

TEST_CASE("A2A keeps large LSEs") {
    for (const float offset : {1e4F, -1e4F}) {
        const plain::partials<float> from(4, 5, 4, 7, 7, offset);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::a2a{}, from, {.sinks = true});
    }
}

TEST_CASE_TEMPLATE("A2A keeps the bits of a part that is alone", P, float, bf16) {
    check_lone_parts<P>(merge::a2a{});
}

TEST_CASE("A2A merges parts in any order of ranks") {
    check_any_order(merge::a2a{});
}

TEST_CASE("A2A merges 64 shards") {
    check_64_shards(merge::a2a{});
}

TEST_CASE("A message holds, for each rank in turn, the outputs of its heads with each LSE's bits behind them") {
    exchange_shape shape;
    shape.ranks = 2;
    shape.rows = 1;
    shape.gathered_heads = 4;
    shape.value_width = 2;
    nan_workspace workspace(carved_bytes<float, lse_base::natural>(merge::a2a{}, shape));
    carver memory(workspace.data());
    const auto buffers = merge::a2a::carve<float, lse_base::natural>(memory, shape);
    const auto views = merge::a2a::partials(shape, 0, buffers);
    for (int head = 0; head < 4; ++head) {
        views.out.at(0, head)[0] = static_cast<float>(2 * head);
        views.out.at(0, head)[1] = static_cast<float>(2 * head + 1);
        views.lse_out.at(0, head)->value = static_cast<float>(10 + head);
    }
    const std::vector<float> sent(buffers.send, buffers.send + 12);
    CHECK(sent == std::vector<float>{0, 1, 10, 2, 3, 11, 4, 5, 12, 6, 7, 13});
}

TEST_CASE("An LSE beside 16-bit outputs is two lanes of raw bits, low half first") {
    exchange_shape shape;
    shape.ranks = 1;
    shape.rows = 5;
    shape.value_width = 4;
    shape.partial_bytes = 2;
    nan_workspace workspace(carved_bytes<bf16, lse_base::natural>(merge::a2a{}, shape));
    carver memory(workspace.data());
    const auto buffers = merge::a2a::carve<bf16, lse_base::natural>(memory, shape);
    const auto views = merge::a2a::partials(shape, 0, buffers);
    const float lses[] = {1.5F, -2.25F, 3.14159265F, -std::numeric_limits<float>::infinity(), 10.123456F};
    for (std::int64_t row = 0; row < 5; ++row) views.lse_out.at(row, 0)->value = lses[row];
    std::vector<unsigned> lanes;
    for (std::size_t row = 0; row < 5; ++row)
        for (std::size_t lane = 4; lane < 6; ++lane) lanes.push_back(buffers.send[row * 6 + lane].bits);
    CHECK(lanes ==
          std::vector<unsigned>{0x0000, 0x3fc0, 0x0000, 0xc010, 0x0fdb, 0x4049, 0x0000, 0xff80, 0xf9ad, 0x4121});
}

TEST_CASE_TEMPLATE("Packing gives the bits of writing into the message, and only odd widths need it", P, float, bf16,
                   f16) {
    for (const std::int64_t width : {1, 2, 5, 6, 33}) {
        const plain::partials<P> from(3, 4, 6, width, 8);
        const auto direct = run_merge<float, lse_base::natural, lse_base::natural>(merge::a2a{}, from, {.sinks = true});
        const auto packed = run_merge<float, lse_base::natural, lse_base::natural>(
            merge::a2a{}, from, {.sinks = true, .dense_partials = true});
        CHECK(same_bits(direct, packed));
        // A width whose outputs do not end on 4 bytes can not be written in place: its views are dense.
        exchange_shape shape = shape_of(from);
        nan_workspace workspace(carved_bytes<P, lse_base::natural>(merge::a2a{}, shape));
        carver memory(workspace.data());
        const auto buffers = merge::a2a::carve<P, lse_base::natural>(memory, shape);
        const auto views = merge::a2a::partials(shape, 1, buffers);
        const bool in_message = width * static_cast<std::int64_t>(sizeof(P)) % 4 == 0;
        CHECK(views.out.is_dense() == !in_message);
        CHECK((views.out.base == buffers.send) == in_message);
        shape.dense_partials = true;
        carver counting(nullptr);
        const auto dense = merge::a2a::partials(shape, 1, merge::a2a::carve<P, lse_base::natural>(counting, shape));
        CHECK(dense.out.is_dense());
        CHECK(dense.lse_out.is_dense());
    }
}

TEST_CASE("A2A states one all_to_all of outputs with LSEs") {
    collective_schedule list;
    exchange_shape shape;
    shape.ranks = 8;
    shape.rows = 4;
    shape.gathered_heads = 128;
    shape.value_width = 512;
    shape.partial_type = scalar_type::bf16;
    merge::a2a::schedule(shape, list);
    CHECK(list.count == 1);
    CHECK(list.calls[0].op == collective_op::all_to_all);
    CHECK(list.calls[0].group == group_role::kv);
    CHECK(list.calls[0].type == scalar_type::bf16);
    CHECK(list.calls[0].size == 8);
    CHECK(list.bytes_sent() == 460544);
    CHECK(merge::a2a::scatters_heads());
    CHECK_FALSE(merge::a2a::knows_all_lse());
}
