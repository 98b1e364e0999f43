// Masks on shards against enumerating positions: what a row sees is asked of every token, one at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ctxpar/attention/rows.hpp>

#include "plain_rows.hpp"

using namespace ctxpar;

namespace {

using numbers = std::vector<std::int64_t>;

// A row that nothing produced: any prefix, interval and tail that are legal.
visible_keys random_row(std::mt19937_64& random, std::int64_t longest) {
    const auto upto = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1));
    };
    visible_keys row;
    row.hi = upto(longest);
    row.lo = upto(row.hi);
    row.prefix = random() % 2 == 0 ? 0 : upto(row.lo);
    row.tail = random() % 3 == 0 ? row.hi : row.hi - upto(std::min<std::int64_t>(row.hi, max_tree_nodes));
    row.tail_bits = random() % 8 == 0 ? ~std::uint64_t{0} : random();
    return row;
}

bool sees_plainly(const visible_keys& row, std::int64_t key) {
    const bool inside = (key >= 0 && key < row.prefix) || (row.lo <= key && key < row.hi);
    if (!inside || key < row.tail) return inside;
    return (row.tail_bits >> (key - row.tail) & 1U) != 0;
}

// Whether sees(), count() and the masks of all tiles say the same as the definition.
bool is_consistent(const visible_keys& row, std::int64_t keys) {
    std::int64_t seen = 0;
    for (std::int64_t key = 0; key < keys; ++key) {
        if (row.sees(key) != sees_plainly(row, key)) return false;
        seen += sees_plainly(row, key) ? 1 : 0;
    }
    if (row.count() != seen) return false;
    for (std::int64_t first = 0; first < keys; ++first) { // tiles start anywhere
        std::uint32_t mask = 0;
        for (std::int64_t x = 0; x < 32; ++x)
            if (sees_plainly(row, first + x)) mask |= 1U << x;
        if (row.tile_mask(first) != mask) return false;
    }
    return true;
}

numbers lower(const std::vector<visible_keys>& rows) {
    numbers list;
    for (const visible_keys& row : rows) list.push_back(row.lo);
    return list;
}
numbers upper(const std::vector<visible_keys>& rows) {
    numbers list;
    for (const visible_keys& row : rows) list.push_back(row.hi);
    return list;
}

// The local rows of a request.
std::vector<visible_keys> local_rows(const shard& part, std::int64_t length, std::int64_t rows,
                                     const mask_rule& rule = {}, const std::uint64_t* tree_bits = nullptr) {
    std::vector<visible_keys> list;
    for (std::int64_t i = 0; i < rows; ++i)
        list.push_back(
            localise(causal_row(length, rows, i, rule, tree_bits == nullptr ? nullptr : tree_bits + i), part));
    return list;
}

// Whether the local rows see exactly the rank's own tokens that their rows see, and lie in order.
bool is_localised(const shard& part, std::int64_t length, std::int64_t rows, const mask_rule& rule,
                  const std::uint64_t* tree_bits) {
    const numbers held = plain::positions_of(part.ranks, part.interleave, part.rank, length);
    const auto local = local_rows(part, length, rows, rule, tree_bits);
    for (std::int64_t i = 0; i < rows; ++i) {
        const visible_keys& row = local[static_cast<std::size_t>(i)];
        const std::uint64_t* bits = tree_bits == nullptr ? nullptr : tree_bits + i;
        std::int64_t seen = 0;
        for (std::size_t j = 0; j < held.size(); ++j) {
            const bool visible = plain::row_sees(length, rows, i, rule, bits, held[j]);
            if (row.sees(static_cast<std::int64_t>(j)) != visible) return false;
            seen += visible ? 1 : 0;
        }
        if (row.count() != seen || row.hi > static_cast<std::int64_t>(held.size())) return false;
        if (!(0 <= row.prefix && row.prefix <= row.lo && row.lo <= row.hi && row.hi - row.tail <= max_tree_nodes))
            return false;
        if (seen == 0 && bits == nullptr && row.lo != row.hi) return false;
    }
    return std::ranges::is_sorted(lower(local)) && std::ranges::is_sorted(upper(local));
}

