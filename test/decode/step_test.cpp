// What a plan validates on the host, and what it knows afterwards.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/decode/step.hpp>

using namespace ctxpar;

namespace {

// Two requests of 9 and 40 tokens on rank 1 of 2, interleave 4, blocks of 8 tokens.
struct fixture {
    std::vector<std::int64_t> lengths{9, 40};
    std::vector<std::int64_t> rows{2, 1};
    std::vector<std::int64_t> table{3, -1, -1, 0, 2, 7};
    std::vector<std::uint64_t> tree;
    decode_shape shape;
    shard part{2, 1, 4};
    mask_rule mask;

    fixture() {
        shape.max_requests = 2;
        shape.max_rows = 4;
        shape.longest = 64;
        shape.pool_blocks = 8;
    }
    decode_batch batch() const {
        decode_batch made;
        made.requests = static_cast<std::int64_t>(lengths.size());
        made.lengths = index_of(lengths.data());
        made.query_rows = index_of(rows.data());
        made.table = table_2d(table.data(), 2, 3, 8);
        made.mask = mask;
        made.tree_bits = tree.empty() ? nullptr : tree.data();
        return made;
    }
    detail::batch_facts facts() const { return detail::check_batch(batch(), shape, part); }
    std::string refusal() const {
        try {
            facts();
        } catch (const config_error& refused) {
            return refused.code();
        }
        return "";
    }
};

} // namespace

TEST_CASE("facts of a batch: rows, and one past the largest slot in use") {
    const fixture good;
    const detail::batch_facts facts = good.facts();
    CHECK(facts.rows == 3);
    CHECK(facts.slots == 8 * 8); // request 1 holds 20 tokens on rank 1: blocks 0, 2 and 7
}

TEST_CASE("every rule of a host plan is checked") {
    const auto broken = [](auto change) {
        fixture bad;
        change(bad);
        return bad.refusal();
    };
    CHECK(fixture().refusal().empty());
    CHECK(broken([](fixture& f) { f.lengths[0] = -1; }) == "length");
    CHECK(broken([](fixture& f) { f.lengths[1] = 65; }) == "length");
    CHECK(broken([](fixture& f) { f.rows[1] = 3; }) == "query_rows");
    CHECK(broken([](fixture& f) { f.rows[0] = -1; }) == "query_rows");
    CHECK(broken([](fixture& f) { f.table[3] = 8; }) == "table");
    CHECK(broken([](fixture& f) { f.table[0] = -1; }) == "table");
    CHECK(broken([](fixture& f) { f.lengths[1] = 56; }) == "table_too_short");
    CHECK(broken([](fixture& f) { f.mask.window = -1; }) == "window");
    CHECK(broken([](fixture& f) { f.mask.chunk = -1; }) == "chunk");
    CHECK(broken([](fixture& f) { f.mask.prefix = -1; }) == "prefix");
    CHECK(broken([](fixture& f) { f.tree = {1, 4, 1}; }) == "tree"); // row 1 of a request of 2 rows names a third one
    CHECK(broken([](fixture& f) { f.tree = {1, 3, 1}; }).empty());
    CHECK(broken([](fixture& f) { f.lengths.push_back(1), f.rows.push_back(0); }) == "requests");
}

TEST_CASE("a plan checks block ids in every form of a table") {
    const auto refusal = [](const block_table& table, std::int64_t pool_blocks) -> std::string {
        fixture made;
        made.shape.pool_blocks = pool_blocks;
        decode_batch batch = made.batch();
        batch.table = table;
        try {
            return std::to_string(detail::check_batch(batch, made.shape, made.part).slots);
        } catch (const config_error& refused) {
            return refused.code();
        }
    };
    for (const std::int64_t pool_blocks : {std::int64_t{-1}, std::int64_t{8}}) {
        std::vector<std::int32_t> narrow{3, -1, -1, 0, 2, 7};
        CHECK(refusal(table_2d(narrow.data(), 2, 3, 8), pool_blocks) == "64");
        narrow[4] = -2;
        CHECK(refusal(table_2d(narrow.data(), 2, 3, 8), pool_blocks) == "table");
        std::vector<std::uint32_t> wide{3, 9, 9, 0, 2, 7};
        CHECK(refusal(table_2d(wide.data(), 2, 3, 8), pool_blocks) == "64");
        wide[5] = 0xffffffff; // is no -1
        CHECK(refusal(table_2d(wide.data(), 2, 3, 8), pool_blocks) == (pool_blocks < 0 ? "34359738368" : "table"));
        std::vector<std::int64_t> packed{3, 0, 2, 7};
        const std::vector<std::int64_t> offsets{0, 1, 4};
        CHECK(refusal(table_csr(packed.data(), offsets.data(), 2, 8), pool_blocks) == "64");
        packed[3] = std::int64_t{1} << 60; // its slots would pass 63 bits
        CHECK(refusal(table_csr(packed.data(), offsets.data(), 2, 8), pool_blocks) == "table");
    }
    block_table none; // block b of request r is 3r + b
    none.requests = 2;
    none.columns = 3;
    none.block_size = 8;
    CHECK(refusal(none, 6) == "48");
    CHECK(refusal(none, 5) == "table");
    const std::vector<std::int64_t> negative{-4, -3, 0};
    none.row_offsets = index_of(negative.data());
    CHECK(refusal(none, 6) == "table");
}

TEST_CASE("blocks that a window has left behind may be gone") {
    fixture windowed;
    windowed.table[3] = -1; // local tokens 0..7 of request 1, positions up to 15
    CHECK(windowed.refusal() == "table");
    windowed.mask.window = 12; // the row sees positions 28 and on
    CHECK(windowed.refusal().empty());
    windowed.mask.prefix = 8; // and the first 8 again: they are in that block
    CHECK(windowed.refusal() == "table");
}

TEST_CASE("ranks agree on what they share only: lengths, rows and masks, not their tables") {
    const auto digest_with = [](auto change) {
        fixture made;
        change(made);
        return made.facts().digest;
    };
    const std::uint64_t base = fixture().facts().digest;
    CHECK(digest_with([](fixture& f) { f.table[3] = 5; }) == base);
    CHECK(digest_with([](fixture& f) { f.part.rank = 0, f.table = {3, 1, 2, 0, 4, 5}; }) == base);
    CHECK(digest_with([](fixture& f) { f.lengths[0] = 8; }) != base);
    CHECK(digest_with([](fixture& f) { f.rows[0] = 1; }) != base);
    CHECK(digest_with([](fixture& f) { f.mask.window = 64; }) != base);
    CHECK(digest_with([](fixture& f) { f.tree = {1, 3, 1}; }) != base);
}

TEST_CASE("a plan from device lengths needs the pool's size and keeps inside its bounds") {
    fixture made;
    const auto refusal = [&](const step_bounds& bounds) -> std::string {
        try {
            detail::check_bounds(made.batch(), bounds, made.shape);
        } catch (const config_error& refused) {
            return refused.code();
        }
        return "";
    };
    CHECK(refusal({4, 64}).empty());
    CHECK(refusal({5, 64}) == "query_rows");
    CHECK(refusal({4, 65}) == "length");
    made.shape.pool_blocks = -1;
    CHECK(refusal({4, 64}) == "pool_blocks");
}
