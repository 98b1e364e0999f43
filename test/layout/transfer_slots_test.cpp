// Slots between one pair of shards against the runs of the whole reshard, and whole blocks.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/transfer_slots.hpp>

#include "refusal.hpp"

namespace {

using ctxpar::ownership;
using ctxpar::paged_request;
using ctxpar::reshard_law;
using ctxpar::reshard_run;
using ctxpar::whole_block;
using ctxpar_test::refusal_of;
using ctxpar_test::says;
using numbers = std::vector<std::int64_t>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// Every pair's runs by themselves against the whole plan's.
void check_pairs(const reshard_law& law, std::int64_t first, std::int64_t end) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<reshard_run>> due;
    for (const reshard_run& run : ctxpar::reshard_runs(law, first, end))
        due[{run.src_rank, run.dst_rank}].push_back(run);
    for (std::int64_t src = 0; src < std::min<std::int64_t>(law.from.ranks, 9); ++src)
        for (std::int64_t dst = 0; dst < std::min<std::int64_t>(law.to.ranks, 9); ++dst) {
            std::vector<reshard_run> found;
            ctxpar::detail::for_each_run_between(law, src, dst, first, end,
                                                 [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                                                     found.push_back({src, from, dst, to, count});
                                                 });
            REQUIRE(found == due[{src, dst}]);
        }
}

paged_request paged(const ownership& law, const numbers& ids, std::int64_t block_size) {
    return {law, ctxpar::table_2d(ids.data(), 1, static_cast<std::int64_t>(ids.size()), block_size), 0, -1};
}

std::vector<whole_block> whole_blocks(const paged_request& from, const paged_request& to, std::int64_t first,
                                      std::int64_t end) {
    std::vector<whole_block> all;
    ctxpar::for_each_whole_block(from, to, first, end, [&](const whole_block& block) { all.push_back(block); });
    return all;
}

} // namespace

TEST_CASE("the runs of one pair of shards are those of the whole plan") {
    for (const std::int64_t from_ranks : {1, 2, 3, 4, 7, 8})
        for (const std::int64_t to_ranks : {1, 2, 3, 4, 7, 8})
            for (const std::int64_t from_interleave : {1, 2, 3, 4, 16, 64})
                for (const std::int64_t to_interleave : {1, 2, 3, 4, 16, 64}) {
                    const reshard_law law{{from_ranks, from_interleave}, {to_ranks, to_interleave}};
                    CAPTURE(from_ranks);
                    CAPTURE(from_interleave);
                    CAPTURE(to_ranks);
                    CAPTURE(to_interleave);
                    check_pairs(law, 0, 517);
                    check_pairs(law, 131, 300);
                    check_pairs(law, 300, 300);
                }
    std::mt19937 random(3);
    for (int repeat = 0; repeat < 2000; ++repeat) {
        const reshard_law law{{draw(random, 1, 9), draw(random, 1, 40)}, {draw(random, 1, 9), draw(random, 1, 40)}};
        const std::int64_t first = draw(random, 0, 500);
        check_pairs(law, first, first + draw(random, 0, 500));
    }
}

TEST_CASE("runs of one pair at the far end of 63 bits") {
    constexpr std::int64_t huge = std::int64_t{1} << 61;
    for (const reshard_law& law :
         {reshard_law{{3, 2}, {5, 1}}, reshard_law{{1, 1}, {8, 16}}, reshard_law{{2, huge}, {3, 5}},
          reshard_law{{2, 7}, {3, huge}}, reshard_law{{4, huge - 1}, {2, 1}}, reshard_law{{6, 4}, {6, 4}},
          reshard_law{{1, huge}, {1, 3}}}) {
        check_pairs(law, largest - 150, largest);
        check_pairs(law, huge - 70, huge + 70);
    }
}

