// Block tables and slots against worked numbers and the law that no two tokens share a slot.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/paged.hpp>

namespace {

using ctxpar::block_table;
using ctxpar::ownership;
using ctxpar::shard;
using numbers = std::vector<std::int64_t>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

numbers range(std::int64_t first, std::int64_t last) {
    numbers result(static_cast<std::size_t>(last - first));
    std::iota(result.begin(), result.end(), first);
    return result;
}

// The slots of `positions` on one rank, with a table of one request.
numbers slots_on(const ownership& law, std::int64_t rank, std::int64_t block_size, const numbers& ids,
                 const numbers& positions) {
    const shard part{law.ranks, rank, law.interleave};
    const block_table table = ctxpar::table_2d(ids.data(), 1, static_cast<std::int64_t>(ids.size()), block_size);
    numbers slots(positions.size(), -9);
    ctxpar::map_slots(part, table, 0, positions, slots);
    for (std::size_t i = 0; i < positions.size(); ++i) CHECK(slots[i] == ctxpar::slot_of(part, table, 0, positions[i]));
    return slots;
}

struct placed {
    std::int64_t position;
    std::int64_t rank;
    std::int64_t slot;
};

// Each position has its slot on its rank and -1 on all others.
void check_placed(const ownership& law, std::int64_t block_size, const numbers& ids,
                  std::initializer_list<placed> expected) {
    for (const placed& e : expected) {
        for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
            CAPTURE(e.position);
            CAPTURE(rank);
            CHECK(slots_on(law, rank, block_size, ids, {e.position}) == numbers{rank == e.rank ? e.slot : -1});
        }
    }
}

// The config_error that `body` throws; its code is "" without one.
template <class Body>
ctxpar::config_error refusal(Body body) {
    try {
        body();
    } catch (const ctxpar::config_error& problem) {
        return problem;
    }
    return ctxpar::config_error("", "");
}

bool names(const ctxpar::config_error& problem, const std::string& text) {
    return std::string(problem.what()).find(text) != std::string::npos;
}

} // namespace

TEST_CASE("slots where the interleave divides the block") {
    const numbers ids = {7, 3, 24};
    check_placed({4, 4}, 16, ids, {{0, 0, 112},  {3, 0, 115},  {4, 1, 112},  {7, 1, 115},  {8, 2, 112},  {11, 2, 115},
                                   {12, 3, 112}, {15, 3, 115}, {16, 0, 116}, {19, 0, 119}, {20, 1, 116}, {23, 1, 119},
                                   {27, 2, 119}, {60, 3, 124}, {63, 3, 127}, {64, 0, 48},  {67, 0, 51},  {68, 1, 48},
                                   {79, 3, 51},  {80, 0, 52},  {127, 3, 63}, {128, 0, 384}});
    check_placed({4, 1}, 16, ids,
                 {{20, 0, 117},
                  {27, 3, 118},
                  {60, 0, 127},
                  {61, 1, 127},
                  {62, 2, 127},
                  {63, 3, 127},
                  {64, 0, 48},
                  {128, 0, 384}});
    check_placed({2, 16}, 16, ids,
                 {{0, 0, 112}, {15, 0, 127}, {16, 1, 112}, {31, 1, 127}, {32, 0, 48}, {63, 1, 63}, {64, 0, 384}});
    check_placed({4, 4}, 4, {0, 96, 0, 0}, {{20, 1, 384}});
}

