// What the ranks of a domain hold: the blocks and the load of requests that were placed in groups of them.
//
//   a request alone    layers * (layer_us + N * rows * decode_row_us)     cp_size.hpp, at its length
//   blocks of a rank   sum over requests of ceil(local_len / B)            of the tokens they reserve
//   a rank's step      layers * (attention of all its requests and the keys it holds, in one call
//                                + exchange and merge of each group it is in, once for all requests of the group)
//                      0 without a request
//
// Sums are of whole numbers, and times are made from them anew: what has left leaves nothing behind.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/topology.hpp>
#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/cp_size.hpp>
#include <ctxpar/plan/routing.hpp>

namespace ctxpar::inline v0_1 {

struct rank_load {
    std::int64_t requests = 0;
    std::int64_t tokens = 0; // cached on this rank
    std::int64_t blocks = 0; // reserved
    std::int64_t free_blocks = 0;
    double step_us = 0; // predicted
};

// A request's part in the books: its length, and the tokens that blocks are reserved for, at least as many.
struct kv_demand {
    std::int64_t tokens = 0;
    std::int64_t reserved = 0;

    friend constexpr bool operator==(const kv_demand&, const kv_demand&) = default;
};

// A size that groups may have.
struct cp_group_size {
    std::int64_t ranks = 1; // N
    bool legal = false;     // the merge or the placement scatters no heads, or N divides them
    decode_cost exchange;   // of a layer with one request, without its attention
};

// Placements that are passed are groups of a legal size of the domain. Only the constructor and load() check.
class domain_load {
public:
    // config_error of check(costs), check(domain), check(options), "size" of a model, "scatter_heads" where no size
    // divides the heads.
    domain_load(const machine_costs& costs, const model_shape& model, router_domain domain,
                const router_options& options)
        : costs_(costs), model_(model), domain_(std::move(domain)), options_(options) {
        check(costs_);
        detail::check_model(model_);
        check(domain_);
        check(options_);
        std::vector<std::int64_t> sizes = domain_.sizes;
        if (sizes.empty()) sizes = detail::candidate_divisors(domain_.ranks);
        std::sort(sizes.begin(), sizes.end());
        while (sizes.back() > max_merge_parts) sizes.pop_back();
        bool any = false;
        for (const std::int64_t ranks : sizes) {
            const cp_size_option option = cost_of(ranks, 1);
            any = any || option.legal;
            sizes_.push_back({ranks, option.legal, option.cost});
            groups_.emplace_back(at(domain_.ranks / ranks));
        }
        require(any, "scatter_heads", "no size of a group, of ", detail::join(sizes), ", divides the ", model_.heads,
                " heads that are scattered; name another size, or merge with merge::ag_ar and place own_heads");
        ranks_.resize(at(domain_.ranks));
        const request_load empty{options_.rows, 0};
        request_us_ = attention_us(costs_, load_of(std::span(&empty, 1))) - attention_us(costs_, load_of({}));
    }

    const router_domain& domain() const { return domain_; }
    const router_options& options() const { return options_; }
    const machine_costs& costs() const { return costs_; }
    const model_shape& model() const { return model_; }
    std::span<const cp_group_size> sizes() const { return sizes_; } // ascending

    bool is_group(const placement& place) const {
        return place.first >= 0 && place.first < domain_.ranks && place.ranks >= 1 && place.first % place.ranks == 0 &&
               std::any_of(sizes_.begin(), sizes_.end(),
                           [&](const cp_group_size& size) { return size.legal && size.ranks == place.ranks; });
    }

    // A step of a request alone.
    double alone_us(const cp_group_size& size, std::int64_t tokens) const {
        decode_cost layer = size.exchange;
        layer.attention_us = attention_of(1, law_of(size.ranks).local_len(tokens, 0));
        const double rows_us = static_cast<double>(size.ranks * options_.rows) * options_.decode_row_us;
        return static_cast<double>(options_.layers) * (layer.total_us() + rows_us);
    }

    // The prefill of a request alone.
    double prefill_us(const cp_group_size& size, std::int64_t tokens, std::int64_t new_tokens) const {
        return static_cast<double>(options_.layers) *
               ctxpar::prefill_us(costs_, model_, law_of(size.ranks), tokens, new_tokens, options_.row_us);
    }

