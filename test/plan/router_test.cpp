// The decisions of a router, against costs added up by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/plan/router.hpp>

#include "counted_allocations.hpp"
#include "near.hpp"
#include "refusal.hpp"
#include "routing_setting.hpp"

using namespace ctxpar;
using ctxpar_test::exchange_by_hand;
using ctxpar_test::near;
using ctxpar_test::refusal_of;
using ctxpar_test::routing_machine;
using ctxpar_test::routing_model;
using ctxpar_test::routing_options;
using ctxpar_test::says;

namespace {

// Blocks of 16 tokens.
router router_of(std::int64_t ranks, std::int64_t capacity = 1000, router_options options = routing_options(),
                 std::vector<std::int64_t> sizes = {}) {
    return {routing_machine(), routing_model(), {ranks, 1, 16, capacity, std::move(sizes)}, options};
}

placement placed(router& routes, std::int64_t id, std::int64_t tokens, std::int64_t tokens_at_end = 0) {
    const route_decision decision = routes.admit(id, tokens, tokens_at_end);
    REQUIRE(decision.outcome == route_outcome::placed);
    CHECK(routes.request(id).at == decision.at);
    return decision.at;
}

std::vector<std::int64_t> blocks_of(const router& routes, std::int64_t ranks) {
    std::vector<std::int64_t> blocks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) blocks.push_back(routes.load(rank).blocks);
    return blocks;
}

using numbers = std::vector<std::int64_t>;

// 593.6 tokens take as long on one rank as on two.
constexpr double break_even_tokens = 14.84 * 40;

// Carries out the move that is due, if any.
bool move_if_due(router& routes, std::int64_t id) {
    const std::optional<route_move> move = routes.review(id);
    if (!move) return false;
    REQUIRE(routes.begin_move(id, move->to));
    routes.end_move(id);
    return true;
}

void set_length(router& routes, std::int64_t id, std::int64_t length) {
    const std::int64_t now = routes.request(id).tokens;
    if (length < now)
        routes.shrink(id, now - length);
    else
        REQUIRE(routes.grow(id, length - now));
}

} // namespace

TEST_CASE("A short request gets one rank, a longer one the size with the least time") {
    router routes = router_of(4, 1000, routing_options(), {2, 1});
    CHECK(placed(routes, 1, 0) == placement{0, 1});
    CHECK(placed(routes, 2, 593).ranks == 1);
    const route_decision decision = routes.admit(3, 594);
    CHECK(decision.id == 3);
    CHECK(decision.tokens == 594);
    CHECK(decision.reserved == 594);
    CHECK(decision.at == placement{2, 2});
    CHECK(near(decision.step_us, 2 * (3 + 297 / 20.0 + 14.84)));
    REQUIRE(decision.sizes.size() == 2);
    CHECK(near(decision.sizes[0].step_us, 2 * (3 + 594 / 20.0)));
    CHECK(near(decision.sizes[1].step_us, decision.step_us));
    router more = router_of(4);
    CHECK(placed(more, 1, 396).ranks == 1);
    CHECK(placed(more, 2, 400).ranks == 4);       // 3 + 100 / 20 + 14.924 < 3 + 20
    CHECK(placed(more, 3, 396, 5000).ranks == 1); // its length now decides
}

TEST_CASE("A place is where the busiest rank stays least busy, then where most blocks are left, then the lowest") {
    router routes = router_of(4, 1000, routing_options(), {1, 2});
    CHECK(placed(routes, 1, 100) == placement{0, 1});
    CHECK(placed(routes, 2, 100) == placement{1, 1});
    CHECK(placed(routes, 3, 50) == placement{2, 1});
    CHECK(placed(routes, 4, 300) == placement{3, 1});
    CHECK(placed(routes, 5, 10) == placement{2, 1});
    CHECK(placed(routes, 6, 1000) == placement{0, 2}); // 100 and 100 against 60 and 300
    // Requests that only reserve are no load; blocks decide between equals.
    router reserved = router_of(3, 1000, routing_options(), {1});
    CHECK(placed(reserved, 1, 10, 320) == placement{0, 1});
    CHECK(placed(reserved, 2, 10, 160) == placement{1, 1});
    CHECK(placed(reserved, 3, 10, 480) == placement{2, 1});
    CHECK(placed(reserved, 4, 0, 0) == placement{1, 1});
}

