// Random walks of a router beside plain books: no block is counted twice, lost or lent that is not there.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/plan/router.hpp>

#include "near.hpp"
#include "routing_setting.hpp"

using namespace ctxpar;
using ctxpar_test::near;
using ctxpar_test::routing_machine;
using ctxpar_test::routing_options;

namespace {

using numbers = std::vector<std::int64_t>;

std::size_t at(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

struct booked {
    std::int64_t tokens = 0, at_end = 0;
    std::vector<placement> places; // where it is, and where it moves
};

struct setting {
    router_domain domain;
    router_options options;
    model_shape model;
};

// Tokens of a request on each of its ranks, dealt out.
numbers dealt(std::int64_t tokens, std::int64_t ranks, std::int64_t interleave) {
    numbers held(at(ranks), 0);
    for (std::int64_t rank = 0; tokens > 0; rank = (rank + 1) % ranks) {
        held[at(rank)] += std::min(tokens, interleave);
        tokens -= interleave;
    }
    return held;
}

class books {
public:
    explicit books(setting given) : given_(std::move(given)) {}

    std::map<std::int64_t, booked> requests;

    struct sums {
        numbers tokens, blocks, requests;
    };
    sums count() const {
        const std::int64_t ranks = given_.domain.ranks;
        sums all{numbers(at(ranks), 0), numbers(at(ranks), 0), numbers(at(ranks), 0)};
        for (const auto& [id, request] : requests)
            for (const placement& place : request.places) {
                const numbers now = dealt(request.tokens, place.ranks, given_.domain.interleave);
                const numbers end = blocks(std::max(request.tokens, request.at_end), place.ranks);
                for (std::int64_t i = 0; i < place.ranks; ++i) {
                    all.tokens[at(place.first + i)] += now[at(i)];
                    all.blocks[at(place.first + i)] += end[at(i)];
                    all.requests[at(place.first + i)] += 1;
                }
            }
        return all;
    }

    numbers blocks(std::int64_t tokens, std::int64_t ranks) const {
        numbers all = dealt(tokens, ranks, given_.domain.interleave);
        for (std::int64_t& held : all) held = (held + given_.domain.block_size - 1) / given_.domain.block_size;
        return all;
    }

    bool room(const sums& now, const placement& place, std::int64_t tokens) const {
        const numbers more = blocks(tokens, place.ranks);
        for (std::int64_t i = 0; i < place.ranks; ++i)
            if (now.blocks[at(place.first + i)] + more[at(i)] > given_.domain.capacity_blocks) return false;
        return true;
    }

    // A rank's step from the cost functions, with its groups found by looking.
    double step_us(const sums& now, std::int64_t rank) const {
        if (now.requests[at(rank)] == 0) return 0;
        std::vector<request_load> all;
        for (const auto& [id, request] : requests)
            for (const placement& place : request.places)
                if (place.holds(rank))
                    all.push_back({given_.options.rows, dealt(request.tokens, place.ranks,
                                                              given_.domain.interleave)[at(rank - place.first)]});
        const model_shape& model = given_.model;
        double layer = attention_us(routing_machine(),
                                    {model.heads, model.query_width, model.value_width, model.bytes_per_token, 0, all});
        for (std::int64_t size = 2; size <= given_.domain.ranks; ++size) {
            std::int64_t sharing = 0;
            for (const auto& [id, request] : requests)
                for (const placement& place : request.places)
                    sharing += place.ranks == size && place.holds(rank) ? 1 : 0;
            if (sharing > 0) layer += exchange_us(size, sharing);
        }
        return static_cast<double>(given_.options.layers) * layer;
    }

    double exchange_us(std::int64_t size, std::int64_t sharing) const {
        const request_load load{sharing * given_.options.rows, 0};
        for (const cp_size_option& option :
             cp_size_costs(routing_machine(), given_.model, std::span(&load, 1), {size, 1, -1}).options)
            if (option.ranks == size) return option.cost.total_us() - option.cost.attention_us;
        return 0;
    }

    cp_size_choice sizes(std::int64_t tokens) const {
        const request_load load{given_.options.rows, tokens};
        return cp_size_costs(routing_machine(), given_.model, std::span(&load, 1),
                             {given_.domain.ranks, given_.domain.interleave, -1});
    }

    // What should become of a new request: checks the decision and books it.
    void check_admission(const route_decision& got, std::int64_t id, std::int64_t tokens, std::int64_t at_end) {
        const sums now = count();
        const std::int64_t reserved = std::max(tokens, at_end);
        bool ever = false;
        double least_us = 0;
        std::int64_t best = 0;
        for (const cp_size_option& option : sizes(tokens).options) {
            if (!option.legal) continue;
            ever = ever || blocks(reserved, option.ranks)[0] <= given_.domain.capacity_blocks;
            bool any = false;
            for (std::int64_t first = 0; first < given_.domain.ranks; first += option.ranks)
                any = any || room(now, {first, option.ranks}, reserved);
            const double us = static_cast<double>(given_.options.layers) * option.cost.total_us();
            if (!any || (best > 0 && us >= least_us * (1 - 1e-12))) continue;
            best = option.ranks;
            least_us = us;
        }
        if (best == 0) {
            CHECK(got.outcome == (ever ? route_outcome::wait : route_outcome::refused));
            return;
        }
        REQUIRE(got.outcome == route_outcome::placed);
        CHECK(got.at.ranks == best);
        CHECK(near(got.step_us, least_us));
        CHECK(got.at.first % best == 0);
        CHECK(room(now, got.at, reserved));
        const double chosen_us = busiest_with(id, {tokens, at_end, {got.at}});
        for (std::int64_t first = 0; first < given_.domain.ranks; first += best)
            if (room(now, {first, best}, reserved)) {
                const double other_us = busiest_with(id, {tokens, at_end, {{first, best}}});
                CHECK(chosen_us <= other_us * (1 + 1e-12));
            }
        requests[id] = {tokens, at_end, {got.at}};
    }

    double busiest_with(std::int64_t id, const booked& request) {
        requests[id] = request;
        const sums now = count();
        double us = 0;
        for (std::int64_t i = 0; i < request.places[0].ranks; ++i)
            us = std::max(us, step_us(now, request.places[0].first + i));
        requests.erase(id);
        return us;
    }

    bool would_fit(std::int64_t id, std::int64_t tokens) {
        const std::int64_t before = std::exchange(requests[id].tokens, tokens);
        const sums now = count();
        requests[id].tokens = before;
        return *std::max_element(now.blocks.begin(), now.blocks.end()) <= given_.domain.capacity_blocks;
    }

private:
    setting given_;
};

void check_books(const router& routes, const books& expected, const setting& given, bool with_times) {
    const books::sums now = expected.count();
    CHECK(routes.requests() == std::ssize(expected.requests));
    for (std::int64_t rank = 0; rank < given.domain.ranks; ++rank) {
        const rank_load load = routes.load(rank);
        CHECK(load.tokens == now.tokens[at(rank)]);
        CHECK(load.blocks == now.blocks[at(rank)]);
        CHECK(load.requests == now.requests[at(rank)]);
        CHECK(load.free_blocks == given.domain.capacity_blocks - load.blocks);
        CHECK(load.free_blocks >= 0);
        if (with_times) CHECK(near(load.step_us, expected.step_us(now, rank)));
    }
}

struct tally {
    int placed = 0, waited = 0, refused = 0, moved = 0, cancelled = 0, full = 0;
};

// The same calls on two routers, with the books beside them.
tally walk(const setting& given, std::uint64_t seed, int events) {
    router routes{routing_machine(), given.model, given.domain, given.options};
    router twin{routing_machine(), given.model, given.domain, given.options};
    books expected(given);
    std::mt19937_64 draw(seed);
    const auto below = [&](std::int64_t end) {
        return static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(end));
    };
    const std::int64_t longest = given.domain.capacity_blocks * given.domain.block_size;
    tally all;
    std::int64_t next = 0;
    for (int event = 0; event < events; ++event) {
        const std::int64_t what = below(10);
        if (expected.requests.empty() || what < 2) {
            const std::int64_t tokens = below(4) == 0 ? below(3 * longest) : below(longest / 2);
            const std::int64_t at_end = below(2) == 0 ? 0 : tokens + below(60);
            const route_decision decision = routes.admit(next, tokens, at_end);
            CHECK(explain(decision) == explain(twin.admit(next, tokens, at_end)));
            expected.check_admission(decision, next, tokens, at_end);
            all.placed += decision.outcome == route_outcome::placed;
            all.waited += decision.outcome == route_outcome::wait;
            all.refused += decision.outcome == route_outcome::refused;
            ++next;
        } else {
            auto chosen = expected.requests.begin();
            std::advance(chosen, below(std::ssize(expected.requests)));
            const std::int64_t id = chosen->first;
            booked& request = chosen->second;
            if (what < 5) {
                const std::int64_t tokens = below(5) == 0 ? below(longest) : below(8);
                const bool fits = expected.would_fit(id, request.tokens + tokens);
                CHECK(routes.grow(id, tokens) == fits);
                CHECK(twin.grow(id, tokens) == fits);
                if (fits) request.tokens += tokens;
                all.full += fits ? 0 : 1;
            } else if (what == 5) {
                const std::int64_t tokens = below(request.tokens + 1);
                routes.shrink(id, tokens);
                twin.shrink(id, tokens);
                request.tokens -= tokens;
            } else if (what < 9 && request.places.size() == 1) {
                const std::optional<route_move> move = routes.review(id);
                const std::optional<route_move> same = twin.review(id);
                CHECK((move ? explain(*move) : "") == (same ? explain(*same) : ""));
                if (!move) continue;
                CHECK(move->after_us < move->before_us * (1 - given.options.hysteresis));
                REQUIRE(routes.begin_move(id, move->to));
                REQUIRE(twin.begin_move(id, move->to));
                request.places.push_back(move->to);
                ++all.moved;
            } else if (what < 9) {
                const bool ends = what != 6;
                for (router* each : {&routes, &twin}) ends ? each->end_move(id) : each->cancel_move(id);
                request.places.erase(request.places.begin() + (ends ? 0 : 1));
                all.cancelled += ends ? 0 : 1;
            } else {
                routes.finish(id);
                twin.finish(id);
                expected.requests.erase(id);
            }
        }
        check_books(routes, expected, given, event % 16 == 0);
    }
    for (const auto& [id, request] : expected.requests) {
        REQUIRE(routes.knows(id));
        CHECK(routes.request(id).tokens == request.tokens);
        CHECK(routes.request(id).at == request.places[0]);
        routes.finish(id);
    }
    for (std::int64_t rank = 0; rank < given.domain.ranks; ++rank) {
        CHECK(routes.load(rank).blocks == 0);
        CHECK(routes.load(rank).tokens == 0);
        CHECK(routes.load(rank).step_us == 0);
    }
    return all;
}

} // namespace

