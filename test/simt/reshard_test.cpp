// The arrays of a part of a re-sharding by the device kernel are those of the host, also where a rank has more rows
// than a warp has lanes, and of several faults it is the same one.
#include <ctxpar/cuda.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

using namespace ctxpar;

namespace {

using numbers = std::vector<std::int64_t>;

struct output {
    numbers from_slots, to_slots, cursors;
    reshard_status status;

    explicit output(const reshard_args& args)
        : from_slots(static_cast<std::size_t>(args.end - args.first), -9), to_slots(from_slots),
          cursors(static_cast<std::size_t>(args.ranks)) {}
    reshard_arrays arrays() { return {from_slots.data(), to_slots.data(), cursors.data(), &status}; }
};

void check_same(reshard_args args) {
    output due(args), got(args);
    args.out = due.arrays();
    write_reshard(args);
    args.out = got.arrays();
    cuda_backend().reshard_metadata(args, nullptr);
    CHECK(got.status.facts == due.status.facts);
    CHECK(got.status.fault == due.status.fault);
    CHECK(got.status.block == due.status.block);
    CHECK(got.status.value == due.status.value);
    CHECK(std::memcmp(got.status.code, due.status.code, sizeof(due.status.code)) == 0);
    CHECK(got.from_slots == due.from_slots);
    CHECK(got.to_slots == due.to_slots);
}

struct tables {
    numbers from, to;

    explicit tables(std::uint32_t seed) {
        std::mt19937 random(seed);
        for (std::int64_t i = 0; i < 300; ++i) from.push_back(i);
        std::shuffle(from.begin(), from.end(), random);
        for (const std::int64_t id : from) to.push_back(id + 300);
    }
    reshard_args args(const ownership& a, std::int64_t a_first, const ownership& b, std::int64_t b_first,
                      std::int64_t ranks, std::int64_t rank) const {
        reshard_args all;
        all.from = {a, a_first, table_2d(from.data(), 1, 300, 3), 0};
        all.to = {b, b_first, table_2d(to.data(), 1, 300, 4), 0};
        all.rank = rank;
        all.ranks = ranks;
        all.from_blocks = all.to_blocks = 1000;
        all.known.facts = 11;
        return all;
    }
};

} // namespace

TEST_CASE("slots of a part are those of the host") {
    const tables memory(3);
    const ownership laws[] = {{1, 1}, {2, 1}, {2, 40}, {3, 7}, {5, 2}};
    for (const ownership& from : laws)
        for (const ownership& to : laws)
            for (std::int64_t rank = 0; rank < 6; ++rank)
                for (const auto& [first, end] : {std::pair<std::int64_t, std::int64_t>{0, 150}, {31, 32}, {97, 410}}) {
                    reshard_args args = memory.args(from, rank % 2, to, 6 - to.ranks, 6, rank);
                    args.first = first;
                    args.end = end;
                    args.length = end + 20;
                    args.one_pool = from.interleave == 1;
                    check_same(args);
                }
}

TEST_CASE("of many faults the same one is told as on the host") {
    for (std::uint32_t seed = 0; seed < 40; ++seed) {
        tables memory(seed);
        std::mt19937 random(seed);
        const auto any = [&](std::int64_t count) { return static_cast<std::size_t>(random() % count); };
        for (std::size_t i = 0; i < seed % 4; ++i) memory.from[any(130)] = -1 - static_cast<std::int64_t>(i);
        for (std::size_t i = 0; i < seed % 5; ++i) memory.to[any(100)] = 2000 + static_cast<std::int64_t>(i);
        for (std::size_t i = 0; i < seed % 3; ++i) memory.to[any(100)] = memory.from[any(130)];
        reshard_args args = memory.args({1, 1}, 1, {1, 1}, 1, 2, 1);
        args.first = 20;
        args.end = 380;
        args.length = 400;
        args.from.table.columns = seed % 7 == 6 ? 100 : 300;
        args.to.table.columns = seed % 6 == 5 ? 90 : 300;
        check_same(args);
        args.known.code[0] = 'x'; // the host has refused: nothing is looked at
        args.from.table = args.to.table = {};
        check_same(args);
    }
}
