// The pieces of work of an attention: some query rows of one request that share a KV head, and one split of their keys.
// Blocks take pieces in turns, so a launch depends on bounds only, and what it finds on the device decides the rest.
#pragma once

#include <cstdint>

#include <ctxpar/attention/rows.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/intrinsics.cuh>

namespace ctxpar::inline v0_1::cuda {

// Packed row p of a segment and KV head is query row p / group, head p % group of those that read the KV head.
struct attend_item {
    segment run;
    std::int64_t kv_head = 0;
    std::int64_t first = 0; // packed rows [first, first + count)
    std::int64_t count = 0;
    std::int64_t split = 0; // of run.splits(), or 0 where there are no keys
};

// Finds piece after piece, in increasing order. All lanes of a warp ask together.
class item_finder {
public:
    CTXPAR_DEVICE item_finder(const attention_plan& plan, int group, int rows_per_item)
        : plan_(plan), group_(group), rows_per_item_(rows_per_item) {}

    // Whether there is a piece `index`; it goes to `item`.
    CTXPAR_DEVICE bool find(unsigned index, attend_item& item) {
        for (; first_segment_ < plan_.segments; first_segment_ += warp_size) {
            const unsigned own = lane_index();
            const unsigned s = first_segment_ + own;
            unsigned through = s < plan_.segments ? pieces_of(plan_.arrays.segments[s]) : 0;
            for (unsigned step = 1; step < warp_size; step *= 2) {
                const unsigned other = from_lane(through, own - step); // of no meaning for the first lanes
                if (own >= step) through += other;
            }
            const unsigned all = from_lane(through, warp_size - 1);
            if (index < passed_ + all) {
                const unsigned later = vote(index < passed_ + through);
                const unsigned lane = first_bit(later);
                const unsigned before = lane == 0 ? 0 : from_lane(through, lane - 1);
                take(plan_.arrays.segments[first_segment_ + lane], index - passed_ - before, item);
                return true;
            }
            passed_ += all;
        }
        return false;
    }

private:
    CTXPAR_DEVICE std::int64_t row_items(const segment& run) const {
        return (run.rows * group_ + rows_per_item_ - 1) / rows_per_item_;
    }
    CTXPAR_DEVICE unsigned pieces_of(const segment& run) const {
        const std::int64_t splits = run.splits() > 1 ? run.splits() : 1;
        return static_cast<unsigned>(row_items(run) * splits * plan_.kv_heads);
    }
    // Pieces that read the same keys stand together, those with the most keys first.
    CTXPAR_DEVICE void take(const segment& run, unsigned piece, attend_item& item) const {
        const auto items = static_cast<unsigned>(row_items(run));
        const auto splits = static_cast<unsigned>(run.splits() > 1 ? run.splits() : 1);
        item.run = run;
        item.first = std::int64_t{items - 1 - piece % items} * rows_per_item_;
        const std::int64_t left = run.rows * group_ - item.first;
        item.count = left < rows_per_item_ ? left : rows_per_item_;
        item.split = piece / items % splits;
        item.kv_head = piece / items / splits;
    }

    const attention_plan& plan_;
    int group_;
    int rows_per_item_;
    unsigned first_segment_ = 0;
    unsigned passed_ = 0; // pieces of the segments before
};

// The keys that the rows of a piece see, as tiles of `keys` keys that begin at multiples of it: first those of an
// always-visible prefix, then those of the interval.
struct tile_range {
    visible_keys first_row; // lo, hi and tail never decrease from row to row
    visible_keys last_row;
    std::int64_t some_lo = 0; // keys [some_lo, some_hi) are seen by some row
    std::int64_t some_hi = 0;
    std::int64_t some_prefix = 0; // and keys before it
    std::int64_t full_prefix = 0; // keys before it are seen by all rows
    std::int64_t end = 0;         // no key of the piece's split lies at or past it
    std::int64_t prefix_first = 0;
    std::int64_t interval_first = 0;
    int prefix_tiles = 0;
    int tiles = 0;

    CTXPAR_DEVICE std::int64_t first_key(int tile, int keys) const {
        return tile < prefix_tiles ? prefix_first + std::int64_t{tile} * keys
                                   : interval_first + std::int64_t{tile - prefix_tiles} * keys;
    }
    // Whether some row sees the key; others are not read.
    CTXPAR_DEVICE bool needs(std::int64_t key) const {
        return key < end && (key < some_prefix || (key >= some_lo && key < some_hi));
    }
    // Whether all rows see all keys [first, first + keys).
    CTXPAR_DEVICE bool is_full(std::int64_t first, int keys) const {
        const std::int64_t past = first + keys;
        if (past > first_row.hi || past > first_row.tail) return false;
        return first >= last_row.lo || past <= full_prefix;
    }
};

CTXPAR_DEVICE bool sees_nothing(const visible_keys& row) {
    return row.lo == row.hi && row.prefix == 0;
}
CTXPAR_DEVICE int tiles_between(std::int64_t first, std::int64_t past, int keys) {
    return past > first ? static_cast<int>((past - first + keys - 1) / keys) : 0;
}
CTXPAR_DEVICE tile_range range_of(const attention_plan& plan, const attend_item& item, std::int64_t group, int keys) {
    const segment& run = item.run;
    tile_range range;
    range.first_row = plan.arrays.rows[run.first_row + item.first / group];
    const visible_keys* const last = plan.arrays.rows + run.first_row + (item.first + item.count - 1) / group;
    range.last_row = *last;
    // Rows that see nothing stand before those that see something (their tokens come first), or behind (filling); of
    // the others the first has the shortest prefix, and the last the longest.
    const visible_keys* some_first = plan.arrays.rows + run.first_row + item.first / group;
    const visible_keys* some_last = last;
    while (some_first < last && sees_nothing(*some_first)) ++some_first;
    while (some_last > some_first && sees_nothing(*some_last)) --some_last;
    range.some_lo = some_first->lo;
    range.some_hi = some_last->hi;
    range.some_prefix = some_last->prefix;
    range.full_prefix = some_last == last ? range.first_row.prefix : 0;
    range.prefix_first = (run.first_split + item.split) * run.split_tokens;
    range.end = range.prefix_first + run.split_tokens;
    const std::int64_t prefix = range.some_prefix, past = range.some_hi;
    range.prefix_tiles = tiles_between(range.prefix_first, prefix < range.end ? prefix : range.end, keys);
    const std::int64_t after_prefix = range.prefix_first + std::int64_t{range.prefix_tiles} * keys;
    const std::int64_t first = range.some_lo / keys * keys;
    range.interval_first = first < after_prefix ? after_prefix : first;
    range.tiles = range.prefix_tiles + tiles_between(range.interval_first, past < range.end ? past : range.end, keys);
    return range;
}

} // namespace ctxpar::inline v0_1::cuda