TEST_CASE("whole blocks sent by each rank, of 16 tokens on 4 ranks") {
    // As many as a rank has blocks with a token: with an interleave of 1 all ranks send for a short sequence.
    numbers source(64), target(64);
    std::iota(source.begin(), source.end(), 5);
    std::iota(target.begin(), target.end(), 100);
    const auto sent = [&](std::int64_t interleave, std::int64_t length) {
        numbers per_rank(4, 0);
        for (const whole_block& block :
             whole_blocks(paged({4, interleave}, source, 16), paged({4, interleave}, target, 16), 0, length)) {
            CHECK(block.src_shard == block.dst_shard);
            CHECK(block.dst_block == block.src_block + 95);
            ++per_rank[static_cast<std::size_t>(block.src_shard)];
        }
        return per_rank;
    };
    CHECK(sent(1, 16) == numbers{1, 1, 1, 1});
    CHECK(sent(1, 40) == numbers{1, 1, 1, 1});
    CHECK(sent(1, 100) == numbers{2, 2, 2, 2});
    CHECK(sent(1, 1000) == numbers{16, 16, 16, 16});
    CHECK(sent(16, 16) == numbers{1, 0, 0, 0});
    CHECK(sent(16, 40) == numbers{1, 1, 1, 0});
    CHECK(sent(16, 100) == numbers{2, 2, 2, 1});
    CHECK(sent(16, 1000) == numbers{16, 16, 16, 15});
    CHECK(sent(16, 0) == numbers{0, 0, 0, 0});
}

TEST_CASE("whole blocks between other numbers of ranks, worked by hand") {
    const numbers one = {9, 8, 7, 6, 5}, two = {1, 3, 2};
    // Blocks of 4 tokens: rank 0 of 2 holds tokens 0-3, 8-11, 16; rank 1 tokens 4-7, 12-15.
    CHECK(whole_blocks(paged({1, 3}, one, 4), paged({2, 4}, two, 4), 0, 17) ==
          std::vector<whole_block>{{0, 9, 0, 1}, {0, 7, 0, 3}, {0, 5, 0, 2}, {0, 8, 1, 1}, {0, 6, 1, 3}});
    CHECK(whole_blocks(paged({2, 4}, two, 4), paged({1, 3}, one, 4), 0, 17) ==
          std::vector<whole_block>{{0, 1, 0, 9}, {0, 3, 0, 7}, {0, 2, 0, 5}, {1, 1, 0, 8}, {1, 3, 0, 6}});
    // The block of a range's first token goes whole, those before it do not go.
    CHECK(whole_blocks(paged({1, 3}, one, 4), paged({2, 4}, two, 4), 6, 9) ==
          std::vector<whole_block>{{0, 7, 0, 3}, {0, 8, 1, 1}});
    // Interleaves of several blocks.
    CHECK(whole_blocks(paged({2, 8}, two, 4), paged({2, 4}, two, 4), 0, 9) ==
          std::vector<whole_block>{{0, 1, 0, 1}, {0, 3, 1, 1}, {1, 1, 0, 3}});
}

TEST_CASE("what whole blocks can not do is refused with the reason") {
    const numbers ids = {0, 1, 2, 3}, shorter = {0};
    int visits = 0;
    const auto refused = [&](const paged_request& from, const paged_request& to) {
        return refusal_of(
            [&] { ctxpar::for_each_whole_block(from, to, 0, 16, [&](const whole_block&) { ++visits; }); });
    };
    CHECK(says(refused(paged({2, 4}, ids, 4), paged({2, 4}, ids, 2)), "whole_blocks", {"of 4 tokens", "of 2 tokens"}));
    CHECK(says(refused(paged({2, 2}, ids, 4), paged({4, 4}, ids, 4)), "whole_blocks",
               {"2 ranks with an interleave of 2", "4 ranks with an interleave of 4", "multiples"}));
    CHECK(says(refused(paged({2, 4}, ids, 4), paged({4, 6}, ids, 4)), "whole_blocks", {"interleave of 6"}));
    CHECK(says(refused(paged({1, 4}, ids, 4), paged({4, 1}, ids, 4)), "whole_blocks", {"interleave of 1"}));
    CHECK(says(refused(paged({2, 4}, shorter, 4), paged({4, 4}, ids, 4)), "table_too_short", {"1 blocks"}));
    CHECK(says(refusal_of([] { ctxpar::check_whole_blocks({{1, 1}, {2, 4}}, 0, 4); }), "block_size", {"0"}));
    CHECK(says(refusal_of([] { ctxpar::check_whole_blocks({{1, 1}, {2, 4}}, 4, 0); }), "block_size", {"0"}));
    // One layout, whatever its interleave; and one rank on a side.
    CHECK(refused(paged({2, 3}, ids, 4), paged({2, 3}, ids, 4)) == "none");
    CHECK(refused(paged({1, 3}, ids, 4), paged({1, 5}, ids, 4)) == "none");
    CHECK(refused(paged({1, 1}, ids, 4), paged({4, 8}, ids, 4)) == "none");
}
