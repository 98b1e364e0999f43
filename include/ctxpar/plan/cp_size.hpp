// How many ranks should share the KV of some requests, and after how many steps moving to another number pays.
//
// Ranks are data-parallel replicas that can join into groups, a domain of G of them. Each holds whole weights: a rank
// of a group of N evaluates all H heads over its shard of the keys. So m = 1, Q needs no gather, and a merge that
// scatters heads is followed by a gather of all H again, unless the output projection takes scattered heads. N = 1 has
// no exchange. Of N ranks rank 0 is the slowest: it never owns fewer keys than another, of any request.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/topology.hpp>
#include <ctxpar/plan/cost.hpp>

namespace ctxpar::inline v0_1 {

// What one rank of a replica has of the model.
struct model_shape {
    std::int64_t heads = 1; // H, query heads
    std::int64_t query_width = 1;
    std::int64_t value_width = 1;
    std::int64_t bytes_per_token = 1;  // keys and values of one token and layer
    std::int64_t partial_bytes = 4;    // of one element of a partial output on its way
    std::int64_t output_bytes = 2;     // of one element of the merged output
    bool scattered_output = false;     // the output projection takes scattered heads
    std::optional<merge_kind> merge{}; // the policy's; none: the best at each size
};

// The replicas that may join, and how their caches are laid out.
struct cp_domain {
    std::int64_t ranks = 1;            // G
    std::int64_t interleave = 1;       // tokens
    std::int64_t capacity_tokens = -1; // that a rank's cache has room for; -1: never too few
};

// One size and what a layer costs with it.
struct cp_size_option {
    std::int64_t ranks = 1;             // N
    std::int64_t tokens = 0;            // on the fullest rank, all requests together
    bool legal = true;                  // the merge or the placement scatters no heads, or N divides them
    bool fits = true;                   // tokens <= capacity_tokens
    merge_kind merge = merge_kind::a2a; // means nothing for N = 1
    decode_cost cost;                   // zero where not legal
};

struct cp_size_choice {
    std::vector<cp_size_option> options; // ascending
    cp_size_option best;                 // the least total of those that are legal and fit; of equals the smallest
};

namespace detail {

inline void check_model(const model_shape& model) {
    const auto at_least_one = [](const char* name, std::int64_t value) {
        require(value >= 1, "size", "a model shape has ", name, " ", value, "; it must be at least 1");
    };
    at_least_one("heads", model.heads);
    at_least_one("query_width", model.query_width);
    at_least_one("value_width", model.value_width);
    at_least_one("bytes_per_token", model.bytes_per_token);
    at_least_one("partial_bytes", model.partial_bytes);
    at_least_one("output_bytes", model.output_bytes);
    require(model.merge != merge_kind::deferred, "placement",
            "the merge is deferred, which leaves partial sums; replicas that join have no sum behind the output "
            "projection that would add them, so the merge must be a2a, ag_rs or ag_ar");
}

inline void check_requests(std::span<const request_load> requests) {
    std::int64_t tokens = 0, rows = 0;
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max();
    for (const request_load& request : requests) {
        check_length(request.keys);
        require(request.keys <= largest - tokens, "length", "the requests have more tokens than fit 63 bits");
        require(request.rows >= 1 && request.rows <= most_rows - rows, "rows", "a request of ", request.rows,
                " query rows was given; each must have at least 1, and all together at most ", most_rows);
        tokens += request.keys;
        rows += request.rows;
    }
}

inline cp_size_option cp_size_cost(const machine_costs& costs, const model_shape& model,
                                   std::span<const request_load> requests, const ownership& law) {
    cp_size_option option;
    option.ranks = law.ranks;
    exchange_shape shape;
    shape.ranks = law.ranks;
    shape.gathered_heads = model.heads;
    shape.query_width = model.query_width;
    shape.value_width = model.value_width;
    shape.partial_bytes = model.partial_bytes;
    shape.output_bytes = model.output_bytes;
    shape.placement = model.scattered_output ? output_placement::scattered : output_placement::own_heads;
    std::vector<request_load> owned(requests.begin(), requests.end());
    for (request_load& request : owned) {
        request.keys = law.local_len(request.keys, 0);
        option.tokens += request.keys;
        shape.rows += request.rows;
    }
    const attention_load load{model.heads, model.query_width, model.value_width, model.bytes_per_token, 0, owned};
    option.merge = model.merge.value_or(merge_kind::ag_ar);
    option.legal = merge_serves(merge::dynamic{option.merge}, shape);
    if (!option.legal) return option;
    if (!model.merge) option.merge = best_merge(costs, shape, load).kind;
    option.cost = layer_us(costs, merge::dynamic{option.merge}, shape, load);
    return option;
}

[[noreturn]] inline void refuse_sizes(const cp_size_choice& choice, const model_shape& model, const cp_domain& domain) {
    std::string needs;
    for (const cp_size_option& option : choice.options) {
        needs += sentence(needs.empty() ? "" : ", ", option.ranks, option.ranks == 1 ? " rank " : " ranks ");
        needs += option.legal ? sentence("would hold ", option.tokens, " tokens each")
                              : sentence("do not divide the ", model.heads, " heads that are scattered");
    }
    raise(config_error("capacity", sentence("no CP size in a domain of ", domain.ranks, " ranks has room: ", needs,
                                            "; a rank has room for ", domain.capacity_tokens)));
}

} // namespace detail

// The cost of a layer for every CP size in the domain: the divisors of G, as many ranks as a merge takes. A request's
// keys are its length in tokens, this step's own included.
//
// config_error: "costs", "size" or "placement" of a model, "length" or "rows" of a request, "ranks" or "interleave" of
// a domain, and "capacity", with the tokens that each size needs, where none has room.
inline cp_size_choice cp_size_costs(const machine_costs& costs, const model_shape& model,
                                    std::span<const request_load> requests, const cp_domain& domain) {
    check(costs);
    detail::check_model(model);
    detail::check_requests(requests);
    make_ownership(domain.ranks, domain.interleave);
    require(domain.capacity_tokens >= -1, "capacity", "a capacity of ", domain.capacity_tokens,
            " tokens was given; it must be at least 0, or -1 for one without end");
    cp_size_choice choice;
    const cp_size_option* best = nullptr;
    const std::vector<std::int64_t> sizes = detail::candidate_divisors(domain.ranks);
    choice.options.reserve(sizes.size());
    for (const std::int64_t ranks : sizes) {
        if (ranks > max_merge_parts) break;
        choice.options.push_back(detail::cp_size_cost(costs, model, requests, {ranks, domain.interleave}));
        cp_size_option& option = choice.options.back();
        option.fits = domain.capacity_tokens < 0 || option.tokens <= domain.capacity_tokens;
        if (!option.legal || !option.fits) continue;
        if (best == nullptr || option.cost.total_us() < best->cost.total_us()) best = &option;
    }
    if (best == nullptr) detail::refuse_sizes(choice, model, domain);
    choice.best = *best;
    return choice;
}

// One layer of a prefill that computes the last new_tokens of `tokens` on N ranks, n = ceil(new_tokens / N) rows on
// each, whose queries travel:
//
//   attention of new_tokens rows over rank 0's share of tokens - new_tokens/2 keys
//   + an all_gather of n rows of queries, keys and values, an all_to_all of n rows of partials and its merge, if N > 1
//   + n * row_us, what a row takes in a layer outside the attention
//
// A bound where automatic paths let keys travel instead. config_error "costs", "size" of a model, "length", "rows".
inline double prefill_us(const machine_costs& costs, const model_shape& model, const ownership& law,
                         std::int64_t tokens, std::int64_t new_tokens, double row_us = 0) {
    check(costs);
    detail::check_model(model);
    check_length(tokens);
    require(new_tokens >= 1 && new_tokens <= tokens, "rows", "a prefill of ", new_tokens, " of ", tokens,
            " tokens was asked for; it must be of at least 1 and at most all of them");
    detail::check_cost("row_us", row_us, true);
    const request_load rows{new_tokens, law.local_len(tokens - new_tokens / 2, 0)};
    const attention_load load{model.heads, model.query_width, model.value_width, model.bytes_per_token, 0, {&rows, 1}};
    const auto own = static_cast<double>((new_tokens - 1) / law.ranks + 1);
    const double alone = attention_us(costs, load) + own * row_us;
    if (law.ranks == 1) return alone;
    const auto ranks = static_cast<std::int32_t>(law.ranks);
    const auto asked = static_cast<double>(model.heads * model.query_width * model.output_bytes);
    const auto partial = static_cast<double>(model.heads * (model.value_width * model.partial_bytes + 4));
    return alone +
           call_us(costs, collective_op::all_gather, ranks,
                   own * (asked + static_cast<double>(model.bytes_per_token))) +
           call_us(costs, collective_op::all_to_all, ranks, own * partial) + costs.merge_us +
           static_cast<double>(law.ranks) * own * partial / costs.merge_bytes_per_us;
}

// Moving a cache to other ranks: of `bytes` of all layers that leave the busiest rank, each is read and then sent.
//
//   bytes / read_bytes_per_us + bytes / bytes_per_us
//
// config_error "costs" for a rate that is not above 0.
inline double resharded_us(const machine_costs& costs, double bytes, double bytes_per_us) {
    detail::check_cost("read_bytes_per_us", costs.read_bytes_per_us, false);
    detail::check_cost("bytes_per_us of a reshard", bytes_per_us, false);
    detail::check_cost("the number of bytes of a reshard", bytes, true);
    return bytes / costs.read_bytes_per_us + bytes / bytes_per_us;
}

// The least number of steps after which a move that takes move_us has paid, a step taking before_us without it and
// after_us with it: the least n with n * (before_us - after_us) >= move_us. None where it never pays.
inline std::optional<std::int64_t> break_even(double move_us, double before_us, double after_us) {
    detail::check_cost("move_us", move_us, true);
    detail::check_cost("before_us", before_us, true);
    detail::check_cost("after_us", after_us, true);
    if (before_us <= after_us) return {};
    const double steps = std::ceil(move_us / (before_us - after_us));
    if (steps >= 9.2e18) return {}; // past 63 bits
    return static_cast<std::int64_t>(steps);
}

} // namespace ctxpar::inline v0_1
