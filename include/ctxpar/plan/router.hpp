// Dynamic CP: which ranks of a domain serve a request, and when it should go to more or fewer of them.
//
// A state machine of arithmetic alone: no clock, no input or output, no thread. Ranks of one program that make the same
// calls in the same order get the same answers, so each can keep a router of its own and none need ask another.
//
// A request's size is decided by the time of a step with it alone, at its length now, where rows that every rank of a
// group computes again count for each; its place by the load of the ranks (both: domain_load.hpp). While it moves, both
// groups hold its blocks and count its load.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/cp_size.hpp>
#include <ctxpar/plan/domain_load.hpp>
#include <ctxpar/plan/routing.hpp>

namespace ctxpar::inline v0_1 {

// A request that has its blocks.
struct routed_request {
    std::int64_t tokens = 0;        // its length now
    std::int64_t tokens_at_end = 0; // as it was admitted with
    placement at;                   // where it is served
    std::optional<placement> to;    // where it is moving

    // Blocks are reserved for the larger of both lengths.
    constexpr kv_demand demand() const { return {tokens, std::max(tokens, tokens_at_end)}; }
};

// What is refused changes nothing. config_error "request": an id that is not here, or is here already. Growing,
// shrinking and a review that finds no saving allocate nothing.
class router {
public:
    // config_error as domain_load.
    router(const machine_costs& costs, const model_shape& model, router_domain domain, const router_options& options)
        : load_(costs, model, std::move(domain), options) {}

    // Gives a request the size with the least time of those with room, of equals the smallest: of a step, or, where
    // new_tokens of its tokens are still to be prefilled, of that; then review it when they are. Of that size's groups
    // the one whose busiest rank has the shortest step with the request, then the most blocks left on its fullest rank,
    // then the lowest ranks. Blocks are reserved for the larger of both lengths. A request that waits or is refused
    // stays the caller's: nothing is remembered of it. config_error "length", "request", "rows" where there are more
    // new tokens than tokens.
    route_decision admit(std::int64_t id, std::int64_t tokens, std::int64_t tokens_at_end = 0,
                         std::int64_t new_tokens = 0) {
        check_length(tokens);
        check_length(tokens_at_end);
        require(new_tokens >= 0 && new_tokens <= tokens, "rows", "request ", id, " of ", tokens, " tokens has ",
                new_tokens, " new ones; there must be at least 0 and at most as many as it has");
        require(!knows(id), "request", "request ", id, " was admitted before; finish it first");
        routed_request asked{tokens, tokens_at_end, {}, {}};
        const kv_demand demand = asked.demand();
        const std::int64_t capacity = load_.domain().capacity_blocks;
        route_decision decision{route_outcome::refused, id, tokens, demand.reserved, {}, 0, capacity, {}};
        const cp_group_size* best = nullptr;
        for (const cp_group_size& size : load_.sizes()) {
            route_size& option = decision.sizes.emplace_back(load_.option_of(size, demand));
            if (option.legal && new_tokens > 0) option.step_us = load_.prefill_us(size, tokens, new_tokens);
            if (option.legal && option.blocks <= capacity && best == nullptr) decision.outcome = route_outcome::wait;
            if (!option.room || (best != nullptr && option.step_us >= decision.step_us)) continue;
            best = &size;
            decision.step_us = option.step_us;
        }
        if (best == nullptr) return decision;
        decision.outcome = route_outcome::placed;
        decision.at = asked.at = load_.place_for(*best, demand, {}).value();
        const auto place = requests_.emplace(id, asked).first;
        load_.enter(place->second.at, demand);
        return decision;
    }

    // Appends tokens to a request, in both of its groups where it moves. False: there is no room for their blocks, and
    // the request is as it was. config_error "length", "request".
    bool grow(std::int64_t id, std::int64_t tokens) {
        routed_request& request = find(id);
        check_length(tokens);
        return tokens <= detail::largest_index - request.tokens && resize(request, request.tokens + tokens);
    }

    // Takes tokens off a request's end, such as rejected drafts. config_error "length" where it has fewer, "request".
    void shrink(std::int64_t id, std::int64_t tokens) {
        routed_request& request = find(id);
        require(tokens >= 0 && tokens <= request.tokens, "length", "request ", id, " of ", request.tokens,
                " tokens was to lose ", tokens, "; it can lose at least 0 and at most all of them");
        resize(request, request.tokens - tokens);
    }

