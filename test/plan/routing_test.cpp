// What changes rank between two groups, against tokens dealt out one by one; and what a router is told and says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ctxpar/plan/routing.hpp>

#include "refusal.hpp"
#include "routing_setting.hpp"

using namespace ctxpar;
using ctxpar_test::refusal_of;
using ctxpar_test::says;

namespace {

using numbers = std::vector<std::int64_t>;

std::size_t at(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

// The rank of the domain that each token lies on.
numbers deal(const placement& group, std::int64_t interleave, std::int64_t tokens) {
    numbers owners;
    std::int64_t turn = 0;
    while (std::ssize(owners) < tokens) {
        for (std::int64_t i = 0; i < interleave && std::ssize(owners) < tokens; ++i)
            owners.push_back(group.first + turn);
        turn = turn + 1 == group.ranks ? 0 : turn + 1;
    }
    return owners;
}

regrouped regroup_by_hand(const placement& from, const placement& to, std::int64_t interleave, std::int64_t tokens,
                          std::int64_t domain) {
    const numbers before = deal(from, interleave, tokens), after = deal(to, interleave, tokens);
    numbers leave(at(domain), 0), arrive(at(domain), 0);
    regrouped count;
    for (std::int64_t token = 0; token < tokens; ++token) {
        if (before[at(token)] == after[at(token)]) continue;
        ++count.moved;
        ++leave[at(before[at(token)])];
        ++arrive[at(after[at(token)])];
    }
    count.busiest =
        std::max(*std::max_element(leave.begin(), leave.end()), *std::max_element(arrive.begin(), arrive.end()));
    return count;
}

std::vector<placement> groups_of(std::int64_t domain) {
    std::vector<placement> all;
    for (std::int64_t ranks = 1; ranks <= domain; ++ranks)
        for (std::int64_t first = 0; domain % ranks == 0 && first < domain; first += ranks)
            all.push_back({first, ranks});
    return all;
}

router_domain domain_of(std::int64_t ranks, numbers sizes = {}) {
    return {ranks, 1, 16, 100, std::move(sizes)};
}

} // namespace

TEST_CASE("Tokens that change rank between two groups are those that the law gives other ranks") {
    for (const std::int64_t domain : {1, 4, 6, 8})
        for (const std::int64_t interleave : {1, 3})
            for (const placement& from : groups_of(domain))
                for (const placement& to : groups_of(domain))
                    for (const std::int64_t tokens : {0, 1, 5, 37, 100}) {
                        const regrouped count = regroup(from, to, interleave, tokens);
                        CHECK(count == regroup_by_hand(from, to, interleave, tokens, domain));
                        CHECK(count.moved == regroup(to, from, interleave, tokens).moved);
                    }
    CHECK(regroup({4, 4}, {4, 4}, 16, 1000) == regrouped{0, 0});
    static_assert(regroup({0, 1}, {0, 4}, 1, std::int64_t{1} << 40).moved == std::int64_t{3} << 38);
    static_assert(regroup({0, 8}, {0, 1}, 1, std::int64_t{1} << 40).busiest == std::int64_t{7} << 37); // it arrives
}

TEST_CASE("A domain is refused by name") {
    const auto refused = [](const router_domain& domain) { return refusal_of([&] { check(domain); }); };
    CHECK(refused(domain_of(8)) == "none");
    CHECK(refused(domain_of(8, {8, 1, 2})) == "none");
    CHECK(refused(domain_of(65536)) == "none");
    CHECK(says(refused(domain_of(0)), "ranks", {"0", "at least 1", "65536"}));
    CHECK(says(refused(domain_of(65537)), "ranks", {"65537"}));
    CHECK(says(refused({8, 0, 16, 100, {}}), "interleave", {"0"}));
    CHECK(says(refused({8, 1, 0, 100, {}}), "block_size", {"0"}));
    CHECK(says(refused({8, 1, 16, 0, {}}), "capacity", {"0 blocks", "at least 1"}));
    CHECK(says(refused({8, 1, 16, -3, {}}), "capacity", {"-3 blocks"}));
    constexpr auto largest = std::numeric_limits<std::int64_t>::max();
    CHECK(refused({8, 1, 16, largest / 16, {}}) == "none");
    CHECK(says(refused({8, 1, 16, largest / 16 + 1, {}}), "capacity", {"576460752303423487"}));
    CHECK(says(refused(domain_of(12, {1, 5})), "sizes", {"5 ranks", "domain of 12", "1, 2, 3, 4, 6, 12"}));
    CHECK(says(refused(domain_of(12, {0})), "sizes", {"groups of 0"}));
    CHECK(says(refused(domain_of(12, {-2})), "sizes", {"groups of -2"}));
    CHECK(says(refused(domain_of(12, {4, 2, 4})), "sizes", {"4", "twice"}));
    CHECK(says(refused(domain_of(512, {512})), "sizes", {"512", "at most 256", "128, 256"}));
    try {
        check(domain_of(512, {3}));
    } catch (const config_error& problem) {
        CHECK((problem.legal() == numbers{1, 2, 4, 8, 16, 32, 64, 128, 256}));
    }
}

TEST_CASE("Options are refused by name") {
    const auto refused = [](auto change) {
        router_options options = ctxpar_test::routing_options();
        change(options);
        return refusal_of([&] { check(options); });
    };
    CHECK(refused([](router_options&) {}) == "none");
    CHECK(refused([](router_options& o) { o.hysteresis = 0; }) == "none");
    CHECK(says(refused([](router_options& o) { o.hysteresis = -0.5; }), "hysteresis", {"-0.5", "below 1"}));
    CHECK(says(refused([](router_options& o) { o.hysteresis = 1; }), "hysteresis", {"1"}));
    CHECK(says(refused([](router_options& o) { o.hysteresis = std::numeric_limits<double>::quiet_NaN(); }),
               "hysteresis", {"nan"}));
    CHECK(says(refused([](router_options& o) { o.layers = 0; }), "size", {"0 layers"}));
    CHECK(says(refused([](router_options& o) { o.rows = 0; }), "rows", {"0 query rows"}));
    CHECK(says(refused([](router_options& o) { o.rows = 65537; }), "rows", {"65537"}));
    CHECK(says(refused([](router_options& o) { o.reshard_bytes_per_us = 0; }), "costs", {"reshard", "0"}));
    CHECK(says(refused([](router_options& o) { o.steps_to_come = -1; }), "steps", {"-1"}));
}

TEST_CASE("Decisions and moves explain themselves") {
    route_decision decision;
    decision.outcome = route_outcome::placed;
    decision.id = 7;
    decision.tokens = 1000;
    decision.reserved = 1200;
    decision.at = {4, 2};
    decision.step_us = 40.5;
    decision.capacity_blocks = 50;
    decision.sizes = {{1, true, 53, 75, 20, false},
                      {2, true, 40.5, 38, 40, true},
                      {4, true, 30, 19, 10, false},
                      {8, false, 0, 10, 0, false}};
    CHECK(explain(decision) ==
          "request 7 of 1000 tokens, with blocks for 1200, gets CP 2 on ranks 4..5, the least time a step of the sizes "
          "with room: CP 1 53 us (needs 75 blocks a rank, which has 50), CP 2 40.5 us, CP 4 30 us (needs 19 blocks a "
          "rank, of which 10 are free), CP 8 does not divide the heads that are scattered");
    decision.reserved = 1000;
    decision.outcome = route_outcome::wait;
    CHECK(explain(decision).starts_with("request 7 of 1000 tokens waits, for no group has room now: CP 1"));
    decision.outcome = route_outcome::refused;
    decision.sizes.resize(1);
    CHECK(explain(decision) ==
          "request 7 of 1000 tokens can never fit: CP 1 53 us (needs 75 blocks a rank, which has 50)");
    const route_move move{3, {2, 1}, {0, 4}, 90, 45.5, 2000, 1500, 600, 14, 256};
    CHECK(explain(move) ==
          "request 3 of 2000 tokens goes from CP 1 on rank 2 to CP 4 on ranks 0..3: a step takes 45.5 us "
          "and not 90; 1500 tokens change rank in 600 us, which has paid after 14 of 256 steps to come");
    CHECK(std::string(name_of(route_outcome::placed)) + name_of(route_outcome::wait) +
              name_of(route_outcome::refused) ==
          "placedwaitrefused");
}
