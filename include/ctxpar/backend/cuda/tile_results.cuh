// The results of a piece: to the output, or to the scratch of the splits.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tile_block.cuh>

namespace ctxpar::inline v0_1::cuda {

// Sums over all threads of a row.
template <class Block>
CTXPAR_DEVICE void sum_over_threads(const Block& b, typename Block::rows& state) {
    constexpr int columns = Block::shape.columns;
    CTXPAR_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
        float& sum = state.sum[half];
        sum += from_lane_xor(sum, 1);
        sum += from_lane_xor(sum, 2);
        if constexpr (columns > 1) {
            if (b.lane % 4 == 0) b.row_values()[b.column() * Block::shape.rows() + b.row_of(half)] = sum;
        }
    }
    if constexpr (columns > 1) {
        sync_block();
        CTXPAR_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
            state.sum[half] = 0.0F;
            CTXPAR_UNROLL_ALL
            for (int c = 0; c < columns; ++c)
                state.sum[half] += b.row_values()[c * Block::shape.rows() + b.row_of(half)];
        }
    }
}

// What belongs to one of a thread's two rows. An index that is not a constant would put registers into local memory.
CTXPAR_DEVICE float of_half(int half, float first, float second) {
    return half == 0 ? first : second;
}

// The thread's columns of one row, in fp32 or, where `narrow` is not null, there in the queries' type.
template <class Block>
CTXPAR_DEVICE void write_columns(const Block& b, float* wide, typename Block::query* narrow,
                                 const typename Block::rows& state, int half, float share) {
    using query = typename Block::query;
    constexpr int value_tiles = Block::shape.value_tiles();
    const int first = b.column() * value_tiles * 8 + b.lane % 4 * 2;
    // Distances from the first column are constants: columns themselves would be kept in registers all the time.
    const std::int64_t left = b.args.out.width - first;
    wide += first;
    narrow += narrow == nullptr ? 0 : first;
    CTXPAR_UNROLL_ALL
    for (int n = 0; n < value_tiles; ++n) {
        const float low = of_half(half, state.out[n].at[0], state.out[n].at[2]) * share;
        const float high = of_half(half, state.out[n].at[1], state.out[n].at[3]) * share;
        const int d = n * 8;
        if (narrow != nullptr) {
            const std::uint32_t pair = pack_pair<query>(low, high);
            if (d < left) narrow[d] = query::from_bits(static_cast<std::uint16_t>(pair & 0xffffU));
            if (d + 1 < left) narrow[d + 1] = query::from_bits(static_cast<std::uint16_t>(pair >> 16));
        } else {
            if (d < left) wide[d] = low;
            if (d + 1 < left) wide[d + 1] = high;
        }
    }
}

template <class Block>
CTXPAR_DEVICE void write_row(const Block& b, const typename Block::rows& state, int half) {
    const auto& args = b.args;
    const std::int64_t packed = b.item().first + b.row_of(half);
    const std::int64_t row = b.item().run.first_row + packed / b.group;
    const std::int64_t head = b.item().kv_head * b.group + packed % b.group;
    const float sum = of_half(half, state.sum[0], state.sum[1]);
    const bool nothing = sum == 0.0F;
    const float share = nothing ? 0.0F : 1.0F / sum;
    const float max = of_half(half, state.max[0], state.max[1]);
    const natural_lse lse_value{nothing ? -float_infinity : max + logf(sum)};
    const bool split = b.item().run.splits() > 1;
    std::int64_t at = args.out.offset(row, head);
    natural_lse* lse_at = args.lse_out.at(row, head);
    if (split) {
        const std::int64_t vector = (b.item().split * args.out.rows + row) * args.out.heads + head;
        at = vector * args.out.width;
        lse_at = args.scratch.split_lse + vector;
    }
    float* const wide = (split ? args.scratch.split_out : args.out.base) + at;
    write_columns(b, wide, split || b.narrow_base == nullptr ? nullptr : b.narrow_base + at, state, half, share);
    if (b.column() == 0 && b.lane % 4 == 0) *lse_at = lse_value;
}

// The code of a row is long, so that it is there once for both.
template <class Block>
CTXPAR_DEVICE void write_results(const Block& b, typename Block::rows& state) {
    sum_over_threads(b, state);
    CTXPAR_ROLLED
    for (int half = 0; half < 2; ++half) {
        if (b.row_of(half) < b.item().count) write_row(b, state, half);
    }
}

} // namespace ctxpar::inline v0_1::cuda