TEST_CASE("slots where the interleave is the block, or larger, or does not divide it") {
    check_placed({2, 32}, 32, {5, 9},
                 {{0, 0, 160},
                  {15, 0, 175},
                  {16, 0, 176},
                  {31, 0, 191},
                  {32, 1, 160},
                  {48, 1, 176},
                  {63, 1, 191},
                  {64, 0, 288}});
    check_placed({2, 5}, 16, {10, 11, 12, 13},
                 {{0, 0, 160},
                  {4, 0, 164},
                  {5, 1, 160},
                  {9, 1, 164},
                  {10, 0, 165},
                  {30, 0, 175},
                  {31, 0, 176},
                  {32, 0, 177},
                  {33, 0, 178},
                  {34, 0, 179},
                  {35, 1, 175},
                  {39, 1, 179},
                  {40, 0, 180}});
    // Block 32 with kernel blocks of 16: the law keeps the manager's block, so position 32 stays on rank 1.
    check_placed({2, 32}, 32, {5, 9}, {{32, 1, 160}});
    const numbers tokens = range(0, 14);
    CHECK(slots_on({2, 3}, 0, 4, {5, 2, 7}, tokens) == numbers{20, 21, 22, -1, -1, -1, 23, 8, 9, -1, -1, -1, 10, 11});
    CHECK(slots_on({2, 3}, 1, 4, {5, 2, 7}, tokens) == numbers{-1, -1, -1, 20, 21, 22, -1, -1, -1, 23, 8, 9, -1, -1});
}

TEST_CASE("whole rows of slots worked by hand") {
    const numbers ids = {5, 2};
    const numbers twelve = range(0, 12);
    CHECK(slots_on({2, 1}, 0, 4, ids, twelve) == numbers{20, -1, 21, -1, 22, -1, 23, -1, 8, -1, 9, -1});
    CHECK(slots_on({2, 1}, 1, 4, ids, twelve) == numbers{-1, 20, -1, 21, -1, 22, -1, 23, -1, 8, -1, 9});
    CHECK(slots_on({2, 2}, 0, 4, ids, twelve) == numbers{20, 21, -1, -1, 22, 23, -1, -1, 8, 9, -1, -1});
    CHECK(slots_on({2, 2}, 1, 4, ids, twelve) == numbers{-1, -1, 20, 21, -1, -1, 22, 23, -1, -1, 8, 9});
    CHECK(slots_on({2, 4}, 0, 4, ids, twelve) == numbers{20, 21, 22, 23, -1, -1, -1, -1, 8, 9, 10, 11});
    CHECK(slots_on({2, 4}, 1, 4, ids, twelve) == numbers{-1, -1, -1, -1, 20, 21, 22, 23, -1, -1, -1, -1});
    CHECK(slots_on({2, 4}, 0, 4, {3}, range(0, 8)) == numbers{12, 13, 14, 15, -1, -1, -1, -1});
    CHECK(slots_on({2, 4}, 1, 4, {3}, range(0, 8)) == numbers{-1, -1, -1, -1, 12, 13, 14, 15});
    CHECK(slots_on({2, 2}, 1, 4, {0}, {2}) == numbers{0});
    CHECK(slots_on({2, 2}, 0, 4, ids, range(5, 10)) == numbers{23, -1, -1, 8, 9});
    CHECK(slots_on({2, 2}, 1, 4, ids, range(5, 10)) == numbers{-1, 22, 23, -1, -1});
    CHECK(slots_on({4, 1}, 0, 4, {0}, range(0, 10)) == numbers{0, -1, -1, -1, 1, -1, -1, -1, 2, -1});
    CHECK(slots_on({4, 1}, 3, 4, {0}, range(0, 10)) == numbers{-1, -1, -1, 0, -1, -1, -1, 1, -1, -1});
    CHECK(slots_on({2, 32}, 0, 32, {0, 1}, {0, 31, 32, 63, 64}) == numbers{0, 31, -1, -1, 32});
    CHECK(slots_on({2, 32}, 1, 32, {0, 1}, {0, 31, 32, 63, 64}) == numbers{-1, -1, 0, 31, -1});
    // Below and above what one rank's block could hold of global positions.
    check_placed({8, 1}, 16, {0}, {{13, 5, 1}, {127, 7, 15}});
}

