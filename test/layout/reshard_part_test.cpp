// One part of a re-sharding on one rank: slots grouped by peer and in token order, so that both ends of a pair mean the
// same tokens; and the first fault of its tables.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <ctxpar/layout/reshard_part.hpp>

using namespace ctxpar;

namespace {

using numbers = std::vector<std::int64_t>;

struct side {
    std::int64_t ranks, interleave, block, first;
};

struct part {
    numbers from_ids, to_ids, from_slots, to_slots, cursors;
    reshard_args args;
    reshard_status status;

    // Tokens [first, end) of `length`, as one rank of a domain has them; block b of the source has the id 2b + 1, of
    // the target 100 + 3b.
    part(const side& from, const side& to, std::int64_t ranks, std::int64_t rank, std::int64_t first, std::int64_t end,
         std::int64_t length) {
        for (std::int64_t b = 0; b < 40; ++b) {
            from_ids.push_back(2 * b + 1);
            to_ids.push_back(100 + 3 * b);
        }
        from_slots.assign(static_cast<std::size_t>(end - first), -9);
        to_slots = from_slots;
        cursors.assign(static_cast<std::size_t>(ranks), 77);
        args.from = {{from.ranks, from.interleave}, from.first, table_2d(from_ids.data(), 1, 40, from.block), 0};
        args.to = {{to.ranks, to.interleave}, to.first, table_2d(to_ids.data(), 1, 40, to.block), 0};
        args.rank = rank;
        args.ranks = ranks;
        args.first = first;
        args.end = end;
        args.length = length;
        args.from_blocks = args.to_blocks = 300;
        args.one_pool = false;
        args.known.facts = 5;
        args.out = {from_slots.data(), to_slots.data(), cursors.data(), &status};
    }
    part(const part&) = delete;

    reshard_status run() {
        write_reshard(args);
        return status;
    }
};

// Slots as the law says: token by token, by peer and then those that stay. Peers, slots.
std::pair<numbers, numbers> due(const side& own, const side& other, std::int64_t rank, std::int64_t first,
                                std::int64_t end, std::int64_t id_step, std::int64_t first_id) {
    std::vector<std::tuple<bool, std::int64_t, std::int64_t, std::int64_t>> rows; // stays, peer, token, slot
    for (std::int64_t p = first; p < end; ++p) {
        if (own.first + p / own.interleave % own.ranks != rank) continue;
        const std::int64_t local = p / (own.ranks * own.interleave) * own.interleave + p % own.interleave;
        const std::int64_t peer = other.first + p / other.interleave % other.ranks;
        const std::int64_t id = first_id + id_step * (local / own.block);
        rows.emplace_back(peer == rank, peer, p, id * own.block + local % own.block);
    }
    std::sort(rows.begin(), rows.end());
    std::pair<numbers, numbers> all;
    for (const auto& [stays, peer, token, slot] : rows) {
        all.first.push_back(peer);
        all.second.push_back(slot);
    }
    return all;
}

std::string fault_of(part& p) {
    const reshard_status found = p.run();
    const char* const names[] = {"none", "from_too_short", "to_too_short", "from_block", "to_block", "overlap"};
    return std::string(names[static_cast<int>(found.fault)]) + " " + std::to_string(found.block) + " " +
           std::to_string(found.value);
}

} // namespace

TEST_CASE("Slots are grouped by peer, in token order, and those of rows that stay are last") {
    const std::pair<side, side> changes[] = {{{1, 1, 4, 0}, {2, 1, 4, 0}}, {{2, 3, 2, 1}, {4, 5, 8, 0}},
                                             {{4, 4, 4, 0}, {2, 4, 8, 1}}, {{3, 2, 5, 1}, {3, 2, 3, 0}},
                                             {{3, 2, 5, 1}, {3, 2, 3, 1}}, {{1, 7, 4, 3}, {1, 2, 4, 1}}};
    for (const auto& [from, to] : changes)
        for (std::int64_t rank = 0; rank < 4; ++rank)
            for (const auto& [first, end] :
                 {std::pair<std::int64_t, std::int64_t>{0, 50}, {13, 14}, {7, 61}, {20, 20}}) {
                part p(from, to, 4, rank, first, end, 61);
                CHECK(p.run().fault == reshard_fault::none);
                CHECK(p.status.facts == 5);
                const auto [to_peers, leaving] = due(from, to, rank, first, end, 2, 1);
                const auto [from_peers, arriving] = due(to, from, rank, first, end, 3, 100);
                p.from_slots.resize(leaving.size());
                p.to_slots.resize(arriving.size());
                CHECK(p.from_slots == leaving);
                CHECK(p.to_slots == arriving);
            }
}