template <class Body>
void for_each_shard(Body body) {
    for (std::int64_t ranks = 1; ranks <= 5; ++ranks)
        for (const std::int64_t interleave : {1, 2, 3, 4, 16})
            for (std::int64_t rank = 0; rank < ranks; ++rank) body(shard{ranks, rank, interleave});
}

const mask_rule all_rules[] = {{},          {1, 0, 0},  {5, 0, 0},    {40, 0, 0}, {0, 8, 0},
                               {0, 1, 0},   {0, 30, 0}, {5, 0, 3},    {7, 0, 20}, {0, 8, 5},
                               {10, 16, 0}, {6, 9, 2},  {0, 0, 1000}, {1, 64, 1}, {0, 7, 64}};

} // namespace

TEST_CASE("sees(), count() and tile_mask() agree with the definition for any row") {
    std::mt19937_64 random(3);
    int wrong = 0;
    for (int round = 0; round < 3000; ++round) wrong += is_consistent(random_row(random, 150), 160) ? 0 : 1;
    CHECK(wrong == 0);
    for (const visible_keys& row :
         {visible_keys{}, visible_keys{0, 0, 64, 0, ~std::uint64_t{0}}, visible_keys{0, 0, 64, 0, 0},
          visible_keys{3, 3, 3, 3, 0}, visible_keys{0, 31, 33, 32, 2}})
        CHECK(is_consistent(row, 100));
}

TEST_CASE("A row sees the positions that its mask names") {
    int wrong = 0;
    const shard whole{1, 0, 1};
    for (const mask_rule& rule : all_rules)
        for (const std::int64_t length : {0, 1, 2, 5, 8, 9, 25, 64, 65, 100})
            for (const std::int64_t rows : {1, 2, 3, 8})
                wrong += is_localised(whole, length, rows, rule, nullptr) ? 0 : 1;
    CHECK(wrong == 0);
}

TEST_CASE("A mask made local sees the rank's own part of what the row sees") {
    for_each_shard([](const shard& part) {
        int wrong = 0;
        for (const mask_rule& rule : all_rules)
            for (const std::int64_t length : {0, 1, 2, 3, 5, 17, 25, 64, 65, 130})
                for (const std::int64_t rows : {1, 3, 8})
                    wrong += is_localised(part, length, rows, rule, nullptr) ? 0 : 1;
        CAPTURE(part.ranks);
        CAPTURE(part.interleave);
        CAPTURE(part.rank);
        CHECK(wrong == 0);
    });
}