TEST_CASE("Requests of one group share its exchange, so a group in use is no worse than another") {
    router routes = router_of(4, 1000, routing_options(), {1, 2});
    CHECK(placed(routes, 1, 1000) == placement{0, 2});
    CHECK(placed(routes, 2, 500) == placement{2, 1});
    // 3 + (500 + 300) / 20 + one exchange on ranks 0 and 1; 3 + (500 + 300) / 20 + another on rank 2
    CHECK(placed(routes, 3, 600).first == 2);
    CHECK(placed(routes, 4, 600) == placement{0, 2});
    CHECK(near(routes.load(0).step_us, 2 * (3 + 800 / 20.0 + ctxpar_test::exchange_by_hand(2, 2))));
}

TEST_CASE("Without room at the best size the next best is taken; without any the request waits") {
    router routes = router_of(4, 10, routing_options(), {1, 2, 4}); // 160 tokens a rank
    CHECK(placed(routes, 1, 100) == placement{0, 1});
    CHECK(placed(routes, 2, 200) == placement{2, 2}); // one rank has no room for 200
    CHECK(blocks_of(routes, 4) == numbers{7, 0, 7, 7});
    const numbers before = blocks_of(routes, 4);
    const route_decision large = routes.admit(3, 400); // 200 on 2 ranks; 100, 7 blocks, on 4
    CHECK(large.outcome == route_outcome::wait);
    CHECK(says("x: " + explain(large), "x",
               {"request 3 of 400 tokens waits", "CP 1", "needs 25 blocks a rank, which has 10", "CP 2", "needs 13",
                "CP 4", "needs 7 blocks a rank, of which 3 are free"}));
    CHECK(!routes.knows(3));
    CHECK(blocks_of(routes, 4) == before);
    const route_decision refused = routes.admit(4, 641);
    CHECK(refused.outcome == route_outcome::refused);
    CHECK(says("x: " + explain(refused), "x",
               {"641 tokens can never fit", "CP 4", "needs 11 blocks a rank, which has 10"}));
    CHECK(routes.admit(4, 640).outcome == route_outcome::wait);
    CHECK(routes.admit(4, 10, 641).outcome == route_outcome::refused);
    CHECK(routes.requests() == 2);
    routes.finish(1);
    routes.finish(2);
    CHECK(placed(routes, 3, 400) == placement{0, 4});
    CHECK(blocks_of(routes, 4) == numbers{7, 7, 7, 7});
    CHECK(routes.requests() == 1);
}

TEST_CASE("Blocks follow the law of ownership, of the larger length") {
    router routes{routing_machine(), routing_model(), {2, 16, 16, 10, {2}}, routing_options()};
    CHECK(placed(routes, 1, 16) == placement{0, 2});
    CHECK(blocks_of(routes, 2) == numbers{1, 0});
    CHECK(routes.grow(1, 1));
    CHECK(blocks_of(routes, 2) == numbers{1, 1});
    CHECK(routes.grow(1, 32));
    CHECK(blocks_of(routes, 2) == numbers{2, 2});
    routes.shrink(1, 48);
    CHECK(blocks_of(routes, 2) == numbers{1, 0});
    CHECK(placed(routes, 2, 1, 64) == placement{0, 2});
    CHECK(blocks_of(routes, 2) == numbers{3, 2});
    CHECK(routes.load(0).tokens == 2);
    CHECK(routes.grow(2, 63));
    CHECK(blocks_of(routes, 2) == numbers{3, 2});
    CHECK(routes.load(0).tokens == 33);
    CHECK(routes.grow(2, 1));
    CHECK(blocks_of(routes, 2) == numbers{4, 2});
    CHECK(!routes.grow(2, 32 * 7)); // 9 blocks are left on rank 0, for 288 tokens
    CHECK(routes.request(2).tokens == 65);
    CHECK(routes.grow(2, 32 * 7 - 1));
    CHECK(blocks_of(routes, 2) == numbers{10, 9});
    CHECK(!routes.grow(2, std::numeric_limits<std::int64_t>::max()));
    routes.shrink(2, 16 * 17);
    CHECK(blocks_of(routes, 2) == numbers{3, 2}); // what it was admitted with stays reserved
}