    // What a size is for a request now, its blocks in other groups kept.
    route_size option_of(const cp_group_size& size, const kv_demand& demand) const {
        route_size option{size.ranks, size.legal, 0, blocks_of(size.ranks, demand.reserved, 0), 0, false};
        if (!size.legal) return option;
        option.step_us = alone_us(size, demand.tokens);
        for (std::int64_t first = 0; first < domain_.ranks; first += size.ranks) {
            const placement place{first, size.ranks};
            std::int64_t free_blocks = domain_.capacity_blocks;
            for (std::int64_t i = 0; i < size.ranks; ++i)
                free_blocks = std::min(free_blocks, domain_.capacity_blocks - ranks_[at(first + i)].blocks);
            option.free_blocks = std::max(option.free_blocks, free_blocks);
            option.room = option.room || has_room(place, demand.reserved);
        }
        return option;
    }

    bool has_room(const placement& place, std::int64_t reserved) const { return most_left(place, reserved) >= 0; }

    // Of the groups of a size with room the one whose busiest rank has the shortest step with the request there, and
    // no longer in the group it may be leaving; then the most blocks left on its fullest rank; then the lowest ranks.
    std::optional<placement> place_for(const cp_group_size& size, const kv_demand& demand,
                                       const std::optional<placement>& leaving) const {
        std::array<change, 2> changes;
        if (leaving)
            changes[1] = {*leaving, demand.tokens, -1, exchange_of(leaving->ranks, group_at(*leaving).requests - 1)};
        std::optional<placement> best;
        double best_us = 0;
        std::int64_t best_left = 0;
        for (std::int64_t first = 0; first < domain_.ranks; first += size.ranks) {
            const placement place{first, size.ranks};
            const std::int64_t left = most_left(place, demand.reserved);
            if (left < 0) continue;
            changes[0] = {place, demand.tokens, 1, exchange_of(size.ranks, group_at(place).requests + 1)};
            double us = 0;
            for (std::int64_t i = 0; i < size.ranks; ++i)
                us = std::max(us, step_us(first + i, std::span(changes).first(leaving ? 2 : 1)));
            if (best && (us > best_us || (us == best_us && left <= best_left))) continue;
            best = place;
            best_us = us;
            best_left = left;
        }
        return best;
    }

    void enter(const placement& place, const kv_demand& demand) { count(place, demand, 1); }
    void leave(const placement& place, const kv_demand& demand) { count(place, demand, -1); }

    // Another length of a request that is in one group or in two. False: a rank has no room, and nothing has changed.
    bool resize(const placement& place, const std::optional<placement>& also, const kv_demand& before,
                const kv_demand& after) {
        const placement second = also.value_or(placement{0, 0});
        if (!has_room_to_resize(place, second, before, after) || !has_room_to_resize(second, place, before, after))
            return false;
        for (const placement& each : {place, second}) {
            hold(each, before, -1);
            hold(each, after, 1);
        }
        return true;
    }

    // config_error "rank" outside the domain.
    rank_load load(std::int64_t rank) const {
        require(rank >= 0 && rank < domain_.ranks, "rank", "rank ", rank, " was asked for; the domain has ranks 0..",
                domain_.ranks - 1);
        const held& own = ranks_[at(rank)];
        return {own.requests, own.keys, own.blocks, domain_.capacity_blocks - own.blocks, step_us(rank, {})};
    }

private:
    struct held {
        std::int64_t requests = 0, keys = 0, blocks = 0;
    };
    struct group {
        std::int64_t requests = 0;
        double exchange_us = 0; // of a layer, merge included
    };
    // A request put into a group or taken out of it.
    struct change {
        placement place;
        std::int64_t tokens = 0, sign = 1;
        double exchange_us = 0; // of the group then
    };

    machine_costs costs_;
    model_shape model_;
    router_domain domain_;
    router_options options_;
    double request_us_ = 0; // of one more request without keys in an attention call
    std::vector<cp_group_size> sizes_;
    std::vector<std::vector<group>> groups_; // of each size, by first rank
    std::vector<held> ranks_;

    static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
    ownership law_of(std::int64_t ranks) const { return {ranks, domain_.interleave}; }

    std::int64_t blocks_of(std::int64_t ranks, std::int64_t tokens, std::int64_t rank) const {
        return blocks_for(law_of(ranks).local_len(tokens, rank), domain_.block_size);
    }