TEST_CASE("slots past 32 bits") {
    check_placed({1, 1}, 16, {134'217'728}, {{0, 0, 2'147'483'648}});
    check_placed({2, 1}, 1'073'741'824, {0, 3}, {{2'147'483'649, 1, 3'221'225'472}});
    const std::vector<std::int32_t> ids = {std::numeric_limits<std::int32_t>::max()};
    CHECK(ctxpar::table_2d(ids.data(), 1, 1, 65'536).slot(0, 65'535) == 140'737'488'355'327); // 2^31 blocks of 2^16
}

TEST_CASE("no two tokens share a slot on a rank, and all slots lie in the request's own blocks") {
    for (const std::int64_t block_size : {1, 4, 16, 64}) {
        for (const std::int64_t interleave : {1, 3, 4, 5, 16, 64}) {
            for (const std::int64_t ranks : {1, 2, 3, 8}) {
                const ownership law{ranks, interleave};
                constexpr std::int64_t length = 700;
                const std::int64_t width = ctxpar::table_width(law, block_size, length);
                // Two requests whose blocks are dealt from a shuffled pool.
                numbers pool = range(0, 2 * width + 3);
                for (std::size_t i = 0; i < pool.size(); ++i) std::swap(pool[i], pool[(i * 37 + 11) % pool.size()]);
                const block_table table = ctxpar::table_2d(pool.data(), 2, width, block_size);
                for (std::int64_t rank = 0; rank < ranks; ++rank) {
                    std::set<std::int64_t> used;
                    std::int64_t tokens = 0;
                    int wrong = 0;
                    for (std::int64_t request = 0; request < 2; ++request) {
                        std::set<std::int64_t> own(pool.begin() + request * width,
                                                   pool.begin() + (request + 1) * width);
                        for (std::int64_t position = 0; position < length; ++position) {
                            const std::int64_t slot =
                                ctxpar::slot_of({ranks, rank, interleave}, table, request, position);
                            if (slot < 0) continue;
                            ++tokens;
                            used.insert(slot);
                            wrong += own.count(slot / block_size) != 1;
                        }
                    }
                    REQUIRE(wrong == 0);
                    REQUIRE(static_cast<std::int64_t>(used.size()) == tokens);
                    REQUIRE(tokens == 2 * law.local_len(length, rank));
                }
            }
        }
    }
}

TEST_CASE("consecutive tokens of a rank fill its blocks in order") {
    const numbers ids = {4, 9, 2, 7, 11, 30, 1, 0, 8, 6};
    for (const std::int64_t block_size : {1, 4, 16}) {
        const block_table table = ctxpar::table_2d(ids.data(), 1, 10, block_size);
        for (const ownership law : {ownership{2, 3}, ownership{3, 1}, ownership{2, 16}}) {
            numbers expected;
            for (const std::int64_t id : ids)
                for (std::int64_t offset = 0; offset < block_size; ++offset)
                    expected.push_back(id * block_size + offset);
            for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
                numbers found;
                for (std::int64_t position = 0; law.local(position) < 10 * block_size; ++position)
                    if (law.owner(position) == rank)
                        found.push_back(ctxpar::slot_of({law.ranks, rank, law.interleave}, table, 0, position));
                REQUIRE(std::equal(found.begin(), found.end(), expected.begin()));
            }
        }
    }
}

TEST_CASE_TEMPLATE("the forms of a table agree for every integer type", Int, std::int32_t, std::uint32_t,
                   std::int64_t) {
    // Rows of 3, 0 and 2 blocks; the 2-D form has rows of 3 usable columns, 5 apart, and junk between.
    const std::vector<Int> list = {7, 3, 24, 9, 1};
    const std::vector<std::int32_t> offsets32 = {0, 3, 3, 5};
    const std::vector<std::int64_t> offsets64 = {0, 3, 3, 5};
    const std::vector<Int> plane = {7, 3, 24, 99, 98, 97, 96, 95, 94, 93, 9, 1, 92};
    const block_table csr32 = ctxpar::table_csr(list.data(), offsets32.data(), 3, 16);
    const block_table csr64 = ctxpar::table_csr(list.data(), offsets64.data(), 3, 16);
    const block_table flat = ctxpar::table_2d(plane.data(), 3, 3, 16, 5);
    CHECK(csr32.blocks_of(0) == 3);
    CHECK(csr32.blocks_of(1) == 0);
    CHECK(csr64.blocks_of(2) == 2);
    CHECK(flat.blocks_of(1) == 3);
    for (const std::int64_t request : {0, 2}) {
        for (std::int64_t block = 0; block < csr32.blocks_of(request); ++block) {
            const std::int64_t expected = request == 0 ? numbers{7, 3, 24}[static_cast<std::size_t>(block)]
                                                       : numbers{9, 1}[static_cast<std::size_t>(block)];
            CHECK(csr32.id(request, block) == expected);
            CHECK(csr64.id(request, block) == expected);
            CHECK(flat.id(request, block) == expected);
            CHECK(flat.slot(request, block * 16 + 5) == expected * 16 + 5);
        }
    }
    const block_table shared = ctxpar::table_2d(plane.data(), 4, 3, 16, 0); // one row for all requests
    CHECK(shared.id(3, 2) == 24);
}

TEST_CASE("an integer type is read at its own width and sign") {
    const std::vector<std::uint32_t> big = {0xffff'ffffU, 0x8000'0000U};
    CHECK(ctxpar::index_of(big.data()).at(0) == 4'294'967'295);
    CHECK(ctxpar::index_of(big.data()).at(1) == 2'147'483'648);
    const std::vector<std::int32_t> negative = {5, -3};
    CHECK(ctxpar::index_of(negative.data()).at(1) == -3);
    const std::vector<std::int64_t> wide = {0, (std::int64_t{1} << 40) + 1};
    CHECK(ctxpar::index_of(wide.data()).at(1) == 1'099'511'627'777);
}

TEST_CASE("the identity table is the table that lists its own blocks") {
    numbers ids = range(0, 12);
    const block_table listed = ctxpar::table_2d(ids.data(), 3, 4, 8);
    const block_table identity = ctxpar::identity_table(3, 8, 4);
    for (std::int64_t request = 0; request < 3; ++request)
        for (std::int64_t index = 0; index < 32; ++index)
            CHECK(identity.slot(request, index) == listed.slot(request, index));
    CHECK(identity.blocks_of(2) == 4);
    // Contiguous KV: one page of 100 tokens a request.
    CHECK(ctxpar::identity_table(5, 100).slot(3, 42) == 342);
    // Requests with different numbers of blocks.
    const std::vector<std::int32_t> offsets = {0, 2, 2, 5};
    const block_table ragged = ctxpar::identity_table(offsets.data(), 3, 8);
    CHECK(ragged.blocks_of(0) == 2);
    CHECK(ragged.blocks_of(1) == 0);
    CHECK(ragged.id(2, 1) == 3);
    CHECK(ragged.slot(2, 9) == 25);
    static_assert(block_table{{}, {}, 3, 4, 0, 8}.slot(2, 9) == 73);
    static_assert(ctxpar::slot_of({2, 1, 4}, block_table{{}, {}, 1, 1, 0, 64}, 0, 13) == 5);
}

TEST_CASE("rows past the positions are -1, in both slot types") {
    const numbers ids = {5, 2};
    const block_table table = ctxpar::table_2d(ids.data(), 1, 2, 4);
    numbers slots(8, 77);
    ctxpar::map_slots({2, 0, 1}, table, 0, range(0, 8), slots);
    CHECK(slots == numbers{20, -1, 21, -1, 22, -1, 23, -1});
    ctxpar::map_slots({2, 0, 1}, table, 0, range(0, 5), slots);
    CHECK(slots == numbers{20, -1, 21, -1, 22, -1, -1, -1});
    std::vector<std::int32_t> narrow(6, 77);
    ctxpar::map_slots({2, 1, 1}, table, 0, range(0, 4), narrow);
    CHECK(narrow == std::vector<std::int32_t>{-1, 20, -1, 21, -1, -1});
    ctxpar::map_slots({2, 1, 1}, table, 0, {}, narrow);
    CHECK(narrow == std::vector<std::int32_t>(6, -1));
    CHECK(ctxpar::slot_of({1, 0, 1}, table, 0, -1) == -1); // a pad position is no row
}

TEST_CASE("mapping slots refuses what it can not map, and then writes nothing") {
    const numbers ids = {5, -2, 3};
    const block_table table = ctxpar::table_2d(ids.data(), 1, 3, 4);
    numbers slots(4, 77);
    const auto map = [&](std::int64_t request, const numbers& positions) {
        return refusal([&] { ctxpar::map_slots({1, 0, 1}, table, request, positions, slots); });
    };
    CHECK(map(0, {0, 1, 2, 3, 11}).code() == "slots");
    CHECK(map(1, {0}).code() == "request");
    CHECK(map(-1, {0}).code() == "request");
    CHECK(map(0, {0, 12}).code() == "table_too_short");
    CHECK(names(map(0, {0, 12}), "position 12"));
    CHECK(names(map(0, {0, 12}), "3 blocks"));
    CHECK(map(0, {0, -1}).code() == "position");
    CHECK(map(0, {0, 4}).code() == "table");
    CHECK(names(map(0, {0, 4}), "id -2"));
    CHECK(map(0, {-1, 4, 12}).code() == "table_too_short"); // the order of the rules, not of the positions
    CHECK(map(0, {4, -1}).code() == "position");
    CHECK(slots == numbers(4, 77));
    CHECK(map(0, {3, 8}).code() == "");
    CHECK(slots == numbers{23, 12, -1, -1});

    // A rank looks only at what it owns; the check for all ranks looks at everything.
    numbers one(1, 77);
    CHECK(refusal([&] { ctxpar::map_slots({2, 1, 1}, table, 0, numbers{24}, one); }).code() == "");
    CHECK(one == numbers{-1});
    CHECK(refusal([&] { ctxpar::map_slots({2, 0, 1}, table, 0, numbers{24}, one); }).code() == "table_too_short");
    CHECK(refusal([&] { ctxpar::check_positions({2, 1}, table, 0, numbers{24}); }).code() == "table_too_short");
    CHECK(refusal([&] { ctxpar::check_positions({2, 1}, table, 0, numbers{9}); }).code() == "table");
    CHECK(refusal([&] { ctxpar::check_positions({2, 1}, table, 0, numbers{0, 7}); }).code() == "");

    const block_table broken{ctxpar::index_of(ids.data()), {}, 1, 3, 3, 0};
    CHECK(refusal([&] { ctxpar::map_slots({1, 0, 1}, broken, 0, numbers{0}, slots); }).code() == "block_size");
}

TEST_CASE("32-bit slots that do not fit are refused, and 64-bit ones that pass 63 bits") {
    const numbers ids = {134'217'727, 134'217'728, largest / 16, largest};
    const block_table table = ctxpar::table_2d(ids.data(), 1, 4, 16);
    std::vector<std::int32_t> narrow(1, 77);
    numbers wide(1, 77);
    ctxpar::map_slots({1, 0, 1}, table, 0, numbers{15}, narrow);
    CHECK(narrow[0] == std::numeric_limits<std::int32_t>::max());
    const auto problem = refusal([&] { ctxpar::map_slots({1, 0, 1}, table, 0, numbers{16}, narrow); });
    CHECK(problem.code() == "slots");
    CHECK(names(problem, "2147483648"));
    CHECK(names(problem, "2147483647"));
    CHECK(narrow[0] == std::numeric_limits<std::int32_t>::max());
    ctxpar::map_slots({1, 0, 1}, table, 0, numbers{16}, wide);
    CHECK(wide[0] == 2'147'483'648);
    ctxpar::map_slots({1, 0, 1}, table, 0, numbers{47}, wide);
    CHECK(wide[0] == largest);
    CHECK(refusal([&] { ctxpar::map_slots({1, 0, 1}, table, 0, numbers{48}, wide); }).code() == "table");
}

TEST_CASE("a plan's check of a table names the request, the block and the pool") {
    const std::vector<std::int32_t> ids = {4, 9, -1, 0, 1, 2};
    const block_table table = ctxpar::table_2d(ids.data(), 2, 3, 4);
    const auto check = [&](std::int64_t request, std::int64_t tokens, std::int64_t pool) {
        return refusal([&] { ctxpar::check_table(table, request, tokens, pool); });
    };
    CHECK(check(0, 0, 1).code() == ""); // unused blocks are not looked at
    CHECK(check(0, 8, 10).code() == "");
    CHECK(check(0, 8, -1).code() == "");
    CHECK(check(0, 8, 9).code() == "table");
    CHECK(names(check(0, 8, 9), "block 1 of request 0 has the id 9"));
    CHECK(names(check(0, 8, 9), "the pool has 9 blocks"));
    CHECK(check(0, 9, 10).code() == "table");
    CHECK(names(check(0, 9, 10), "id -1"));
    CHECK(check(1, 12, 3).code() == "");
    CHECK(check(1, 13, 3).code() == "table_too_short");
    CHECK(names(check(1, 13, 3), "13 tokens"));
    CHECK(names(check(1, 13, 3), "3 blocks"));
    CHECK(check(2, 1, 3).code() == "request");
    CHECK(check(0, -1, 3).code() == "length");

    // A global length handed over in place of a local one: 17 tokens on 4 ranks are 5 on rank 0, in 2 blocks.
    const ownership law{4, 1};
    const block_table narrow = ctxpar::identity_table(1, 4, 2);
    CHECK(refusal([&] { ctxpar::check_table(narrow, 0, law.local_len(17, 0), -1); }).code() == "");
    CHECK(refusal([&] { ctxpar::check_table(narrow, 0, 17, -1); }).code() == "table_too_short");

    // Row offsets that would be read outside the list.
    const std::vector<std::int32_t> falling = {0, 4, 2};
    const std::vector<std::int32_t> negative = {-1, 2, 4};
    const block_table falls = ctxpar::table_csr(ids.data(), falling.data(), 2, 4);
    const block_table below = ctxpar::table_csr(ids.data(), negative.data(), 2, 4);
    CHECK(refusal([&] { ctxpar::check_table(falls, 1, 0, -1); }).code() == "table");
    CHECK(refusal([&] { ctxpar::check_table(below, 0, 4, -1); }).code() == "table");
}

TEST_CASE("tables are made from legal shapes only") {
    const std::vector<std::int32_t> ids = {1, 2, 3, 4};
    const std::int32_t* none = nullptr;
    CHECK(refusal([&] { ctxpar::table_2d(ids.data(), -1, 2, 4); }).code() == "size");
    CHECK(refusal([&] { ctxpar::table_2d(ids.data(), 2, -2, 4); }).code() == "size");
    CHECK(refusal([&] { ctxpar::table_2d(ids.data(), 2, 2, 0); }).code() == "block_size");
    CHECK(refusal([&] { ctxpar::table_2d(ids.data(), 2, 2, 4, 1); }).code() == "stride");
    CHECK(refusal([&] { ctxpar::table_2d(ids.data(), 2, 2, 4, -2); }).code() == "stride");
    CHECK(refusal([&] { ctxpar::table_2d(none, 2, 2, 4); }).code() == "null");
    CHECK(refusal([&] { ctxpar::table_2d(none, 0, 2, 4); }).code() == "");
    CHECK(refusal([&] { ctxpar::table_csr(ids.data(), none, 2, 4); }).code() == "null");
    CHECK(refusal([&] { ctxpar::table_csr(none, ids.data(), 2, 4); }).code() == "null");
    CHECK(refusal([&] { ctxpar::table_csr(ids.data(), ids.data(), 2, -4); }).code() == "block_size");
    CHECK(refusal([&] { ctxpar::identity_table(none, 2, 4); }).code() == "null");
    CHECK(refusal([&] { ctxpar::identity_table(2, 0); }).code() == "block_size");
    CHECK(refusal([&] { ctxpar::identity_table(-2, 4); }).code() == "size");
}