TEST_CASE("Random walks keep the books") {
    setting given{{4, 1, 16, 100, {}}, routing_options(), ctxpar_test::routing_model()};
    given.options.steps_to_come = 1 << 20;
    const struct {
        std::int64_t ranks, interleave, block_size, capacity, rows;
        bool any_merge;
    } domains[] = {{1, 1, 16, 20, 1, false},
                   {2, 4, 3, 300, 1, false},
                   {4, 1, 16, 60, 2, true},
                   {8, 16, 16, 50, 1, false},
                   {6, 5, 4, 200, 3, true}};
    tally all;
    std::uint64_t seed = 1;
    for (const auto& domain : domains) {
        given.domain = {domain.ranks, domain.interleave, domain.block_size, domain.capacity, {}};
        given.options.rows = domain.rows;
        given.model.merge = domain.any_merge ? std::nullopt : std::optional(merge_kind::a2a);
        const tally one = walk(given, seed++, 4000);
        CHECK(one.placed > 100);
        CHECK(one.full > 10);
        all.placed += one.placed;
        all.waited += one.waited;
        all.refused += one.refused;
        all.moved += one.moved;
        all.cancelled += one.cancelled;
    }
    CHECK(all.waited > 100);
    CHECK(all.refused > 10);
    CHECK(all.moved > 50);
    CHECK(all.cancelled > 20);
}