TEST_CASE("A request that has grown moves, with its saving, its bytes and its break-even") {
    router routes = router_of(4);
    CHECK(placed(routes, 9, 100) == placement{0, 1});
    CHECK(!routes.review(9));
    CHECK(routes.grow(9, 1900));
    const std::optional<route_move> move = routes.review(9);
    REQUIRE(move);
    CHECK(move->id == 9);
    CHECK(move->from == placement{0, 1});
    CHECK(move->to == placement{0, 4}); // its own load is no reason to go elsewhere, and no reason to stay
    CHECK(near(move->before_us, 2 * (3 + 100)));
    CHECK(near(move->after_us, 2 * (3 + 25 + 14.924)));
    CHECK(move->tokens == 2000);
    CHECK(move->moved == 1500);
    CHECK(near(move->move_us, 1500 * 100 * 2 / 2000.0 + 1500 * 100 * 2 / 1000.0));
    CHECK(move->steps == static_cast<std::int64_t>(std::ceil(450 / (206 - 85.848))));
    CHECK(move->to_come == 256);
    CHECK(blocks_of(routes, 4) == numbers{125, 0, 0, 0});
    CHECK(routes.begin_move(9, move->to));
    CHECK(blocks_of(routes, 4) == numbers{125 + 32, 32, 32, 32});
    CHECK(routes.load(0).requests == 2);
    CHECK(!routes.review(9));
    CHECK(routes.request(9).at == move->from);
    CHECK(routes.request(9).to == move->to);
    CHECK(routes.grow(9, 64));
    CHECK(blocks_of(routes, 4) == numbers{129 + 33, 33, 33, 33});
    routes.end_move(9);
    CHECK(routes.request(9).at == placement{0, 4});
    CHECK(blocks_of(routes, 4) == numbers{33, 33, 33, 33});
    CHECK(routes.load(0).requests == 1);
    routes.shrink(9, 2000);
    const std::optional<route_move> back = routes.review(9);
    REQUIRE(back);
    CHECK(back->to == placement{0, 1});
    CHECK(back->moved == 48);
    CHECK(near(back->move_us, 48 * 200 / 2000.0 + 48 * 200 / 1000.0)); // all of them reach rank 0
    CHECK(routes.begin_move(9, back->to));
    routes.cancel_move(9);
    CHECK(routes.request(9).at == placement{0, 4});
    CHECK(!routes.request(9).to);
    CHECK(blocks_of(routes, 4) == numbers{1, 1, 1, 1});
    CHECK(routes.begin_move(9, back->to));
    routes.finish(9);
    CHECK(blocks_of(routes, 4) == numbers{0, 0, 0, 0});
    CHECK(routes.load(0).step_us == 0);
}

TEST_CASE("A move takes as long as its busiest rank, sending or receiving") {
    router_options options = routing_options();
    options.steps_to_come = 1 << 20;
    machine_costs costs = routing_machine();
    for (const auto op : {collective_op::all_gather, collective_op::all_to_all})
        costs.collectives.push_back({op, 4, 15, 1000});
    router routes{costs, routing_model(), {4, 1, 16, 1000, {2, 4}}, options};
    CHECK(placed(routes, 1, 1000) == placement{0, 2});
    REQUIRE(routes.grow(1, 7000));
    const std::optional<route_move> up = routes.review(1);
    REQUIRE(up);
    CHECK(up->to == placement{0, 4});
    CHECK(up->moved == 4000); // half of what each of the two ranks has
    CHECK(near(up->move_us, 2000 * 200 / 2000.0 + 2000 * 200 / 1000.0));
    REQUIRE(move_if_due(routes, 1));
    routes.shrink(1, 7200);
    const std::optional<route_move> down = routes.review(1);
    REQUIRE(down);
    CHECK(down->moved == 400);
    CHECK(near(down->move_us, 200 * 200 / 2000.0 + 200 * 200 / 1000.0)); // 400 of 800 tokens reach two ranks
}

TEST_CASE("Growing and a review without a saving allocate nothing") {
    router routes = router_of(8);
    placed(routes, 1, 100);
    placed(routes, 2, 5000);
    REQUIRE(routes.begin_move(1, {4, 4}));
    num_allocations = 0;
    is_counting = true;
    bool all = true, none = true;
    for (int step = 0; step < 100; ++step) {
        all = routes.grow(1, 1) && routes.grow(2, 3) && all;
        routes.shrink(2, 1);
        none = none && !routes.review(1) && !routes.review(2);
    }
    is_counting = false;
    CHECK(all);
    CHECK(none);
    CHECK(num_allocations == 0);
    CHECK(routes.request(2).tokens == 5200);
}

