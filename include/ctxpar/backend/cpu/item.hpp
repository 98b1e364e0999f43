// The units of work of attention on the CPU: which query vectors they take, which keys these see, and where results go.
//
// None depends on another, and each is done by one thread; so bits depend neither on threads nor on the rest of the
// batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

constexpr std::int64_t padded(std::int64_t width) {
    return (width + pad_floats - 1) / pad_floats * pad_floats;
}

// Some (row, head) pairs of a segment over one split of its keys. The pairs of a KV head are numbered by row, and
// within a row by head: pair = row_in_segment * heads_per_kv + head_in_group.
struct attend_item {
    const segment* run = nullptr;
    bool streams = false; // reads its keys where they lie; the same for all items of a segment
    std::int64_t kv_head = 0;
    std::int64_t kv_heads = 1; // from kv_head on; several only where it streams
    std::int64_t first_pair = 0;
    std::int64_t pairs = 0; // of each KV head
    std::int64_t split = 0; // 0 .. run->splits() - 1
};

// An item together with the call it belongs to.
template <class Args>
struct item_view {
    using query = std::remove_const_t<std::remove_reference_t<decltype(*std::declval<Args>().q.base)>>;
    using stored = std::remove_const_t<std::remove_reference_t<decltype(*std::declval<Args>().cache.k.base)>>;

    const Args& args;
    const attend_item& item;

    std::int64_t group() const { return args.q.heads / args.cache.kv_heads; } // query heads of a KV head
    std::int64_t row_of(std::int64_t pair) const { return item.run->first_row + (item.first_pair + pair) / group(); }
    std::int64_t head_of(std::int64_t kv_head, std::int64_t pair) const {
        return kv_head * group() + (item.first_pair + pair) % group();
    }
    const visible_keys& seen_by(std::int64_t pair) const { return args.plan.arrays.rows[row_of(pair)]; }

    // The keys of the item's split that some of its rows may see, [first_tile(), last_key()): in a segment bounds never
    // decrease; any of its rows may have a prefix.
    std::int64_t first_tile() const {
        const visible_keys* const rows = args.plan.arrays.rows;
        const bool prefix = std::any_of(rows + row_of(0), rows + row_of(item.pairs - 1) + 1,
                                        [](const visible_keys& row) { return row.prefix > 0; });
        const std::int64_t first = prefix ? 0 : std::max(item.run->begin, rows[row_of(0)].lo);
        return std::max(first, split_begin()) / tile_keys * tile_keys;
    }
    std::int64_t last_key() const {
        return std::min({item.run->end, seen_by(item.pairs - 1).hi, split_begin() + item.run->split_tokens});
    }
    std::int64_t split_begin() const { return (item.run->first_split + item.split) * item.run->split_tokens; }

    // O and LSE of one pair from its softmax and its sum of weighted values, [width]: to the output or, where the
    // segment has several splits, to the split's partials.
    void write(std::int64_t kv_head, std::int64_t pair, const running_softmax& state, const float* sum) const {
        const std::int64_t row = row_of(pair);
        const std::int64_t head = head_of(kv_head, pair);
        const natural_lse lse_value = state.finish();
        const bool nothing = is_minus_infinity(lse_value.value);
        if (item.run->splits() > 1) {
            const std::int64_t at = (item.split * args.out.rows + row) * args.out.heads + head;
            args.scratch.split_lse[at] = lse_value;
            float* const to = args.scratch.split_out + at * args.out.width;
            for (std::int64_t d = 0; d < args.out.width; ++d) to[d] = nothing ? 0.0F : sum[d] / state.sum;
            return;
        }
        using element = std::remove_reference_t<decltype(*args.out.base)>;
        element* const to = args.out.at(row, head);
        for (std::int64_t d = 0; d < args.out.width; ++d)
            to[d] = static_cast<element>(nothing ? 0.0F : sum[d] / state.sum);
        args.lse_out.at(row, head)->value = lse_value.value;
    }
};

} // namespace ctxpar::inline v0_1::cpu
