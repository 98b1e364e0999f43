// Blocks and steps of ranks, against sums by hand.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <ctxpar/plan/domain_load.hpp>

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

domain_load ranks_of(std::int64_t ranks, std::int64_t capacity = 100, std::vector<std::int64_t> sizes = {}) {
    return {routing_machine(), routing_model(), {ranks, 1, 16, capacity, std::move(sizes)}, routing_options()};
}

std::vector<std::int64_t> sizes_of(const domain_load& load) {
    std::vector<std::int64_t> sizes;
    for (const cp_group_size& size : load.sizes()) sizes.push_back(size.ranks);
    return sizes;
}

// Two layers with so many keys and groups.
double step_by_hand(double keys, double exchange) {
    return 2 * (3 + keys / 20 + exchange);
}

} // namespace

TEST_CASE("A rank's step is one attention call over all its keys and one exchange a group") {
    domain_load load = ranks_of(4);
    CHECK(load.load(0).step_us == 0);
    load.enter({0, 1}, {100, 100});
    CHECK(near(load.load(0).step_us, step_by_hand(100, 0)));
    CHECK(load.load(1).step_us == 0);
    load.enter({0, 2}, {301, 400});
    load.enter({0, 2}, {50, 50});
    load.enter({0, 4}, {1000, 1000});
    const double pair = exchange_by_hand(2, 2), four = exchange_by_hand(4, 1);
    CHECK(near(load.load(0).step_us, step_by_hand(100 + 151 + 25 + 250, pair + four)));
    CHECK(near(load.load(1).step_us, step_by_hand(150 + 25 + 250, pair + four)));
    CHECK(near(load.load(2).step_us, step_by_hand(250, four)));
    const rank_load first = load.load(0);
    CHECK(first.requests == 4);
    CHECK(first.tokens == 100 + 151 + 25 + 250);
    CHECK(first.blocks == 7 + 13 + 2 + 16);
    CHECK(first.free_blocks == 100 - first.blocks);
    load.leave({0, 2}, {301, 400});
    CHECK(near(load.load(1).step_us, step_by_hand(25 + 250, exchange_by_hand(2, 1) + four)));
    load.leave({0, 4}, {1000, 1000});
    load.leave({0, 2}, {50, 50});
    load.leave({0, 1}, {100, 100});
    for (std::int64_t rank = 0; rank < 4; ++rank) {
        const rank_load left = load.load(rank);
        CHECK(left.step_us == 0);
        CHECK(left.requests + left.tokens + left.blocks == 0);
        CHECK(left.free_blocks == 100);
    }
    CHECK(says(refusal_of([&] { load.load(4); }), "rank", {"4", "0..3"}));
    CHECK(says(refusal_of([&] { load.load(-1); }), "rank", {"-1"}));
}

TEST_CASE("Rows count in the attention of a rank and in the exchange of a group") {
    machine_costs costs = routing_machine();
    costs.flops_per_us = 100; // 2 * 12 heads * 12 wide = 288 a row and key
    router_options options = routing_options();
    options.rows = 3;
    domain_load load{costs, routing_model(), {2, 1, 16, 100, {}}, options};
    load.enter({0, 2}, {10, 10});
    load.enter({0, 2}, {20, 20});
    CHECK(near(load.load(0).step_us, 2 * (3 + 288 * 3 * 15 / 100.0 + exchange_by_hand(2, 6))));
    CHECK(near(load.alone_us(load.sizes()[1], 10), 2 * (3 + 288 * 3 * 5 / 100.0 + exchange_by_hand(2, 3))));
}

TEST_CASE("Each request and its rows cost their part of a call, with keys or without") {
    machine_costs costs = routing_machine();
    costs.request_us = 7;
    costs.row_numbers_per_us = 10; // 12 heads * 12 wide: 14.4 us a row
    router_options options = routing_options();
    options.rows = 2;
    domain_load load{costs, routing_model(), {2, 1, 16, 100, {}}, options};
    load.enter({0, 1}, {100, 100});
    load.enter({0, 1}, {0, 0});
    load.enter({0, 2}, {60, 60});
    const double requests = 7 + 2 * 14.4;
    CHECK(near(load.load(0).step_us, step_by_hand(100 + 30, 3 * requests + exchange_by_hand(2, 2))));
    CHECK(near(load.load(1).step_us, step_by_hand(30, requests + exchange_by_hand(2, 2))));
    CHECK(near(load.alone_us(load.sizes()[0], 100), step_by_hand(100, requests)));
}