TEST_CASE("A draft tree made local sees the rank's own nodes, with windows, chunks and a prefix before it") {
    std::mt19937_64 random(4);
    for_each_shard([&](const shard& part) {
        int wrong = 0;
        for (const mask_rule& rule : all_rules) {
            for (const std::int64_t rows : {1, 4, 7, 33, 64}) {
                for (const std::int64_t length : {std::int64_t{2}, std::int64_t{12}, rows, rows + 1, rows + 50}) {
                    std::vector<std::uint64_t> bits;
                    const std::uint64_t nodes = rows == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << rows) - 1;
                    for (std::int64_t i = 0; i < rows; ++i) bits.push_back(random() & nodes);
                    wrong += is_localised(part, length, rows, rule, bits.data()) ? 0 : 1;
                }
            }
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("A tree of more than 64 nodes sees nothing, and of 64 sees its last node") {
    const std::uint64_t all = ~std::uint64_t{0};
    CHECK(causal_row(200, 65, 64, {}, &all) == visible_keys{});
    const visible_keys row = causal_row(200, 64, 63, {}, &all);
    CHECK(row.sees(199));
    CHECK(row.count() == 200);
}

TEST_CASE("A draft tree of four nodes over two ranks keeps bits 0 1 on one and 2 3 on the other") {
    const std::uint64_t bits = 0b1011; // ancestors 0 and 1, and itself: node 3
    for (const std::int64_t rank : {0, 1}) {
        const visible_keys row = localise(causal_row(12, 4, 3, {}, &bits), {2, rank, 2});
        CHECK(row.tail == 4);
        CHECK(row.hi == 6);
        CHECK(row.tail_bits == (rank == 0 ? 0b11U : 0b10U));
        CHECK(row.count() == (rank == 0 ? 6 : 5));
    }
}

TEST_CASE("Bounds of verify rows come from each row's own global bound") {
    const auto bounds = [](std::int64_t ranks, std::int64_t interleave, std::int64_t rank, std::int64_t length,
                           std::int64_t rows) {
        return upper(local_rows({ranks, rank, interleave}, length, rows));
    };
    CHECK(bounds(4, 1, 0, 25, 8) == numbers{5, 5, 5, 6, 6, 6, 6, 7});
    CHECK(bounds(4, 1, 1, 25, 8) == numbers{5, 5, 5, 5, 6, 6, 6, 6});
    CHECK(bounds(4, 1, 2, 25, 8) == numbers{4, 5, 5, 5, 5, 6, 6, 6});
    CHECK(bounds(4, 1, 3, 25, 8) == numbers{4, 4, 5, 5, 5, 5, 6, 6});
    CHECK(bounds(2, 1, 0, 10, 3) == numbers{4, 5, 5}); // masks aligned to the end would say 3 4 5
    CHECK(bounds(2, 1, 1, 10, 3) == numbers{4, 4, 5});
    CHECK(bounds(2, 4, 0, 13, 3) == numbers{7, 8, 8});
    CHECK(bounds(2, 4, 1, 13, 3) == numbers{4, 4, 5});
    CHECK(bounds(2, 4, 0, 18, 3) == numbers{8, 9, 10});
    CHECK(bounds(2, 4, 1, 18, 3) == numbers{8, 8, 8});
    CHECK(bounds(2, 1, 0, 2, 3) == numbers{0, 1, 1}); // the first row is before the sequence
    CHECK(bounds(2, 1, 1, 2, 3) == numbers{0, 0, 1});
    CHECK(bounds(4, 2, 0, 12, 3) == numbers{4, 4, 4}); // subtracting from local lengths would say 2 3 4
    CHECK(bounds(4, 2, 1, 12, 3) == numbers{2, 3, 4});
    CHECK(bounds(4, 2, 2, 12, 3) == numbers{2, 2, 2});
    CHECK(bounds(4, 2, 3, 12, 3) == numbers{2, 2, 2});
    CHECK(bounds(4, 1, 0, 8, 8) == numbers{1, 1, 1, 1, 2, 2, 2, 2});
    CHECK(bounds(4, 1, 3, 8, 8) == numbers{0, 0, 0, 1, 1, 1, 1, 2});
    CHECK(bounds(4, 2, 1, 8, 8) == numbers{0, 0, 1, 2, 2, 2, 2, 2});
    CHECK(bounds(4, 2, 3, 8, 8) == numbers{0, 0, 0, 0, 0, 0, 1, 2});
    CHECK(bounds(4, 4, 0, 6, 1) == numbers{4});
    CHECK(bounds(4, 4, 1, 6, 1) == numbers{2});
    CHECK(bounds(4, 4, 2, 6, 1) == numbers{0});
}

TEST_CASE("Windows and chunks are intervals on every rank") {
    const auto rows = [](std::int64_t ranks, std::int64_t rank, std::int64_t interleave, std::int64_t length,
                         std::int64_t count, const mask_rule& rule) {
        const auto list = local_rows({ranks, rank, interleave}, length, count, rule);
        std::string text;
        for (const visible_keys& row : list) text += std::to_string(row.lo) + "-" + std::to_string(row.hi) + " ";
        return text;
    };
    CHECK(rows(2, 0, 4, 20, 2, {8, 0, 0}) == "7-11 8-12 ");
    CHECK(rows(2, 1, 4, 20, 2, {8, 0, 0}) == "4-8 4-8 ");
    CHECK(rows(4, 0, 4, 25, 2, {10, 0, 0}) == "4-8 4-8 ");
    CHECK(rows(4, 1, 4, 25, 2, {10, 0, 0}) == "4-8 4-8 ");
    CHECK(rows(4, 2, 4, 25, 2, {10, 0, 0}) == "4-4 4-5 ");
    CHECK(rows(4, 3, 4, 25, 2, {10, 0, 0}) == "2-4 3-4 ");
    CHECK(rows(2, 0, 4, 14, 1, {0, 8, 0}) == "4-8 "); // chunks of 8, the row at 13
    CHECK(rows(2, 1, 4, 14, 1, {0, 8, 0}) == "4-6 ");
}

TEST_CASE("Positions past 2^32 keep their place") {
    const std::int64_t length = (std::int64_t{1} << 36) + 7;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
        const shard part{3, rank, 4};
        const visible_keys row = localise(causal_row(length, 1, 0, {1000, 0, 16}), part);
        CHECK(row.hi == part.local_len(length));
        CHECK(row.count() == part.local_len(length) - part.local_len(length - 1000) + part.local_len(16));
        CHECK(row.sees(row.hi - 1));
        CHECK_FALSE(row.sees(row.hi));
        CHECK((row.tile_mask(row.hi - 1) & 3U) == 1U);
    }
}

TEST_CASE("Splits cover a segment's keys exactly, no more of them than allowed") {
    std::mt19937_64 random(5);
    int wrong = 0;
    for (int round = 0; round < 20000; ++round) {
        segment part;
        const std::int64_t scale = std::int64_t{1} << (random() % 22);
        part.begin = random() % 2 == 0 ? 0 : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(scale));
        part.end = part.begin + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(scale));
        const std::int64_t most = 1 + static_cast<std::int64_t>(random() % 20);
        schedule_splits(part, most);
        bool right = part.split_tokens % 1024 == 0 && part.split_tokens >= 4096 && part.splits() <= most;
        right = right && (part.splits() == 0) == (part.begin == part.end);
        std::int64_t covered = part.begin; // each split must take over where the one before it ended
        for (std::int64_t s = part.first_split; s < part.first_split + part.splits(); ++s) {
            const std::int64_t from = std::max(part.begin, s * part.split_tokens);
            const std::int64_t to = std::min(part.end, (s + 1) * part.split_tokens);
            right = right && from == covered && to > from;
            covered = to;
        }
        wrong += right && covered == part.end ? 0 : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("A segment's splits depend on its keys only, and long ones are split") {
    segment part;
    part.end = 1'000'000;
    schedule_splits(part, 8);
    CHECK(part.splits() == 8);
    segment other = part;
    other.request = 7;
    other.first_row = 40;
    other.rows = 9;
    other.split_tokens = 1;
    other.first_split = 3;
    schedule_splits(other, 8);
    CHECK(other.split_tokens == part.split_tokens);
    CHECK(other.first_split == part.first_split);
    part.end = 4096;
    schedule_splits(part, 8);
    CHECK(part.splits() == 1);
    part.end = 4097;
    schedule_splits(part, 8);
    CHECK(part.splits() == 2);
    part.begin = part.end;
    schedule_splits(part, 8);
    CHECK(part.splits() == 0);
    part.begin = 0;
    part.end = std::int64_t{1} << 40;
    schedule_splits(part, 8);
    CHECK(part.splits() == 8);
    CHECK(part.split_tokens == std::int64_t{1} << 37);
}
