// Attention of query rows over paged local keys on a device: the plain form, which takes any head size, any element
// types, any mask and any page layout. A warp takes one (row, head) and one split of its keys: lanes share the dot
// product of a key, every lane keeps the softmax, and each has its columns of the output.
//
// Sums have three levels, as on the CPU: a key, a cell of 1,024 keys, the split; P stays fp32.
#pragma once

#include <cstdint>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/intrinsics.cuh>

namespace ctxpar::inline v0_1::cuda {

// Output columns of a lane: value widths up to 32 * this.
inline constexpr int most_lane_columns = 16;
inline constexpr std::int64_t most_value_width = warp_size * most_lane_columns;

// The sum of what all lanes give, the same bits on every lane.
CTXPAR_DEVICE float sum_of_lanes(float value) {
    for (unsigned step = warp_size / 2; step > 0; step /= 2) value += from_lane_xor(value, step);
    return value;
}

// The state of one (row, head): a softmax and this lane's columns of the weighted values.
template <int Columns>
struct lane_state {
    softmax_state<lse_base::natural> softmax;
    float sums[Columns] = {};

    CTXPAR_DEVICE void merge(const lane_state& other) {
        const auto factor = softmax.merge(other.softmax);
        for (int c = 0; c < Columns; ++c) sums[c] = sums[c] * factor.own + other.sums[c] * factor.other;
    }
};

// What one warp works on.
struct warp_item {
    const segment* run;
    std::int64_t row;
    std::int64_t head;
    std::int64_t split;
};

template <class Args>
CTXPAR_DEVICE float score_of_key(const Args& args, const warp_item& item, std::int64_t kv_head, std::int64_t page,
                                 std::int64_t token) {
    const auto* const query = args.q.at(item.row, item.head);
    const auto* const key = args.cache.k.at(page, token, kv_head);
    float product = 0.0F;
    for (std::int64_t d = lane_index(); d < args.q.width; d += warp_size)
        product += static_cast<float>(query[d]) * static_cast<float>(key[d]);
    const float score = sum_of_lanes(product) * (args.score.scale * args.cache.k_scale.at(page, token, kv_head));
    const float cap = args.score.soft_cap;
    return cap > 0.0F ? cap * tanhf(score / cap) : score;
}

// All keys [begin, end) that the row sees.
template <int Columns, class Args>
CTXPAR_DEVICE lane_state<Columns> attend_keys(const Args& args, const warp_item& item, std::int64_t begin,
                                              std::int64_t end) {
    const visible_keys seen = args.plan.arrays.rows[item.row];
    const std::int64_t kv_head = item.head / (args.q.heads / args.cache.kv_heads);
    const bool shared = values_in_keys(args.cache);
    lane_state<Columns> total;
    lane_state<Columns> cell;
    for (std::int64_t key = begin; key < end; ++key) {
        if (key % split_grain == 0) {
            total.merge(cell);
            cell = {};
        }
        if (!seen.sees(key)) continue;
        const std::int64_t slot = args.plan.table.slot(item.run->request, key);
        const std::int64_t page = args.cache.page_of(slot);
        const std::int64_t token = args.cache.token_of(slot);
        const float score = score_of_key(args, item, kv_head, page, token);
        const float factor = cell.softmax.raise(score);
        const float value_scale = (shared ? args.cache.k_scale : args.cache.v_scale).at(page, token, kv_head);
        const float weight = cell.softmax.add(score) * value_scale;
        const auto* const value = args.cache.v.at(page, token, kv_head);
        for (int c = 0; c < Columns; ++c) {
            const std::int64_t d = c * static_cast<std::int64_t>(warp_size) + lane_index();
            if (d < args.out.width) cell.sums[c] = cell.sums[c] * factor + weight * static_cast<float>(value[d]);
        }
    }
    total.merge(cell);
    return total;
}

template <int Columns, class Args>
CTXPAR_DEVICE void attend_warp(const Args& args, const warp_item& item) {
    const segment& run = *item.run;
    const std::int64_t first = (run.first_split + item.split) * run.split_tokens;
    const visible_keys seen = args.plan.arrays.rows[item.row];
    const std::int64_t from = seen.prefix > 0 ? 0 : seen.lo;
    const std::int64_t begin = from > first ? from : first;
    const std::int64_t end = seen.hi < first + run.split_tokens ? seen.hi : first + run.split_tokens;
    const lane_state<Columns> state = attend_keys<Columns>(args, item, begin, end);
    const natural_lse lse_value = state.softmax.finish();
    const bool nothing = is_minus_infinity(lse_value.value);
    const bool split = run.splits() > 1;
    const std::int64_t at = (item.split * args.out.rows + item.row) * args.out.heads + item.head;
    using element = std::remove_reference_t<decltype(*args.out.base)>;
    for (int c = 0; c < Columns; ++c) {
        const std::int64_t d = c * static_cast<std::int64_t>(warp_size) + lane_index();
        if (d >= args.out.width) continue;
        const float value = nothing ? 0.0F : state.sums[c] / state.softmax.sum;
        if (split) {
            args.scratch.split_out[at * args.out.width + d] = value;
        } else {
            args.out.at(item.row, item.head)[d] = static_cast<element>(value);
        }
    }
    if (lane_index() != 0) return;
    if (split) {
        args.scratch.split_lse[at] = lse_value;
    } else {
        *args.lse_out.at(item.row, item.head) = lse_value;
    }
}

// Rows over blocks in x, splits in y; the warps of a block share the heads of a row.
template <int Columns, class Q, class Kv, class O>
CTXPAR_KERNEL void attend_plain_kernel(attend_args<Q, Kv, O, lse_base::natural> args) {
    const std::int64_t warps = block_threads() / warp_size;
    for (std::int64_t s = 0; s < args.plan.segments; ++s) {
        const segment& run = args.plan.arrays.segments[s];
        const std::int64_t splits = run.splits() > 1 ? run.splits() : 1;
        for (std::int64_t r = block_x(); r < run.rows; r += grid_x())
            for (std::int64_t split = block_y(); split < splits; split += grid_y())
                for (std::int64_t head = thread_index() / warp_size; head < args.q.heads; head += warps)
                    attend_warp<Columns>(args, {&run, run.first_row + r, head, split});
    }
}

} // namespace ctxpar::inline v0_1::cuda