TEST_CASE("A request alone takes what cp_size_costs says") {
    for (const std::int64_t ranks : {1, 6, 8})
        for (const std::int64_t length : {0, 1, 594, 5000}) {
            const domain_load load = ranks_of(ranks);
            const request_load request{1, length};
            const cp_size_choice choice =
                cp_size_costs(routing_machine(), routing_model(), std::span(&request, 1), {ranks, 1, -1});
            REQUIRE(choice.options.size() == load.sizes().size());
            for (std::size_t i = 0; i < choice.options.size(); ++i) {
                CHECK(load.sizes()[i].ranks == choice.options[i].ranks);
                CHECK(load.sizes()[i].legal == choice.options[i].legal);
                if (load.sizes()[i].legal)
                    CHECK(near(load.alone_us(load.sizes()[i], length), 2 * choice.options[i].cost.total_us()));
            }
        }
    const domain_load load = ranks_of(4);
    CHECK(near(load.alone_us(load.sizes()[0], 1000), 2 * (3 + 50)));
    CHECK(near(load.alone_us(load.sizes()[1], 1000), 2 * (3 + 25 + 14.84)));
    CHECK(near(load.alone_us(load.sizes()[2], 1000), 2 * (3 + 12.5 + 14.924)));
}

TEST_CASE("Groups have the sizes that were named, else all divisors") {
    CHECK((sizes_of(ranks_of(12)) == std::vector<std::int64_t>{1, 2, 3, 4, 6, 12}));
    CHECK((sizes_of(ranks_of(8, 100, {8, 1})) == std::vector<std::int64_t>{1, 8}));
    CHECK(sizes_of(ranks_of(1024)).back() == 256);
    const domain_load load = ranks_of(8, 100, {1, 4, 8}); // 8 does not divide 12 heads
    CHECK(load.is_group({4, 4}));
    CHECK(load.is_group({7, 1}));
    for (const placement place : {placement{2, 4}, {0, 2}, {8, 4}, {-4, 4}, {0, 8}, {0, 0}, {0, -1}})
        CHECK(!load.is_group(place));
    CHECK(says(refusal_of([] { ranks_of(8, 100, {8}); }), "scatter_heads", {"of 8", "12 heads"}));
    CHECK(says(refusal_of([] { ranks_of(8, 0); }), "capacity", {"0"}));
    const auto refused = [](machine_costs costs, model_shape model, router_options options) {
        return refusal_of([&] { domain_load(costs, model, {2, 1, 16, 100, {}}, options); });
    };
    machine_costs costs = routing_machine();
    costs.merge_us = -1;
    CHECK(says(refused(costs, routing_model(), routing_options()), "costs", {"merge_us"}));
    costs = routing_machine();
    costs.collectives.clear();
    CHECK(says(refused(costs, routing_model(), routing_options()), "costs", {"no cost"}));
    model_shape model = routing_model();
    model.heads = 0;
    CHECK(says(refused(routing_machine(), model, routing_options()), "size", {"heads 0"}));
    router_options options = routing_options();
    options.layers = 0;
    CHECK(says(refused(routing_machine(), routing_model(), options), "size", {"0 layers"}));
}

TEST_CASE("A group has room where each of its ranks has the blocks it needs") {
    domain_load load = ranks_of(4, 10);
    load.enter({1, 1}, {0, 16 * 4}); // 6 left on rank 1
    CHECK(load.has_room({0, 1}, 160));
    CHECK(!load.has_room({0, 1}, 161));
    CHECK(load.has_room({1, 1}, 96));
    CHECK(!load.has_room({1, 1}, 97));
    CHECK(load.has_room({0, 2}, 2 * 96)); // rank 0 has room for more, rank 1 not
    CHECK(load.has_room({0, 2}, 2 * 96 + 1));
    CHECK(!load.has_room({0, 2}, 2 * 96 + 2));
    const route_size pair = load.option_of(load.sizes()[1], {200, 2 * 96 + 2 + 100});
    CHECK(pair.room); // on ranks 2 and 3
    CHECK(pair.blocks == 10);
    CHECK(pair.free_blocks == 10);
    const route_size four = load.option_of(load.sizes()[2], {200, 4 * 96 + 2});
    CHECK(!four.room);
    CHECK(four.blocks == 7);
    CHECK(four.free_blocks == 6);
    CHECK(near(four.step_us, 2 * (3 + 50 / 20.0 + 14.924)));
    CHECK(!load.has_room({0, 4}, std::int64_t{1} << 62));
}

TEST_CASE("A rank of two groups of one request needs room for both") {
    domain_load load = ranks_of(2, 10);
    load.enter({0, 1}, {64, 64});
    load.enter({0, 2}, {64, 64}); // 4 + 2 blocks on rank 0
    const auto grown = [&](std::int64_t before, std::int64_t after) {
        return load.resize({0, 1}, placement{0, 2}, {before, before}, {after, after});
    };
    CHECK(!grown(64, 128)); // 8 + 4
    CHECK(load.load(0).blocks == 6);
    CHECK(load.load(1).blocks == 2);
    CHECK(load.load(0).tokens == 96);
    CHECK(grown(64, 96)); // 6 + 3
    CHECK(load.load(0).blocks == 9);
    CHECK(load.load(1).blocks == 3);
    CHECK(load.load(1).tokens == 48);
    CHECK(grown(96, 16));
    CHECK(load.load(0).blocks == 2);
    CHECK(!grown(16, std::numeric_limits<std::int64_t>::max()));
    CHECK(load.resize({0, 1}, {}, {16, 16}, {16, 144})); // as if the second stayed
    CHECK(load.load(0).blocks == 10);
    CHECK(load.load(0).tokens == 24);
}