TEST_CASE("A move goes to the group that is least busy without the request") {
    router routes = router_of(4, 1000, routing_options(), {1, 2});
    CHECK(placed(routes, 1, 100) == placement{0, 1});
    CHECK(placed(routes, 2, 90) == placement{1, 1});
    CHECK(placed(routes, 3, 80) == placement{2, 1});
    CHECK(placed(routes, 4, 200) == placement{3, 1});
    CHECK(routes.grow(1, 1900));
    CHECK(routes.review(1).value().to == placement{0, 2}); // 0 and 90 against 80 and 200
    CHECK(routes.grow(2, 120));
    CHECK(routes.review(1).value().to == placement{2, 2}); // 0 and 210
    // The exchange of a group that it leaves empty is gone too.
    router pairs = router_of(8, 1000, routing_options(), {1, 2, 4});
    placed(pairs, 1, 100);
    placed(pairs, 2, 10);
    REQUIRE(pairs.begin_move(1, {0, 2}));
    pairs.end_move(1);
    REQUIRE(pairs.begin_move(2, {4, 1}));
    pairs.end_move(2);
    REQUIRE(pairs.grow(1, 7900));
    CHECK(pairs.review(1).value().to == placement{0, 4});
}

TEST_CASE("A move must pay within the steps to come") {
    const auto moves = [](std::int64_t at_end, std::int64_t steps, std::int64_t rows = 1) {
        router_options options = routing_options();
        options.steps_to_come = steps;
        options.rows = rows;
        router routes = router_of(4, 1000, options);
        placed(routes, 1, 100, at_end);
        REQUIRE(routes.grow(1, 1900));
        return routes.review(1).has_value();
    };
    CHECK(moves(0, 4));
    CHECK(!moves(0, 3));
    CHECK(moves(2000, 4)); // the end is reached: how long it goes on is not known
    CHECK(!moves(1999, 3));
    CHECK(moves(2004, 0));
    CHECK(!moves(2001, 256));
    CHECK(moves(2010, 0, 3)); // 10 tokens in 4 steps
    CHECK(!moves(2009, 256, 3));
    // Where the best size does not pay in time, one that does is taken.
    router_options options = routing_options();
    options.reshard_bytes_per_us = 100;
    options.steps_to_come = 31;
    router routes = router_of(4, 1000, options);
    placed(routes, 1, 100);
    REQUIRE(routes.grow(1, 1900));
    // 4 ranks: 3150 us, saved 120.152 a step; 2 ranks: 2100 us, saved 70.32
    CHECK(routes.review(1).value().to.ranks == 4);
    CHECK(routes.review(1).value().steps == 27);
    options.layers = 2;
    options.steps_to_come = 26;
    router sooner = router_of(4, 1000, options);
    placed(sooner, 1, 100);
    REQUIRE(sooner.grow(1, 1900));
    CHECK(!sooner.review(1)); // 2 ranks need 30
}

TEST_CASE("A better size without room is passed over for one with room") {
    router routes = router_of(4, 130);
    CHECK(placed(routes, 1, 100) == placement{0, 1});
    CHECK(placed(routes, 2, 10, 2080) == placement{1, 1}); // fills rank 1, and so the group of 4 and that of 0 and 1
    CHECK(routes.grow(1, 1900));
    CHECK(routes.review(1).value().to == placement{2, 2});
    CHECK(placed(routes, 3, 20, 2080) == placement{2, 1});
    CHECK(!routes.review(1));
    CHECK(!routes.begin_move(1, {2, 2}));
    CHECK(!routes.begin_move(1, {0, 4}));
    CHECK(blocks_of(routes, 4) == numbers{125, 130, 130, 0});
    CHECK(!routes.request(1).to);
    CHECK(routes.begin_move(1, {3, 1}));
    CHECK(!routes.grow(1, 81)); // 130 blocks are 2080
    CHECK(routes.grow(1, 80));
    CHECK(!routes.grow(1, 1));
    routes.cancel_move(1);
    CHECK(blocks_of(routes, 4) == numbers{130, 130, 130, 0});
}

