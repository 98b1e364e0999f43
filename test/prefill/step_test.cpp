// What a plan refuses, and what it says of the batch it took.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "refusals.hpp"

using namespace refusals;

namespace {

// The refusal of a plan of a batch in which something was spoilt.
std::string refusal_of_batch(const std::function<void(one_rank&, prefill_batch&)>& spoil) {
    return refusal_of_one([&](one_rank& rank) {
        prefill_batch batch = rank.batch();
        spoil(rank, batch);
        rank.used.plan(batch, rank.memory(), {});
    });
}

} // namespace

TEST_CASE("a batch that is right is not refused") {
    one_rank rank;
    const prefill_step step = rank.plan();
    CHECK(step.rows() == 6);
    CHECK(step.counts.batch_rows == 6);
    CHECK(step.counts.decode_rows == 2);
    CHECK(step.schedule.count == 0);
}

TEST_CASE("a plan refuses lengths") {
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[1] = -3, r.plan(); }), "length", {"request 1", "-3"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.tokens[0] = -1, r.plan(); }), "length", {"request 0", "-1"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[0] = 17, r.plan(); }), "length",
               {"request 0", "17 computed", "4 new", "20"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[0] = std::int64_t{1} << 62, r.plan(); }), "length",
               {"request 0", "20"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.kinds[1] = 7, r.plan(); }), "kind", {"request 1", "7", "0", "1"}));
}

TEST_CASE("a plan refuses more rows than it was made for") {
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[0] = 0, r.tokens[0] = 13, r.plan(); }), "rows",
               {"request 0", "13 rows", "12"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[0] = 0, r.tokens[0] = 12, r.plan(); }), "rows",
               {"14 rows", "12"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[1] = 3, r.tokens[1] = 3, r.plan(); }), "decode_rows",
               {"3 rows", "2"}));
    CHECK(says(refusal_of_batch([](one_rank&, prefill_batch& b) { b.requests = 4; }), "requests", {"4", "0 to 3"}));
}

TEST_CASE("a plan refuses context that is longer than the table") {
    CHECK(says(refusal_of_one([](one_rank& r) { r.computed[0] = 9, r.plan(); }), "table_too_short",
               {"request 0", "13 tokens", "4 blocks", "3 blocks"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.ids[1] = 6, r.plan(); }), "table", {"block 1", "request 0", "id 6"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.ids[3] = -1, r.plan(); }), "table", {"request 1", "-1"}));
    CHECK(says(refusal_of_batch([](one_rank&, prefill_batch& b) { b.table.requests = 1; }), "table_too_short",
               {"1 rows", "2 requests"}));
    CHECK(says(refusal_of_batch([](one_rank&, prefill_batch& b) { b.table.block_size = 0; }), "block_size", {"0"}));
}

TEST_CASE("a plan refuses rows out of order, and missing numbers") {
    const auto with_offsets = [](one_rank& r, prefill_batch& b) {
        b.tokens = {};
        b.row_offsets = index_of(r.offsets.data());
    };
    CHECK(refusal_of([&] {
              one_rank rank;
              prefill_batch batch = rank.batch();
              with_offsets(rank, batch);
              CHECK(rank.used.plan(batch, rank.memory(), {}).counts.batch_rows == 6);
          }) == "none");
    CHECK(says(refusal_of_batch([&](one_rank& r, prefill_batch& b) {
                   r.offsets = {0, 6, 4};
                   with_offsets(r, b);
               }),
               "rows", {"request 1", "begin at 6", "end at 4", "in order"}));
    CHECK(says(refusal_of_batch([&](one_rank& r, prefill_batch& b) {
                   r.offsets = {2, 4, 6};
                   with_offsets(r, b);
               }),
               "rows", {"request 0", "begin at 2"}));
    CHECK(says(refusal_of_batch([](one_rank&, prefill_batch& b) { b.tokens = {}; }), "null", {"2 requests"}));
    CHECK(says(refusal_of_batch([](one_rank&, prefill_batch& b) { b.computed = {}; }), "null", {"2 requests"}));
}

TEST_CASE("a plan refuses masks, trees and workspaces") {
    for (const auto& [mask, code] : {std::pair{mask_rule{-1, 0, 0}, "window"}, std::pair{mask_rule{0, -2, 0}, "chunk"},
                                     std::pair{mask_rule{0, 0, -3}, "prefix"}}) {
        CHECK(says(refusal_of_batch([rule = mask](one_rank&, prefill_batch& b) { b.mask = rule; }), code, {"-"}));
    }
    CHECK(says(refusal_of_one([](one_rank& r) {
                   r.tree_bits = {1, 7}; // the second of two rows claims to see a third
                   r.plan();
               }),
               "tree", {"row 1", "request 1", "2 rows"}));
    CHECK(says(refusal_of_one([](one_rank& r) { r.used.plan(r.batch(), {}, {}); }), "workspace", {"null"}));
    CHECK(says(refusal_of_one([](one_rank& r) {
                   r.used.plan(r.batch(), {r.scratch.data(), r.used.workspace_bytes() - 1}, {});
               }),
               "workspace", {std::to_string(one_rank().used.workspace_bytes()).c_str()}));
    CHECK(says(refusal_of_one([](one_rank& r) {
                   r.used.plan(r.batch(), {r.scratch.data() + 64, r.used.workspace_bytes()}, {});
               }),
               "workspace", {"256"}));
}

TEST_CASE("cumulative lengths padded with repeats give the same rows") {
    one_rank rank;
    prefill_batch batch = rank.batch();
    rank.offsets = {0, 4, 6, 6};
    rank.computed = {3, 5, 0};
    rank.kinds = {0, 1, 0};
    batch.tokens = {};
    batch.row_offsets = index_of(rank.offsets.data());
    batch.computed = index_of(rank.computed.data());
    batch.kinds = index_of(rank.kinds.data());
    const prefill_step two = rank.used.plan(batch, rank.memory(), {});
    const std::vector<std::int64_t> rows(two.arrays.batch_rows, two.arrays.batch_rows + two.rows());
    const std::vector<std::int64_t> ids = {4, 1, 5, 0, 2, 3, 0, 0, 0};
    batch.requests = 3;
    batch.table = table_2d(ids.data(), 3, 3, 4);
    const prefill_step three = rank.used.plan(batch, rank.memory(), {});
    CHECK(std::vector<std::int64_t>(three.arrays.batch_rows, three.arrays.batch_rows + three.rows()) == rows);
}

TEST_CASE("positions follow the computed tokens, and plans live side by side") {
    one_rank rank;
    ctxpar_test::raw_memory elsewhere(rank.used.workspace_bytes(), true);
    const prefill_step first = rank.plan();
    rank.computed = {0, 1};
    const prefill_step second = rank.used.plan(rank.batch(), {elsewhere.data(), rank.used.workspace_bytes()}, {});
    const auto positions = [](const prefill_step& step) {
        return std::vector<std::int64_t>(step.positions(), step.positions() + step.rows());
    };
    CHECK(positions(first) == std::vector<std::int64_t>{3, 4, 5, 6, 5, 6});
    CHECK(positions(second) == std::vector<std::int64_t>{0, 1, 2, 3, 1, 2});
    CHECK(std::string(first.prefill_rows.reason) == "no other rank holds keys");
}