    // The move that leaves a request with the least time a step, of those to another size that has room while its
    // present blocks are kept, that save more than the part `hysteresis` of a step, and that pay within the steps to
    // come: what is missing to tokens_at_end at `rows` a step, or steps_to_come where there is no end ahead. None where
    // there is no such move or the request moves already. Changes nothing. config_error "request".
    //
    // Every move shortens a step by more than that part, so at one length there is no way back. A request goes from N2
    // to a divisor N1 only below (1 - hysteresis) times the length at which both take as long.
    std::optional<route_move> review(std::int64_t id) const {
        const routed_request& request = find(id);
        if (request.to) return {};
        const kv_demand demand = request.demand();
        const double before = alone_us(request.at.ranks, request.tokens);
        std::optional<route_move> best;
        for (const cp_group_size& size : load_.sizes()) {
            if (!size.legal || size.ranks == request.at.ranks) continue;
            const double after = load_.alone_us(size, request.tokens);
            if (after >= before * (1 - load_.options().hysteresis) || (best && after >= best->after_us)) continue;
            const std::optional<placement> to = load_.place_for(size, demand, request.at);
            if (!to) continue;
            route_move move = move_of(request, *to);
            const std::optional<std::int64_t> steps = break_even(move.move_us, before, after);
            if (!steps || *steps > move.to_come) continue;
            move.id = id;
            move.before_us = before;
            move.after_us = after;
            move.steps = *steps;
            best = move;
        }
        return best;
    }

    // Reserves a request's blocks in another group, while it is served where it is. False: there is no room, and
    // nothing has changed. config_error "request", "move" where it moves or is there already, "placement" where no
    // group of a legal size is.
    bool begin_move(std::int64_t id, const placement& to) {
        routed_request& request = find(id);
        require(!request.to, "move", "request ", id, " moves already; end or cancel that move first");
        require(load_.is_group(to), "placement", "request ", id, " was to move to ", to.ranks, " ranks from rank ",
                to.first, " on; a group has a legal size and starts at a multiple of it below ", load_.domain().ranks);
        require(to != request.at, "move", "request ", id, " is at ", detail::describe(to), " already");
        if (!load_.has_room(to, request.demand().reserved)) return false;
        load_.enter(to, request.demand());
        request.to = to;
        return true;
    }

    // From now on the request is served where it was moving, and its former blocks are free. config_error "request",
    // "move" where it does not move.
    void end_move(std::int64_t id) {
        routed_request& request = moving(id);
        load_.leave(request.at, request.demand());
        request.at = *std::exchange(request.to, {});
    }

    // The request stays where it is. config_error "request", "move" where it does not move.
    void cancel_move(std::int64_t id) {
        routed_request& request = moving(id);
        load_.leave(*request.to, request.demand());
        request.to.reset();
    }

    // Frees all blocks of a request, moving or not. config_error "request".
    void finish(std::int64_t id) {
        const routed_request& request = find(id);
        load_.leave(request.at, request.demand());
        if (request.to) load_.leave(*request.to, request.demand());
        requests_.erase(id);
    }

    bool knows(std::int64_t id) const { return requests_.contains(id); }
    std::int64_t requests() const { return std::ssize(requests_); }

    // Valid until the request is finished. config_error "request".
    const routed_request& request(std::int64_t id) const { return find(id); }

    // config_error "rank" outside the domain.
    rank_load load(std::int64_t rank) const { return load_.load(rank); }

private:
    domain_load load_;
    std::map<std::int64_t, routed_request> requests_;

    template <class Requests>
    static auto& find_in(Requests& requests, std::int64_t id) {
        const auto place = requests.find(id);
        require(place != requests.end(), "request", "there is no request ", id, " among the ", requests.size(),
                " that were placed; it waits, was refused, or has finished");
        return place->second;
    }
    routed_request& find(std::int64_t id) { return find_in(requests_, id); }
    const routed_request& find(std::int64_t id) const { return find_in(requests_, id); }

    routed_request& moving(std::int64_t id) {
        routed_request& request = find(id);
        require(request.to.has_value(), "move", "request ", id, " does not move; begin a move first");
        return request;
    }

    double alone_us(std::int64_t ranks, std::int64_t tokens) const {
        for (const cp_group_size& size : load_.sizes())
            if (size.ranks == ranks) return load_.alone_us(size, tokens);
        return 0;
    }

    // What it takes to move a request, and the steps to come.
    route_move move_of(const routed_request& request, const placement& to) const {
        route_move move;
        move.from = request.at;
        move.to = to;
        move.tokens = request.tokens;
        const regrouped tokens = regroup(request.at, to, load_.domain().interleave, request.tokens);
        move.moved = tokens.moved;
        move.move_us =
            resharded_us(load_.costs(),
                         static_cast<double>(tokens.busiest) * static_cast<double>(load_.model().bytes_per_token) *
                             static_cast<double>(load_.options().layers),
                         load_.options().reshard_bytes_per_us);
        const std::int64_t missing = request.tokens_at_end - request.tokens, rows = load_.options().rows;
        move.to_come = missing > 0 ? missing / rows + (missing % rows != 0 ? 1 : 0) : load_.options().steps_to_come;
        return move;
    }

    // False and nothing changed where a group of the request has no room.
    bool resize(routed_request& request, std::int64_t tokens) {
        routed_request changed = request;
        changed.tokens = tokens;
        if (!load_.resize(request.at, request.to, request.demand(), changed.demand())) return false;
        request = changed;
        return true;
    }
};

} // namespace ctxpar::inline v0_1
