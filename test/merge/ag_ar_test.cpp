// AG+AR keeps the merge law, over ranks that read each other's memory and over ranks that only move bytes.
#include <doctest/doctest.h>

#include <ctxpar/merge/ag_ar.hpp>

#include "merge_laws.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

TEST_CASE_TEMPLATE("AG+AR gives every example of the merge law on every rank", Tag, natural_lse, binary_lse) {
    check_examples<Tag::base>(merge::ag_ar{});
}

TEST_CASE("AG+AR of random parts is the merge in double, and moving bytes gives the bits of reading peers") {
    check_random_merges<float, float, lse_base::natural, lse_base::natural>(merge::ag_ar{});
    check_random_merges<float, bf16, lse_base::binary, lse_base::natural>(merge::ag_ar{});
    check_random_merges<bf16, float, lse_base::natural, lse_base::binary>(merge::ag_ar{});
    check_random_merges<f16, f16, lse_base::binary, lse_base::binary>(merge::ag_ar{});
}

TEST_CASE("AG+AR serves head widths of 80 and 192 with 5 rows and 3 heads") {
    for (const std::int64_t width : {80, 192}) {
        const plain::partials<float> from(3, 5, 3, width, 6);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::ag_ar{}, from, {});
    }
}

TEST_CASE("AG+AR keeps large LSEs") {
    for (const float offset : {1e4F, -1e4F}) {
        const plain::partials<float> from(4, 5, 4, 7, 7, offset);
        check_merge<float, float, lse_base::natural, lse_base::natural>(merge::ag_ar{}, from, {.sinks = true});
    }
}

TEST_CASE_TEMPLATE("AG+AR keeps the bits of a part that is alone", P, float, bf16) {
    check_lone_parts<P>(merge::ag_ar{});
}

TEST_CASE("AG+AR merges parts in any order of ranks") {
    check_any_order(merge::ag_ar{});
}

TEST_CASE("AG+AR merges 64 shards, and gives all ranks the same bits") {
    check_64_shards(merge::ag_ar{});
    const plain::partials<bf16> from(5, 4, 7, 9, 9); // 7 heads over 5 ranks
    for (const transport over : {transport::peers, transport::bytes}) {
        const auto all = run_merge<bf16, lse_base::natural, lse_base::natural>(merge::ag_ar{}, from, {over, true});
        for (const auto& rank : all) CHECK(rank.same_bits(all[0]));
    }
}

TEST_CASE("AG+AR leaves the heads that are asked for") {
    const plain::partials<float> from(3, 2, 5, 4, 10);
    const auto all = run_merge<float, lse_base::natural, lse_base::natural>(merge::ag_ar{}, from, {});
    run_local_ranks(3, {}, [&](local_communicator& comm) {
        const exchange_shape shape = shape_of(from);
        nan_workspace workspace(carved_bytes<float, lse_base::natural>(merge::ag_ar{}, shape));
        carver memory(workspace.data());
        const auto buffers = merge::ag_ar::carve<float, lse_base::natural>(memory, shape);
        write_partials(from, static_cast<std::size_t>(comm.rank()),
                       merge::ag_ar::partials(shape, comm.rank(), buffers));
        std::vector<float> out(2 * 2 * 4);
        std::vector<natural_lse> lses(2 * 1);
        merge_call<float, lse_base::natural> call;
        call.shape = shape;
        call.rank = comm.rank();
        call.live = from.live.data();
        call.live_stride = 2;
        call.first_head = 3;
        call.out = dense_view(out.data(), 2, 2, 4);
        call.lse_first_head = 4;
        call.lse_out = dense_view(lses.data(), 2, 1, 1);
        cpu_backend backend;
        merge::ag_ar::run(comm, backend, call, buffers, {});
        int wrong = 0;
        for (std::size_t row = 0; row < 2; ++row) {
            wrong += std::equal(&out[row * 8], &out[row * 8] + 8, &all[0].out[row * 20 + 12]) ? 0 : 1;
            wrong += lses[row].value == all[0].lses[row * 5 + 4].value ? 0 : 1;
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("AG+AR states a gather of LSEs and an all_reduce that sends the outputs twice") {
    collective_schedule list;
    exchange_shape shape;
    shape.ranks = 4;
    shape.rows = 8;
    shape.gathered_heads = 32;
    shape.value_width = 128;
    shape.partial_type = scalar_type::bf16;
    merge::ag_ar::schedule(shape, list);
    CHECK(list.count == 2);
    CHECK(list.calls[0].bytes_sent() == 3072);
    CHECK(list.calls[1].op == collective_op::all_reduce);
    CHECK(list.calls[1].bytes_sent() == 98304);
    CHECK_FALSE(merge::ag_ar::scatters_heads());
    CHECK(merge::ag_ar::knows_all_lse());
}