TEST_CASE("A longer or shorter request moves once each way, outside the band around the break-even") {
    for (const double hysteresis : {0.0, 0.1, 0.3}) {
        router_options options = routing_options();
        options.hysteresis = hysteresis;
        options.steps_to_come = 1 << 30;
        router routes = router_of(2, 1000, options);
        placed(routes, 1, 0);
        std::int64_t up = -1, down = -1;
        for (std::int64_t length = 0; length <= 4000; length += 2) { // whole rounds
            set_length(routes, 1, length);
            if (!move_if_due(routes, 1)) continue;
            CHECK(up == -1);
            up = length;
        }
        for (std::int64_t length = 4000; length >= 0; length -= 2) {
            set_length(routes, 1, length);
            if (!move_if_due(routes, 1)) continue;
            CHECK(down == -1);
            down = length;
        }
        CHECK(routes.request(1).at.ranks == 1);
        // (3 + L/20) * (1 - h) = 3 + 14.84 + L/40, and the same the other way
        const double high = (17.84 - 3 * (1 - hysteresis)) / ((1 - hysteresis) / 20 - 1 / 40.0);
        const double low = (17.84 * (1 - hysteresis) - 3) / (1 / 20.0 - (1 - hysteresis) / 40);
        CHECK(std::fabs(static_cast<double>(up) - high) <= 2);
        CHECK(std::fabs(static_cast<double>(down) - low) <= 2);
        CHECK(static_cast<double>(down) <= break_even_tokens * (1 - hysteresis));
        CHECK(static_cast<double>(up) >= break_even_tokens);
    }
}

TEST_CASE("Noise above the band moves a request up once a size and never down") {
    std::mt19937_64 draw(20261);
    machine_costs costs = routing_machine();
    for (const auto op : {collective_op::all_gather, collective_op::all_to_all})
        costs.collectives.push_back({op, 4, 15, 1000});
    const double second_break_even = 20.084 * 80; // of 2 ranks and 4
    for (const double hysteresis : {0.05, 0.1, 0.2})
        for (const bool second : {false, true}) {
            router_options options = routing_options();
            options.hysteresis = hysteresis;
            options.steps_to_come = 1 << 30;
            router routes{costs, routing_model(), {4, 1, 16, 1000, {}}, options};
            CHECK(placed(routes, 1, 590).ranks == 1);
            const double lowest = (second ? second_break_even : break_even_tokens) * (1 - hysteresis);
            std::int64_t moves = 0;
            for (int step = 0; step < 1000; ++step) {
                const auto noise = static_cast<std::int64_t>(draw() % (second ? 4000 : 800));
                set_length(routes, 1, static_cast<std::int64_t>(std::ceil(lowest)) + noise);
                const std::int64_t before = routes.request(1).at.ranks;
                if (!move_if_due(routes, 1)) continue;
                ++moves;
                CHECK(routes.request(1).at.ranks > before);
                CHECK(!routes.review(1)); // at one length nothing moves twice
            }
            CHECK(routes.request(1).at.ranks == (second ? 4 : 2));
            CHECK(moves >= 1);
            CHECK(moves <= (second ? 2 : 1));
        }
}

TEST_CASE("A move down happens only below the break-even by the band, whatever the path") {
    std::mt19937_64 draw(7);
    router_options options = routing_options();
    options.steps_to_come = 1 << 30;
    router routes = router_of(4, 100000, options, {1, 2});
    placed(routes, 1, 0);
    std::int64_t length = 0, ups = 0, downs = 0, turns = 0;
    bool below = true;
    for (int step = 0; step < 20000; ++step) {
        length = std::max<std::int64_t>(0, length + static_cast<std::int64_t>(draw() % 201) - 100);
        set_length(routes, 1, length);
        // How often the path itself went from below the band to above it.
        const auto tokens = static_cast<double>(length);
        if (below && tokens > break_even_tokens) {
            ++turns;
            below = false;
        } else if (!below && tokens < break_even_tokens * 0.9) {
            below = true;
        }
        const std::int64_t before = routes.request(1).at.ranks;
        if (!move_if_due(routes, 1)) continue;
        const bool up = routes.request(1).at.ranks > before;
        (up ? ups : downs) += 1;
        if (!up) CHECK(tokens < break_even_tokens * 0.9);
    }
    CHECK(ups >= 5);
    CHECK(ups - downs <= 1);
    CHECK(ups >= downs);
    CHECK(ups <= turns);
}

