// What a router is told and what it answers: a domain of ranks, groups in it, decisions and moves, and why.
//
// A domain has G ranks, each a replica with a cache of its own. A group of N ranks starts at a multiple of N and N
// divides G; of two groups, one whose size divides the other's lies inside the other or apart from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/topology.hpp>
#include <ctxpar/plan/cost.hpp>

namespace ctxpar::inline v0_1 {

// The ranks first .. first + ranks - 1 of a domain, which share the KV of a request.
struct placement {
    std::int64_t first = 0;
    std::int64_t ranks = 1; // N

    constexpr bool holds(std::int64_t rank) const { return rank >= first && rank - first < ranks; }
    friend constexpr bool operator==(const placement&, const placement&) = default;
};

// The replicas that may join, and their caches.
struct router_domain {
    std::int64_t ranks = 1;           // G
    std::int64_t interleave = 1;      // tokens
    std::int64_t block_size = 1;      // tokens
    std::int64_t capacity_blocks = 0; // of each rank's pool
    std::vector<std::int64_t> sizes;  // sizes that groups may have, in any order; empty: all divisors of G up to 256
};

struct router_options {
    std::int64_t layers = 1;         // a step is as many layers
    std::int64_t rows = 1;           // query rows of a request in a step
    double row_us = 0;               // of a prefill's row in a layer, outside the attention
    double decode_row_us = 0;        // of a decode row; every rank of a group computes it, and it counts for each: what
                                     // its ranks could do else. 0: they would be idle, and the fastest size is best
    double hysteresis = 0.1;         // part of a step's time that a move must save; at least 0, below 1
    double reshard_bytes_per_us = 0; // that a rank sends while a request moves; above 0
    std::int64_t steps_to_come = 256; // that a request is taken to make still, where it names no end
};

// What is wrong with a domain: config_error "ranks" (1 .. 65536), "interleave", "block_size", "capacity" (at least 1
// block, and tokens that fit 63 bits), "sizes" (each must divide G and be at most 256, none twice).
inline void check(const router_domain& domain) {
    constexpr std::int64_t most_ranks = 65536;
    require(domain.ranks >= 1 && domain.ranks <= most_ranks, "ranks", "a domain of ", domain.ranks,
            " ranks was given; it must have at least 1 and at most ", most_ranks);
    make_ownership(domain.ranks, domain.interleave);
    check_block_size(domain.block_size);
    require(domain.capacity_blocks >= 1 && domain.capacity_blocks <= detail::largest_index / domain.block_size,
            "capacity", "a capacity of ", domain.capacity_blocks,
            " blocks a rank was given; it must be at least 1 and, ", "at ", domain.block_size,
            " tokens a block, at most ", detail::largest_index / domain.block_size);
    for (auto size = domain.sizes.begin(); size != domain.sizes.end(); ++size) {
        if (*size >= 1 && *size <= max_merge_parts && domain.ranks % *size == 0) {
            require(std::find(domain.sizes.begin(), size, *size) == size, "sizes", "the size ", *size,
                    " is listed twice");
            continue;
        }
        std::vector<std::int64_t> legal = detail::candidate_divisors(domain.ranks);
        std::erase_if(legal, [](std::int64_t ranks) { return ranks > max_merge_parts; });
        raise(config_error("sizes",
                           sentence("groups of ", *size, " ranks were asked for in a domain of ", domain.ranks,
                                    "; a size must divide the domain and be at most ", max_merge_parts, ": one of ",
                                    detail::join(legal)),
                           legal));
    }
}

// config_error "size" (layers below 1), "rows" (1 .. 65536), "hysteresis", "costs" (row_us, decode_row_us, the rate of
// a reshard), "steps".
inline void check(const router_options& options) {
    constexpr std::int64_t most_rows = 65536;
    require(options.layers >= 1, "size", "a model of ", options.layers, " layers was given; it must have at least 1");
    require(options.rows >= 1 && options.rows <= most_rows, "rows", "a request was given ", options.rows,
            " query rows a step; it must have at least 1 and at most ", most_rows);
    detail::check_cost("row_us", options.row_us, true);
    detail::check_cost("decode_row_us", options.decode_row_us, true);
    require(options.hysteresis >= 0 && options.hysteresis < 1, "hysteresis", "a hysteresis of ",
            detail::number_text(options.hysteresis), " was given; it must be at least 0 and below 1");
    detail::check_cost("bytes_per_us of a reshard", options.reshard_bytes_per_us, false);
    require(options.steps_to_come >= 0, "steps", "there are ", options.steps_to_come,
            " steps to come; there must be at least 0");
}

// How a request fared: it has its blocks, or it finds none now but would in an emptier domain, or it never can.
enum class route_outcome : std::uint8_t { placed, wait, refused };

constexpr const char* name_of(route_outcome outcome) {
    return outcome == route_outcome::placed ? "placed" : (outcome == route_outcome::wait ? "wait" : "refused");
}

// One size of a group, for one request.
struct route_size {
    std::int64_t ranks = 1;       // N
    bool legal = true;            // the merge or the placement scatters no heads, or N divides them
    double step_us = 0;           // of a step with this request alone, or of its prefill; 0 where not legal
    std::int64_t blocks = 0;      // that its fullest rank needs
    std::int64_t free_blocks = 0; // that every rank of one group has now, of the group that has most
    bool room = false;            // a group has what each of its ranks needs now
};

struct route_decision {
    route_outcome outcome = route_outcome::refused;
    std::int64_t id = 0;
    std::int64_t tokens = 0;
    std::int64_t reserved = 0; // tokens that blocks were asked for
    placement at;              // where placed
    double step_us = 0;        // of a step there with this request alone
    std::int64_t capacity_blocks = 0;
    std::vector<route_size> sizes; // ascending
};

// A move that saves time. Costs are of steps with this request alone.
struct route_move {
    std::int64_t id = 0;
    placement from, to;
    double before_us = 0; // of a step
    double after_us = 0;
    std::int64_t tokens = 0;  // of the request
    std::int64_t moved = 0;   // of them that change rank
    double move_us = 0;       // for all layers
    std::int64_t steps = 0;   // after which it has paid
    std::int64_t to_come = 0; // steps that the request is taken to make still
};

// Tokens of a request that change rank where it goes from one group of a domain to another.
struct regrouped {
    std::int64_t moved = 0;
    std::int64_t busiest = 0; // that leave or reach one rank, at the rank with most

