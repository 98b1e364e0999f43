// The splits of a row's keys, put together.
#pragma once

#include <cstdint>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/pieces.cuh>

namespace ctxpar::inline v0_1::cuda {

// Merges the splits of every row whose segment has several.
template <class Q, class Kv, class O>
CTXPAR_KERNEL void combine_splits_kernel(attend_args<Q, Kv, O, lse_base::natural> args) {
    const std::int64_t warps = block_threads() / warp_size;
    const std::int64_t step = args.out.rows * args.out.heads;
    for (std::int64_t s = 0; s < args.plan.segments; ++s) {
        const segment& run = args.plan.arrays.segments[s];
        const std::int64_t splits = run.splits();
        if (splits <= 1) continue;
        for (std::int64_t i = block_x() * warps + thread_index() / warp_size; i < run.rows * args.out.heads;
             i += grid_x() * warps) {
            const std::int64_t row = run.first_row + i / args.out.heads;
            const std::int64_t head = i % args.out.heads;
            const std::int64_t first = row * args.out.heads + head;
            merge_weights<lse_base::natural> weights;
            for (std::int64_t part = 0; part < splits; ++part) weights.see(args.scratch.split_lse[part * step + first]);
            for (std::int64_t part = 0; part < splits; ++part) weights.add(args.scratch.split_lse[part * step + first]);
            O* const to = args.out.at(row, head);
            const std::int64_t width = args.out.width;
            const float* const from = args.scratch.split_out + first * width;
            const std::uintptr_t bits = address_bits(to, from, from + step * width);
            each_piece_of<sizeof(float)>(width, bits, [&](auto size, std::int64_t d) {
                constexpr int count = decltype(size)::value;
                piece_of_floats<count> sum = {};
                for (std::int64_t part = 0; part < splits; ++part) {
                    const natural_lse lse_value = args.scratch.split_lse[part * step + first];
                    if (!weights.has_weight(lse_value)) continue;
                    const float weight = weights.weight(lse_value);
                    const auto piece = read_piece<count>(from + part * step * width + d);
                    for (int x = 0; x < count; ++x) sum.at[x] += weight * piece.at[x];
                }
                write_piece(to + d, sum);
            });
            if (lane_index() == 0) *args.lse_out.at(row, head) = weights.result();
        }
    }
}

} // namespace ctxpar::inline v0_1::cuda