TEST_CASE("Calls on what is not here are refused and change nothing") {
    router routes = router_of(4);
    placed(routes, 1, 1000);
    placed(routes, 2, 10);
    REQUIRE(routes.begin_move(2, {3, 1}));
    const numbers before = blocks_of(routes, 4);
    CHECK(says(refusal_of([&] { routes.admit(1, 5); }), "request", {"request 1", "before"}));
    CHECK(says(refusal_of([&] { routes.admit(3, -5); }), "length", {"-5"}));
    CHECK(says(refusal_of([&] { routes.admit(3, 5, -6); }), "length", {"-6"}));
    CHECK(says(refusal_of([&] { routes.grow(3, 1); }), "request", {"no request 3", "the 2"}));
    CHECK(says(refusal_of([&] { routes.grow(1, -1); }), "length", {"-1"}));
    CHECK(says(refusal_of([&] { routes.shrink(1, 1001); }), "length", {"1000", "1001"}));
    CHECK(says(refusal_of([&] { routes.shrink(1, -1); }), "length", {"-1"}));
    CHECK(says(refusal_of([&] { routes.shrink(3, 1); }), "request", {"3"}));
    CHECK(says(refusal_of([&] { routes.review(3); }), "request", {"3"}));
    CHECK(says(refusal_of([&] { routes.begin_move(3, {0, 1}); }), "request", {"3"}));
    CHECK(says(refusal_of([&] { routes.begin_move(2, {0, 1}); }), "move", {"request 2", "already"}));
    CHECK(says(refusal_of([&] { routes.begin_move(1, routes.request(1).at); }), "move", {"request 1 is at CP"}));
    for (const placement to : {placement{1, 2}, {0, 3}, {4, 1}, {-1, 1}, {0, 8}, {0, 0}})
        CHECK(says(refusal_of([&] { routes.begin_move(1, to); }), "placement", {"request 1"}));
    CHECK(says(refusal_of([&] { routes.end_move(1); }), "move", {"does not move"}));
    CHECK(says(refusal_of([&] { routes.cancel_move(1); }), "move", {"does not move"}));
    CHECK(says(refusal_of([&] { routes.end_move(3); }), "request", {"3"}));
    CHECK(says(refusal_of([&] { routes.finish(3); }), "request", {"3"}));
    CHECK(says(refusal_of([&] { routes.request(3); }), "request", {"3"}));
    CHECK(says(refusal_of([&] { routes.load(4); }), "rank", {"4"}));
    CHECK(blocks_of(routes, 4) == before);
    CHECK(routes.requests() == 2);
    CHECK(routes.request(2).to == placement{3, 1});
}

TEST_CASE("a prompt is prefilled on many ranks where its tokens are decoded on one") {
    router_options options = routing_options();
    options.row_us = 10;
    router routes = router_of(4, 1000, options);
    const route_decision decision = routes.admit(1, 300, 500, 300);
    REQUIRE(decision.outcome == route_outcome::placed);
    CHECK(decision.at == placement{0, 4});
    for (const route_size& size : decision.sizes)
        CHECK(near(size.step_us, 2 * prefill_us(routing_machine(), routing_model(), {size.ranks, 1}, 300, 300, 10)));
    CHECK(placed(routes, 2, 300, 500).ranks == 1); // nothing is left to prefill
    CHECK(move_if_due(routes, 1));
    CHECK(routes.request(1).at == placement{1, 1}); // the rank that has nothing
    CHECK(says(refusal_of([&] { routes.admit(3, 300, 500, 301); }), "rows", {"301 new ones"}));
    CHECK(!routes.knows(3));
}

TEST_CASE("rows that every rank of a group computes again count for each") {
    router_options options = routing_options();
    options.decode_row_us = 1.5;
    options.rows = 2;
    router routes = router_of(4, 1000, options);
    const route_decision decision = routes.admit(1, 3000);
    REQUIRE(decision.sizes.size() == 3);
    for (const route_size& size : decision.sizes) {
        const auto ranks = static_cast<double>(size.ranks);
        const double attention = 3 + 3000 / (20 * ranks); // rows hide behind the keys
        CHECK(near(size.step_us, 2 * (attention + exchange_by_hand(size.ranks, 2) + ranks * 2 * 1.5)));
    }
    CHECK(decision.at.ranks == 4);
    options.decode_row_us = 40;
    CHECK(router_of(4, 1000, options).admit(1, 3000).at.ranks == 1);
}

TEST_CASE("A size that does not divide the scattered heads is never chosen") {
    router routes = router_of(8); // 12 heads
    const route_decision decision = routes.admit(1, 100000 / 10);
    CHECK(decision.at.ranks == 4);
    CHECK(!decision.sizes.back().legal);
    CHECK(decision.sizes.back().step_us == 0);
    CHECK(routes.admit(2, 16 * 1000 * 4 + 1).outcome == route_outcome::refused); // on 8 ranks it would fit
}