    friend constexpr bool operator==(const regrouped&, const regrouped&) = default;
};

namespace detail {

// Tokens that a rank owns in both groups. They are those of one rank of a group of lcm(N1, N2).
constexpr std::int64_t kept_on(std::int64_t rank, const placement& from, const placement& to, std::int64_t interleave,
                               std::int64_t tokens) {
    if (!from.holds(rank) || !to.holds(rank)) return 0;
    const std::int64_t both = std::lcm(from.ranks, to.ranks);
    for (std::int64_t turn = rank - from.first; turn < both; turn += from.ranks)
        if (turn % to.ranks == rank - to.first) return ownership{both, interleave}.local_len(tokens, turn);
    return 0;
}

inline std::string describe(const placement& at) {
    if (at.ranks == 1) return sentence("CP 1 on rank ", at.first);
    return sentence("CP ", at.ranks, " on ranks ", at.first, "..", at.first + at.ranks - 1);
}

inline std::string describe(const route_size& size, std::int64_t capacity_blocks) {
    if (!size.legal) return sentence("CP ", size.ranks, " does not divide the heads that are scattered");
    const std::string text = sentence("CP ", size.ranks, " ", number_text(size.step_us), " us");
    if (size.room) return text;
    return size.blocks > capacity_blocks
               ? sentence(text, " (needs ", size.blocks, " blocks a rank, which has ", capacity_blocks, ")")
               : sentence(text, " (needs ", size.blocks, " blocks a rank, of which ", size.free_blocks, " are free)");
}

} // namespace detail

// Both groups lie in one domain, have its interleave and sizes that divide it. At most G steps of arithmetic.
constexpr regrouped regroup(const placement& from, const placement& to, std::int64_t interleave, std::int64_t tokens) {
    regrouped count;
    for (std::int64_t i = 0; i < from.ranks; ++i) {
        const std::int64_t leave = ownership{from.ranks, interleave}.local_len(tokens, i) -
                                   detail::kept_on(from.first + i, from, to, interleave, tokens);
        count.moved += leave;
        count.busiest = std::max(count.busiest, leave);
    }
    for (std::int64_t i = 0; i < to.ranks; ++i) {
        const std::int64_t arrive = ownership{to.ranks, interleave}.local_len(tokens, i) -
                                    detail::kept_on(to.first + i, from, to, interleave, tokens);
        count.busiest = std::max(count.busiest, arrive);
    }
    return count;
}

// Why a request was placed, waits or was refused: one sentence with the predicted time of every size.
inline std::string explain(const route_decision& decision) {
    std::string text = sentence("request ", decision.id, " of ", decision.tokens, " tokens");
    if (decision.reserved > decision.tokens) text += sentence(", with blocks for ", decision.reserved, ",");
    if (decision.outcome == route_outcome::placed)
        text += sentence(" gets ", detail::describe(decision.at), ", the least time a step of the sizes with room");
    else if (decision.outcome == route_outcome::wait)
        text += " waits, for no group has room now";
    else
        text += " can never fit";
    for (const route_size& size : decision.sizes)
        text += (&size == decision.sizes.data() ? ": " : ", ") + detail::describe(size, decision.capacity_blocks);
    return text;
}

// Why a request should move: one sentence.
inline std::string explain(const route_move& move) {
    return sentence("request ", move.id, " of ", move.tokens, " tokens goes from ", detail::describe(move.from), " to ",
                    detail::describe(move.to), ": a step takes ", detail::number_text(move.after_us), " us and not ",
                    detail::number_text(move.before_us), "; ", move.moved, " tokens change rank in ",
                    detail::number_text(move.move_us), " us, which has paid after ", move.steps, " of ", move.to_come,
                    " steps to come");
}

} // namespace ctxpar::inline v0_1
