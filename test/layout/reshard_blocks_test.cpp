// Re-sharding of paged caches against slots looked up token by token.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/reshard.hpp>

#include "refusal.hpp"

namespace {

using ctxpar::block_move;
using ctxpar::ownership;
using ctxpar::paged_request;
using ctxpar::reshard_run;
using ctxpar_test::refusal_of;
using ctxpar_test::says;
using numbers = std::vector<std::int64_t>;
using move_list = std::vector<block_move>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

std::size_t at(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// A cache whose table is the second of two rows.
struct drawn_cache {
    ownership law;
    std::int64_t block_size = 1, pool_blocks = 0, columns = 0;
    numbers ids; // [2][columns]

    paged_request view() const { return {law, ctxpar::table_2d(ids.data(), 2, columns, block_size), 1, pool_blocks}; }
    // The slot of a token among its owner's, from the ids alone.
    std::int64_t slot(std::int64_t local) const {
        return ids[at(columns + local / block_size)] * block_size + local % block_size;
    }
};

// Blocks in any order, or one after another, or so but for a few that were swapped.
drawn_cache draw_cache(std::mt19937& random, std::int64_t length) {
    drawn_cache cache;
    cache.law = {draw(random, 1, 6), draw(random, 1, 12)};
    cache.block_size = draw(random, 1, 9);
    cache.columns = (length + cache.block_size - 1) / cache.block_size + 1;
    cache.pool_blocks = 2 * cache.columns + 3;
    cache.ids.resize(at(cache.pool_blocks));
    std::iota(cache.ids.begin(), cache.ids.end(), draw(random, 0, 1));
    cache.pool_blocks += 1;
    const std::int64_t order = draw(random, 0, 2);
    if (order == 0) std::shuffle(cache.ids.begin(), cache.ids.end(), random);
    for (std::int64_t swaps = 0; order == 1 && swaps < 2; ++swaps)
        std::swap(cache.ids[at(draw(random, 0, cache.pool_blocks - 2))],
                  cache.ids[at(draw(random, 0, cache.pool_blocks - 2))]);
    return cache;
}

// The tokens of each run in turn, put together while both slots grow by one.
move_list plain_moves(const drawn_cache& from, const drawn_cache& to, std::int64_t first, std::int64_t end) {
    move_list moves;
    for (const reshard_run& run : ctxpar::reshard_runs({from.law, to.law}, first, end))
        for (std::int64_t i = 0; i < run.count; ++i) {
            const std::int64_t src = from.slot(run.src_local + i), dst = to.slot(run.dst_local + i);
            if (i > 0 && moves.back().src_slot + moves.back().count == src &&
                moves.back().dst_slot + moves.back().count == dst) {
                ++moves.back().count;
            } else {
                moves.push_back({run.src_rank, src, run.dst_rank, dst, 1});
            }
        }
    return moves;
}

paged_request paged(const ownership& law, const numbers& ids, std::int64_t block_size, std::int64_t pool_blocks = -1) {
    return {law, ctxpar::table_2d(ids.data(), 1, static_cast<std::int64_t>(ids.size()), block_size), 0, pool_blocks};
}

} // namespace

TEST_CASE("block moves worked by hand") {
    // Two ranks with an interleave of 4 into one: blocks of 4 into blocks of 8, and back.
    const numbers two = {5, 2}, one = {7, 3};
    const move_list joined = {{0, 20, 0, 56, 4}, {1, 20, 0, 60, 4}, {0, 8, 0, 24, 4}, {1, 8, 0, 28, 2}};
    CHECK(ctxpar::block_moves(paged({2, 4}, two, 4), paged({1, 1}, one, 8), 0, 14) == joined);
    move_list parted = joined;
    for (block_move& move : parted) {
        std::swap(move.src_rank, move.dst_rank);
        std::swap(move.src_slot, move.dst_slot);
    }
    CHECK(ctxpar::block_moves(paged({1, 1}, one, 8), paged({2, 4}, two, 4), 0, 14) == parted);
    // One layout in other blocks: cut where a block of either side ends and the next does not follow it.
    const numbers small = {4, 5, 1, 2}, large = {0, 3};
    CHECK(ctxpar::block_moves(paged({1, 1}, small, 2), paged({1, 1}, large, 4), 1, 8) ==
          move_list{{0, 9, 0, 1, 3}, {0, 2, 0, 12, 4}});
    // Blocks that follow one another on both sides are one move.
    CHECK(ctxpar::block_moves(paged({1, 1}, numbers{4, 5, 6}, 2), paged({1, 1}, numbers{1, 2}, 3), 0, 6) ==
          move_list{{0, 8, 0, 3, 6}});
    CHECK(ctxpar::block_moves(paged({1, 1}, small, 2), paged({2, 1}, large, 4), 3, 3).empty());
}

TEST_CASE("block moves are the runs with their slots looked up token by token") {
    std::mt19937 random(21);
    std::size_t longer = 0; // moves that go over the end of a block
    for (int repeat = 0; repeat < 2000; ++repeat) {
        const std::int64_t length = draw(random, 0, 300), first = draw(random, 0, length);
        const drawn_cache from = draw_cache(random, length), to = draw_cache(random, length);
        const move_list moves = ctxpar::block_moves(from.view(), to.view(), first, length);
        REQUIRE(moves == plain_moves(from, to, first, length));
        for (const block_move& move : moves) longer += move.count > std::min(from.block_size, to.block_size);
    }
    CHECK(longer > 100);
}

TEST_CASE("every token arrives in its slot, and no other row of a pool is touched") {
    std::mt19937 random(22);
    for (int repeat = 0; repeat < 300; ++repeat) {
        const std::int64_t length = draw(random, 0, 200);
        const drawn_cache from = draw_cache(random, length), to = draw_cache(random, length);
        const auto fill = [&](const drawn_cache& cache) { // [rank] the token in each row of its pool, -1 for none
            std::vector<numbers> pools(at(cache.law.ranks), numbers(at(cache.pool_blocks * cache.block_size), -1));
            for (std::int64_t token = 0; token < length; ++token)
                pools[at(cache.law.owner(token))][at(cache.slot(cache.law.local(token)))] = token;
            return pools;
        };
        const std::vector<numbers> source = fill(from);
        std::vector<numbers> target(at(to.law.ranks), numbers(at(to.pool_blocks * to.block_size), -1));
        const std::int64_t half = length / 2;
        const auto carry = [&](const block_move& move) {
            for (std::int64_t i = 0; i < move.count; ++i)
                target.at(at(move.dst_rank)).at(at(move.dst_slot + i)) =
                    source.at(at(move.src_rank)).at(at(move.src_slot + i));
        };
        ctxpar::for_each_block_move(from.view(), to.view(), half, length, carry);
        ctxpar::for_each_block_move(from.view(), to.view(), 0, half, carry);
        CHECK(target == fill(to));
    }
}

TEST_CASE("tables of every form give the same moves") {
    const numbers ids = {6, 7, 8, 2}, offsets = {0, 2, 6}, listed = {9, 9, 6, 7, 8, 2};
    const std::vector<std::int32_t> narrow = {6, 7, 8, 2};
    const numbers into = {3, 1, 0};
    const paged_request to = paged({3, 2}, into, 4);
    const move_list due = ctxpar::block_moves(paged({2, 1}, ids, 4), to, 2, 29);
    CHECK(due.size() > 10);
    const paged_request csr{{2, 1}, ctxpar::table_csr(listed.data(), offsets.data(), 2, 4), 1, -1};
    CHECK(ctxpar::block_moves(csr, to, 2, 29) == due);
    const paged_request of_32_bits{{2, 1}, ctxpar::table_2d(narrow.data(), 1, 4, 4), 0, 9};
    CHECK(ctxpar::block_moves(of_32_bits, to, 2, 29) == due);
    // Contiguous caches, one block a request: slots are local indexes after the requests before it.
    const paged_request src{{2, 1}, ctxpar::identity_table(3, 100), 0, -1};
    const paged_request dst{{3, 2}, ctxpar::identity_table(3, 100), 2, -1};
    move_list flat;
    for (const reshard_run& run : ctxpar::reshard_runs({{2, 1}, {3, 2}}, 2, 29))
        flat.push_back({run.src_rank, run.src_local, run.dst_rank, 200 + run.dst_local, run.count});
    CHECK(ctxpar::block_moves(src, dst, 2, 29) == flat);
}

TEST_CASE("a cache that does not hold the tokens is refused before the first move") {
    const numbers good = {0, 1, 2, 3}, shorter = {0, 1}, negative = {0, 1, -1, 3};
    int visits = 0;
    const auto refused = [&](const paged_request& from, const paged_request& to, std::int64_t first, std::int64_t end) {
        return refusal_of(
            [&] { ctxpar::for_each_block_move(from, to, first, end, [&](const block_move&) { ++visits; }); });
    };
    const paged_request cache = paged({2, 4}, good, 4);
    CHECK(says(refused(cache, cache, -1, 4), "range", {"[-1, 4)"}));
    CHECK(says(refused(cache, cache, 9, 8), "range", {"[9, 8)"}));
    CHECK(says(refused(paged({0, 4}, good, 4), cache, 0, 8), "ranks", {"from 0"}));
    CHECK(says(refused(cache, paged({2, 0}, good, 4), 0, 8), "interleave", {"to one of 0"}));
    paged_request wrong = cache;
    wrong.table.block_size = 0;
    CHECK(says(refused(cache, wrong, 0, 8), "block_size", {"0", "at least 1"}));
    wrong = cache;
    wrong.request = 1;
    CHECK(says(refused(wrong, cache, 0, 8), "request", {"request 1", "1 requests"}));

    const paged_request small = paged({2, 4}, shorter, 4);
    CHECK(says(refused(small, cache, 0, 17), "table_too_short",
               {"[0, 17)", "block 2 of rank 0", "4 tokens a block, 2 ranks, interleave 4", "2 blocks"}));
    CHECK(says(refused(cache, small, 16, 17), "table_too_short", {"block 2 of rank 0"}));
    CHECK(says(refused(cache, small, 20, 21), "table_too_short", {"block 2 of rank 1"}));
    CHECK(says(refused(paged({2, 4}, negative, 4), cache, 0, 32), "table", {"block 2", "id -1", "at least 0"}));
    CHECK(says(refused(cache, paged({2, 4}, negative, 4), 20, 21), "table", {"block 2", "id -1"}));
    CHECK(says(refused(cache, paged({2, 4}, good, 4, 3), 0, 32), "table", {"id 3", "3 blocks", "below 3"}));
    const numbers far = {largest / 4};
    CHECK(says(refused(cache, paged({2, 4}, far, 8), 0, 8), "table", {"63 bits"}));
    CHECK(visits == 0);

    // Blocks of tokens outside the range are not looked at.
    CHECK(refused(small, small, 0, 16) == "none");
    CHECK(refused(paged({2, 4}, negative, 4), cache, 0, 16) == "none");
    CHECK(refused(paged({2, 4}, negative, 4), cache, 24, 32) == "none");
    CHECK(refused(cache, paged({2, 4}, good, 4, 3), 0, 24) == "none");
    CHECK(refused(cache, small, 9, 9) == "none");
    CHECK(visits > 0);
}

TEST_CASE("slots up to 2^63 - 1 are reached") {
    const numbers last = {largest / 4}, next = {largest / 4 - 1, largest / 4};
    CHECK(ctxpar::block_moves(paged({1, 1}, last, 4), paged({1, 1}, next, 4), 0, 4) ==
          move_list{{0, largest - 3, 0, largest - 7, 4}});
    CHECK(ctxpar::block_moves(paged({1, 1}, next, 4), paged({1, 1}, next, 4), 0, 8) ==
          move_list{{0, largest - 7, 0, largest - 7, 8}});
}

TEST_CASE("a sender of whole blocks sends every block with a token and no empty one") {
    CHECK(ctxpar::blocks_sent({4, 1}, 16, 16) == 4);
    CHECK(ctxpar::blocks_sent({4, 16}, 16, 16) == 1);
    CHECK(ctxpar::blocks_sent({4, 1}, 16, 40) == 4);
    CHECK(ctxpar::blocks_sent({4, 16}, 16, 40) == 3);
    CHECK(ctxpar::blocks_sent({4, 1}, 16, 100) == 8);
    CHECK(ctxpar::blocks_sent({4, 16}, 16, 100) == 7);
    CHECK(ctxpar::blocks_sent({4, 1}, 16, 1000) == 64);
    CHECK(ctxpar::blocks_sent({4, 16}, 16, 1000) == 63);
    for (const std::int64_t ranks : {1, 2, 3, 4, 8})
        for (const std::int64_t interleave : {1, 2, 3, 5, 16, 64})
            for (const std::int64_t block_size : {1, 3, 4, 16, 64})
                for (std::int64_t length = 0; length < 700; length += length < 80 ? 1 : 13) {
                    const ownership law{ranks, interleave};
                    const numbers blocks = ctxpar::blocks_per_rank(law, block_size, length);
                    REQUIRE(ctxpar::blocks_sent(law, block_size, length) ==
                            std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}));
                }
    static_assert(ctxpar::blocks_sent({4, 16}, 16, 17) == 2);
    CHECK(ctxpar::blocks_sent({std::int64_t{1} << 40, 2}, 4, 9) == 5);
    CHECK(ctxpar::blocks_sent({3, 1}, 1, largest) == largest);
    CHECK(says(refusal_of([] { ctxpar::blocks_sent({4, 1}, 0, 16); }), "block_size", {"0"}));
    CHECK(says(refusal_of([] { ctxpar::blocks_sent({4, 1}, 16, -1); }), "length", {"-1"}));
}
