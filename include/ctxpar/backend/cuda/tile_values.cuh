// From the scores of a tile to the weighted sums of its values.
//
// Probabilities go through shared memory, where the matrix units take them up in another order, as sums of p_terms
// 16-bit numbers.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tile_block.cuh>

namespace ctxpar::inline v0_1::cuda {

// Value tiles that are multiplied between two meetings of a warp; see multiply_values.
inline constexpr int value_tiles_at_once = 2;

// Two probabilities as sums of p_terms numbers.
template <class Block>
CTXPAR_DEVICE void write_terms(const Block& b, int row, int key, float low, float high) {
    using weight = typename Block::weight;
    using layout = typename Block::layout;
    std::uint8_t* place = b.memory + layout::weights + 2 * (row * layout::weight_pitch + key);
    CTXPAR_UNROLL_ALL
    for (int term = 0; term < Block::shape.p_terms; ++term) {
        const std::uint32_t pair = pack_pair<weight>(low, high);
        *reinterpret_cast<std::uint32_t*>(place) = pair;
        const float_pair rounded = unpack_pair<weight>(pair);
        low -= rounded.low;
        high -= rounded.high;
        place += 2 * Block::shape.rows() * layout::weight_pitch;
    }
}

// The largest scale of the values of a tile: probabilities are multiplied by at most 1, so that they keep their bits in
// a 16-bit type. All lanes of a warp call it.
template <class Block>
CTXPAR_DEVICE float largest_value_scale(const Block& b, int tile) {
    float most = 0.0F;
    for (int i = b.lane; i < Block::shape.keys; i += warp_size) {
        const float scale = b.scales(tile)[Block::shape.keys + i];
        most = larger(most, scale < 0.0F ? -scale : scale);
    }
    for (unsigned step = warp_size / 2; step > 0; step /= 2) most = larger(most, from_lane_xor(most, step));
    return most > 0.0F ? most : 1.0F;
}

// P to shared memory, its sums to the state. Returns what P V has to be multiplied by.
template <class Block>
CTXPAR_DEVICE float write_weights(const Block& b, int tile, typename Block::scores& scores, typename Block::rows& state,
                                  const float (&factor)[2]) {
    constexpr int score_tiles = Block::shape.score_tiles();
    CTXPAR_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
        const float base = finite(state.max[half]);
        float sum = 0.0F;
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < score_tiles; ++n) {
            CTXPAR_UNROLL_ALL
            for (int e = 2 * half; e < 2 * half + 2; ++e) {
                scores[n].at[e] = exp2_fast((scores[n].at[e] - base) * log2_e);
                sum += scores[n].at[e];
            }
        }
        state.sum[half] = state.sum[half] * factor[half] + sum;
    }
    float largest = b.value_scale().uniform;
    if (b.value_scale().data != nullptr) {
        largest = largest_value_scale(b, tile);
        const float* const scales = b.scales(tile) + Block::shape.keys;
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < score_tiles; ++n) {
            CTXPAR_UNROLL_ALL
            for (int e = 0; e < 2; ++e) {
                const float share = scales[b.key_of(n, e)] / largest;
                scores[n].at[e] *= share;
                scores[n].at[2 + e] *= share;
            }
        }
    }
    CTXPAR_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < score_tiles; ++n)
            write_terms(b, b.row_of(half), b.key_of(n, 0), scores[n].at[2 * half], scores[n].at[2 * half + 1]);
    }
    return largest;
}

// O = factor O + value_factor P V for this warp's rows and columns; the smallest terms are added first.
template <class Block>
CTXPAR_DEVICE void multiply_values(const Block& b, int tile, const float (&factor)[2], float value_factor,
                                   typename Block::rows& state) {
    using layout = typename Block::layout;
    constexpr int value_tiles = Block::shape.value_tiles(), p_terms = Block::shape.p_terms;
    constexpr int weight_steps = Block::shape.keys / 16;
    const std::uint8_t* const p_row =
        b.memory + layout::weights + 2 * ((16 * b.row_tile() + b.lane % 16) * layout::weight_pitch + b.lane / 16 * 8);
    const std::uint8_t* const v_row =
        b.wide_values(tile) + 2 * (b.lane * layout::value_pitch + b.column() * 8 * value_tiles);
    four_matrices p[p_terms][weight_steps];
    CTXPAR_UNROLL_ALL
    for (int term = 0; term < p_terms; ++term) {
        CTXPAR_UNROLL_ALL
        for (int step = 0; step < weight_steps; ++step)
            p[term][step] = load_rows(p_row + 2 * (term * Block::shape.rows() * layout::weight_pitch + 16 * step));
    }
    CTXPAR_UNROLL_ALL
    for (int n = 0; n < value_tiles; ++n) {
        if (n % value_tiles_at_once == 0) sync_warp(); // keeps the loads of all tiles from being moved here: registers
        four_matrices v[weight_steps / 2];
        CTXPAR_UNROLL_ALL
        for (int i = 0; i < weight_steps / 2; ++i)
            v[i] = load_columns(v_row + 2 * (32 * i * layout::value_pitch + 8 * n));
        tile_sums sums = {};
        CTXPAR_UNROLL_ALL
        for (int term = p_terms - 1; term >= 0; --term) {
            CTXPAR_UNROLL_ALL
            for (int step = 0; step < weight_steps; ++step)
                multiply_add<typename Block::weight>(sums, p[term][step], v[step / 2].at[step % 2 * 2],
                                                     v[step / 2].at[step % 2 * 2 + 1]);
        }
        CTXPAR_UNROLL_ALL
        for (int e = 0; e < 4; ++e) state.out[n].at[e] = state.out[n].at[e] * factor[e / 2] + sums.at[e] * value_factor;
    }
}

} // namespace ctxpar::inline v0_1::cuda