TEST_CASE("A rank that has refused writes its status and looks at nothing") {
    part p({2, 1, 4, 0}, {1, 1, 4, 0}, 2, 0, 0, 10, 10);
    p.args.from.table = {};
    p.args.from.table.block_size = 0;
    p.args.known.code[0] = 'x';
    CHECK(p.run().code[0] == 'x');
    CHECK(p.status.facts == 5);
    CHECK(p.status.fault == reshard_fault::none);
    CHECK(p.from_slots == numbers(10, -9));
    CHECK(p.to_slots == numbers(10, -9));
}

TEST_CASE("The first fault is that of the smaller kind, and of the first block") {
    const side from{2, 1, 4, 0}, to{1, 1, 5, 1};
    const auto spoilt = [&](const auto& spoil) {
        part p(from, to, 2, 1, 8, 20, 40); // 20 tokens in 5 blocks of 4 here, 40 in 8 blocks of 5
        spoil(p);
        return fault_of(p);
    };
    CHECK(spoilt([](part&) {}) == "none -1 0");
    CHECK(spoilt([](part& p) { p.args.from.table.columns = 4; }) == "from_too_short 4 4");
    CHECK(spoilt([](part& p) { p.args.from.table.columns = 5; }) == "none -1 0");
    CHECK(spoilt([](part& p) { p.args.to.table.columns = 7; }) == "to_too_short 7 7");
    CHECK(spoilt([](part& p) { p.args.to.table.columns = 8; }) == "none -1 0");
    CHECK(spoilt([](part& p) { p.from_ids[4] = p.from_ids[3] = -2; }) == "from_block 3 -2");
    CHECK(spoilt([](part& p) { p.from_ids[5] = -2; }) == "none -1 0");
    CHECK(spoilt([](part& p) { p.to_ids[7] = p.to_ids[6] = 300; }) == "to_block 6 300");
    CHECK(spoilt([](part& p) { p.to_ids[7] = 299; }) == "none -1 0");
    CHECK(spoilt([](part& p) { p.to_ids[0] = p.from_ids[4] = -1; }) == "from_block 4 -1");
    CHECK(spoilt([](part& p) { p.args.to.table.columns = p.args.from.table.columns = 1; }) == "from_too_short 4 1");
    // Behind a window, before it nothing is looked at: 10 local tokens are left out, two whole blocks of them.
    CHECK(spoilt([](part& p) {
              p.args.kept = p.args.first = p.args.end = 20;
              p.from_ids[0] = p.from_ids[1] = p.to_ids[3] = -1;
          }) == "none -1 0");
    CHECK(spoilt([](part& p) {
              p.args.kept = p.args.first = p.args.end = 20;
              p.from_ids[2] = -1;
          }) == "from_block 2 -1");
}

TEST_CASE("A target block may not lie in a source block of the same pool, where it is written now") {
    const side from{2, 1, 4, 0}, to{1, 1, 5, 1};
    const auto spoilt = [&](const auto& spoil) {
        part p(from, to, 2, 1, 8, 20, 40); // writes target blocks 1 to 3; reads source blocks 0 to 4
        p.args.one_pool = true;
        spoil(p);
        return fault_of(p);
    };
    CHECK(spoilt([](part&) {}) == "none -1 0");
    CHECK(spoilt([](part& p) { p.to_ids[2] = 3; }) == "overlap 1 2"); // slots 15 to 19; block 1 has 12 to 15
    CHECK(spoilt([](part& p) { p.to_ids[2] = 4; }) == "overlap 2 2"); // slots 20 to 24; block 2 has 20 to 23
    // Slots 500 to 504 of the target, next to 496 to 499 of the source, and over 500 to 503 and 504 to 507.
    const auto near_target = [&](std::int64_t id) {
        return spoilt([&](part& p) {
            p.to_ids[2] = 100;
            p.from_ids[3] = id;
        });
    };
    CHECK(near_target(124) == "none -1 0");
    CHECK(near_target(125) == "overlap 3 2");
    CHECK(near_target(126) == "overlap 3 2");
    CHECK(near_target(127) == "none -1 0");
    CHECK(spoilt([](part& p) { p.to_ids[0] = p.to_ids[4] = 3; }) == "none -1 0"); // in other steps
    CHECK(spoilt([](part& p) {
              p.to_ids[2] = 3;
              p.args.one_pool = false;
          }) == "none -1 0");
}
