// KV transfer between two deployments (prefill to decode): which bytes of which memory go where, as lists for an RDMA
// library or for copies.
//
// The tokens that go from a source shard to a target shard are the runs of a reshard; their slots follow from the
// tables of both sides, and the bytes of slots from the strides. A transfer is as long as both sides are contiguous:
// dense NHD tokens, blocks that follow one another in both pools, whole HND pages, and the keys and values of a whole
// page where they are one piece. NHD into HND is legal and makes short transfers, a row of a token and head each.
//
// Both sides find the same lists from the same descriptions (transfer_side.hpp) and tables. The work is proportional to
// the transfers, to the blocks of the tokens and to the chunks of I tokens that the two ranks hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/reshard.hpp>
#include <ctxpar/layout/transfer_link.hpp>
#include <ctxpar/layout/transfer_rows.hpp>
#include <ctxpar/layout/transfer_side.hpp>
#include <ctxpar/layout/transfer_slots.hpp>

namespace ctxpar::inline v0_1 {

// Which pairs of ranks and which layers are wanted.
struct transfer_scope {
    std::int64_t src_rank = -1; // place in the source's list of ranks; -1: all
    std::int64_t dst_rank = -1; // place in the target's
    std::int64_t first_layer = 0;
    std::int64_t last_layer = detail::largest_index; // layers [first_layer, last_layer)
};

struct transfer_totals {
    std::int64_t transfers = 0;
    std::int64_t bytes = 0;

    friend constexpr bool operator==(const transfer_totals&, const transfer_totals&) = default;
};

// The transfer of the tokens [first, end) of one request, checked. It refers to the link and to both tables, which must
// outlive it. Nothing allocates after construction.
class transfer_plan {
public:
    // Tables are those that all ranks of a side share. config_error "layout" (a cache of another N, I or B than the
    // link's), "range", "request", "table_too_short", "table" (an id outside a rank's pool), "whole_blocks".
    transfer_plan(const transfer_link& link, const paged_request& from, const paged_request& to, std::int64_t first,
                  std::int64_t end, transfer_unit unit = transfer_unit::tokens)
        : link_(&link), slots_{make_reshard(from.law, to.law), from, to, first, end, unit} {
        detail::check_token_range(first, end);
        check_cache(link.from(), slots_.from, "source");
        check_cache(link.to(), slots_.to, "target");
        if (unit == transfer_unit::blocks)
            check_whole_blocks({from.law, to.law}, from.table.block_size, to.table.block_size);
        detail::check_paged_request(slots_.from, first, end);
        detail::check_paged_request(slots_.to, first, end);
    }

    const transfer_link& link() const { return *link_; }

    // Calls visit(src_rank, dst_rank, const transfer&) for every transfer of a scope: source rank by source rank, for
    // each target rank by target rank, layer by layer. Where the blocks of the target's table differ and the two sides
    // share no memory, no two write the same byte and the source is only read, so they may be carried out in any order
    // and at once. config_error "rank", "layers" before the first call.
    template <class Visit>
    void for_each(const transfer_scope& scope, Visit&& visit) const {
        const auto [src_first, src_last] = ranks_of(scope.src_rank, link_->num_sources(), "source");
        const auto [dst_first, dst_last] = ranks_of(scope.dst_rank, link_->num_targets(), "target");
        require(scope.first_layer >= 0 && scope.first_layer <= scope.last_layer, "layers", "layers [",
                scope.first_layer, ", ", scope.last_layer,
                ") were named; the first must be at least 0 and the last at least the first");
        for (std::int64_t src = src_first; src < src_last; ++src)
            for (std::int64_t dst = dst_first; dst < dst_last; ++dst)
                for_each_of_pair(src, dst, scope.first_layer, scope.last_layer,
                                 [&](const transfer& each) { visit(src, dst, each); });
    }

    // How much a scope is, by counting.
    transfer_totals totals(const transfer_scope& scope = {}) const {
        transfer_totals all;
        for_each(scope, [&](std::int64_t, std::int64_t, const transfer& each) {
            ++all.transfers;
            all.bytes += each.bytes;
        });
        return all;
    }

private:
    struct interval {
        std::int64_t first, last;
    };

    static interval ranks_of(std::int64_t rank, std::int64_t count, const char* side) {
        require(rank >= -1 && rank < count, "rank", side, " rank ", rank, " was named; the ", side, " has ", count,
                " ranks, counted from 0, and -1 names all");
        return rank < 0 ? interval{0, count} : interval{rank, rank + 1};
    }

    // The pool of a request is the smallest of the ranks' pools.
    static void check_cache(const transfer_side& side, paged_request& cache, const char* name) {
        const bool same = cache.law == side.law && cache.table.block_size == side.block_size;
        require(same, "layout", "a cache of ", cache.law.ranks, " ranks, interleave ", cache.law.interleave,
                ", in blocks of ", cache.table.block_size, " tokens was offered as the ", name, " of a transfer for ",
                side.law.ranks, " ranks, interleave ", side.law.interleave, ", in blocks of ", side.block_size);
        for (const transfer_rank& rank : side.ranks) {
            const std::int64_t blocks = rank.geometry.pages * rank.geometry.page_size / side.block_size;
            cache.pool_blocks = cache.pool_blocks < 0 ? blocks : std::min(cache.pool_blocks, blocks);
        }
    }

    template <class Visit>
    void for_each_of_pair(std::int64_t src, std::int64_t dst, std::int64_t first_layer, std::int64_t last_layer,
                          const Visit& visit) const {
        const transfer_rank& from = link_->source(src);
        const transfer_rank& to = link_->target(dst);
        const auto last_of = [](const transfer_rank& rank) {
            return rank.first_layer + static_cast<std::int64_t>(rank.layers.size());
        };
        const std::int64_t last = std::min({last_layer, last_of(from), last_of(to)});
        for (std::int64_t layer = std::max({first_layer, from.first_layer, to.first_layer}); layer < last; ++layer)
            link_->heads_between(src, dst, layer, [&](const head_range& heads) {
                detail::for_each_transfer_of_layer(slots_, from, to, layer, heads, visit);
            });
    }

    const transfer_link* link_;
    detail::slot_plan slots_;
};

} // namespace ctxpar::inline v0_1
