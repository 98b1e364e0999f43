// The splits of a row's keys, put together.
#pragma once

#include <cstdint>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/attend_output.cuh>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/pieces.cuh>

namespace ctxpar::inline v0_1::cuda {

// What there is to put together, and where it goes: `out` says where elements lie, in fp32 or, where narrow_base is not
// null, there in another type.
template <class Narrow>
struct splits_call {
    const segment* segments;
    std::int64_t segment_count;
    attend_scratch scratch;
    head_view<float> out;
    head_view<natural_lse> lse_out;
    Narrow* narrow_base;
};
template <class Q, class Kv>
splits_call<Q> splits_call_of(const attend_call<Q, Kv>& call) {
    const auto& from = call.attend;
    return {from.plan.arrays.segments, from.plan.segments, from.scratch, from.out, from.lse_out, call.narrow_base};
}

// The splits of one (row, head), by one warp.
template <class Narrow>
CTXPAR_DEVICE void combine_splits(const splits_call<Narrow>& call, std::int64_t splits, std::int64_t row,
                                  std::int64_t head) {
    const head_view<float>& out = call.out;
    const std::int64_t step = out.rows * out.heads;
    const std::int64_t first = row * out.heads + head;
    const natural_lse* const lses = call.scratch.split_lse + first;
    merge_weights<lse_base::natural> weights;
    for (std::int64_t part = 0; part < splits; ++part) weights.see(lses[part * step]);
    for (std::int64_t part = 0; part < splits; ++part) weights.add(lses[part * step]);
    const std::int64_t at = out.offset(row, head);
    Narrow* const narrow = call.narrow_base == nullptr ? nullptr : call.narrow_base + at;
    float* const wide = out.base + at;
    const float* const from = call.scratch.split_out + first * out.width;
    const std::uintptr_t bits =
        address_bits(from, from + step * out.width) |
        (narrow == nullptr ? reinterpret_cast<std::uintptr_t>(wide) : reinterpret_cast<std::uintptr_t>(narrow));
    each_piece_of<sizeof(float), sizeof(Narrow)>(out.width, bits, [&](auto size, std::int64_t d) {
        constexpr int count = decltype(size)::value;
        piece_of_floats<count> sum = {};
        for (std::int64_t part = 0; part < splits; ++part) {
            const natural_lse lse_value = lses[part * step];
            if (!weights.has_weight(lse_value)) continue;
            const float weight = weights.weight(lse_value);
            const auto piece = read_piece<count>(from + part * step * out.width + d);
            for (int x = 0; x < count; ++x) sum.at[x] += weight * piece.at[x];
        }
        if (narrow == nullptr) {
            write_piece(wide + d, sum);
        } else {
            write_piece(narrow + d, sum);
        }
    });
    if (lane_index() == 0) *call.lse_out.at(row, head) = weights.result();
}

// Merges the splits of every row whose segment has several.
template <class Narrow>
CTXPAR_KERNEL void combine_splits_kernel(splits_call<Narrow> call) {
    const std::int64_t warps = block_threads() / warp_size;
    const std::int64_t heads = call.out.heads;
    for (std::int64_t s = 0; s < call.segment_count; ++s) {
        const segment& run = call.segments[s];
        const std::int64_t splits = run.splits();
        if (splits <= 1) continue;
        for (std::int64_t i = block_x() * warps + thread_index() / warp_size; i < run.rows * heads;
             i += grid_x() * warps)
            combine_splits(call, splits, run.first_row + i / heads, i % heads);
    }
}

} // namespace ctxpar::inline v0_1::cuda