    // A layer of `requests` requests without keys.
    cp_size_option cost_of(std::int64_t ranks, std::int64_t requests) const {
        const request_load load{requests * options_.rows, 0};
        cp_size_option option = detail::cp_size_cost(costs_, model_, std::span(&load, 1), law_of(ranks));
        option.cost.attention_us = 0;
        return option;
    }
    double exchange_of(std::int64_t ranks, std::int64_t requests) const {
        if (requests <= 1) return requests == 0 ? 0 : sizes_[index_of(ranks)].exchange.total_us();
        return cost_of(ranks, requests).cost.total_us();
    }

    attention_load load_of(std::span<const request_load> requests) const {
        return {model_.heads, model_.query_width, model_.value_width, model_.bytes_per_token, 0, requests};
    }
    // One call of attention for requests that have `keys` keys together.
    double attention_of(std::int64_t requests, std::int64_t keys) const {
        const request_load all{options_.rows, keys};
        return attention_us(costs_, load_of(std::span(&all, 1))) + static_cast<double>(requests - 1) * request_us_;
    }

    std::size_t index_of(std::int64_t ranks) const {
        const auto size =
            std::find_if(sizes_.begin(), sizes_.end(), [&](const cp_group_size& each) { return each.ranks == ranks; });
        return at(size - sizes_.begin());
    }
    const group& group_at(const placement& place) const {
        return groups_[index_of(place.ranks)][at(place.first / place.ranks)];
    }

    // The step of a rank as if requests had come or gone.
    double step_us(std::int64_t rank, std::span<const change> changes) const {
        std::int64_t requests = ranks_[at(rank)].requests, keys = ranks_[at(rank)].keys;
        for (const change& each : changes) {
            if (!each.place.holds(rank)) continue;
            requests += each.sign;
            keys += each.sign * law_of(each.place.ranks).local_len(each.tokens, rank - each.place.first);
        }
        if (requests == 0) return 0;
        double layer = attention_of(requests, keys);
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            double exchange = groups_[i][at(rank / sizes_[i].ranks)].exchange_us;
            for (const change& each : changes)
                if (each.place.ranks == sizes_[i].ranks && each.place.holds(rank)) exchange = each.exchange_us;
            layer += exchange;
        }
        return static_cast<double>(options_.layers) * layer;
    }

    // Blocks left on the fullest rank of a group that takes in so many tokens more; negative where they do not fit.
    std::int64_t most_left(const placement& place, std::int64_t reserved) const {
        std::int64_t left = std::numeric_limits<std::int64_t>::max();
        for (std::int64_t i = 0; i < place.ranks; ++i)
            left = std::min(left, domain_.capacity_blocks - ranks_[at(place.first + i)].blocks -
                                      blocks_of(place.ranks, reserved, i));
        return left;
    }

    // Whether the ranks of `place` have room, those that `also` holds for both.
    bool has_room_to_resize(const placement& place, const placement& also, const kv_demand& before,
                            const kv_demand& after) const {
        for (std::int64_t i = 0; i < place.ranks; ++i) {
            const std::int64_t rank = place.first + i;
            std::int64_t left = domain_.capacity_blocks - ranks_[at(rank)].blocks +
                                blocks_of(place.ranks, before.reserved, i) - blocks_of(place.ranks, after.reserved, i);
            if (left >= 0 && also.holds(rank))
                left += blocks_of(also.ranks, before.reserved, rank - also.first) -
                        blocks_of(also.ranks, after.reserved, rank - also.first);
            if (left < 0) return false;
        }
        return true;
    }

    void hold(const placement& place, const kv_demand& demand, std::int64_t sign) {
        for (std::int64_t i = 0; i < place.ranks; ++i) {
            held& rank = ranks_[at(place.first + i)];
            rank.keys += sign * law_of(place.ranks).local_len(demand.tokens, i);
            rank.blocks += sign * blocks_of(place.ranks, demand.reserved, i);
        }
    }

    void count(const placement& place, const kv_demand& demand, std::int64_t sign) {
        group& joined = groups_[index_of(place.ranks)][at(place.first / place.ranks)];
        joined.exchange_us = exchange_of(place.ranks, joined.requests + sign); // may throw, so it comes first
        joined.requests += sign;
        hold(place, demand, sign);
        for (std::int64_t i = 0; i < place.ranks; ++i) ranks_[at(place.first + i)].requests += sign;
    }
};

} // namespace ctxpar::inline v0_1
