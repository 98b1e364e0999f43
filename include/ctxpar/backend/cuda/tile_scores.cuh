// The scores of a tile: queries times keys, scaled, capped and masked; and the maxima of the rows so far.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tile_block.cuh>

namespace ctxpar::inline v0_1::cuda {

// Which keys of a tile each row sees, a bit each, to shared memory.
template <class Block>
CTXPAR_DEVICE void mask_rows(const Block& b, int tile) {
    const std::int64_t first = b.range().first_key(tile, Block::shape.keys);
    const std::int64_t end = b.range().end;
    CTXPAR_ROLLED
    for (int i = static_cast<int>(thread_index()); i < Block::shape.rows() * Block::mask_words;
         i += Block::shape.threads()) {
        const int row = i / Block::mask_words, word = i % Block::mask_words;
        std::uint32_t mask = 0;
        if (row < b.item().count) {
            const std::int64_t from = first + word * 32;
            mask = b.args.plan.arrays.rows[b.item().run.first_row + (b.item().first + row) / b.group].tile_mask(from);
            if (end - from < 32) mask &= end > from ? (1U << (end - from)) - 1U : 0U;
        }
        b.masks(tile)[i] = mask;
    }
}

// scores += Q K' for this warp's rows and keys.
template <class Block>
CTXPAR_DEVICE void multiply_keys(const Block& b, int tile, typename Block::scores& scores) {
    using layout = typename Block::layout;
    constexpr int score_tiles = Block::shape.score_tiles();
    const std::uint8_t* const q_row =
        b.memory + layout::queries + 2 * ((16 * b.row_tile() + b.lane % 16) * layout::key_pitch + b.lane / 16 * 8);
    const std::uint8_t* const k_row =
        b.wide_keys(tile) + 2 * ((b.column() * 8 * score_tiles + b.lane % 8) * layout::key_pitch + b.lane / 8 * 8);
    CTXPAR_ROLLED
    for (int d = 0; d < Block::shape.key_width; d += 32) {
        const four_matrices low = load_rows(q_row + 2 * d), high = load_rows(q_row + 2 * (d + 16));
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < score_tiles; ++n) {
            const four_matrices k = load_rows(k_row + 2 * (n * 8 * layout::key_pitch + d));
            multiply_add<typename Block::query>(scores[n], low, k.at[0], k.at[1]);
            multiply_add<typename Block::query>(scores[n], high, k.at[2], k.at[3]);
        }
    }
}

// Calls use(score, n, e) for the thread's scores.
template <class Block, class Use>
CTXPAR_DEVICE void each_score(typename Block::scores& scores, const Use& use) {
    CTXPAR_UNROLL_ALL
    for (int n = 0; n < Block::shape.score_tiles(); ++n) {
        CTXPAR_UNROLL_ALL
        for (int e = 0; e < 4; ++e) use(scores[n].at[e], n, e);
    }
}

// Products become scores: scale, cap, mask. One loop each, or a compiler makes a copy of the code for every combination
// of what is asked for.
template <class Block>
CTXPAR_DEVICE void weigh_scores(const Block& b, int tile, bool full, typename Block::scores& scores) {
    const float scale = b.args.score.scale * (b.scales_keys() ? 1.0F : b.args.cache.k_scale.uniform);
    each_score<Block>(scores, [&](float& score, int, int) { score *= scale; });
    if (b.scales_keys()) {
        const float* const scales = b.scales(tile);
        each_score<Block>(scores, [&](float& score, int n, int e) { score *= scales[b.key_of(n, e)]; });
    }
    const float cap = b.args.score.soft_cap;
    if (cap > 0.0F) each_score<Block>(scores, [&](float& score, int, int) { score = cap * tanhf(score / cap); });
    if (full) return;
    each_score<Block>(scores, [&](float& score, int n, int e) {
        const int key = b.key_of(n, e);
        const std::uint32_t mask = b.masks(tile)[b.row_of(e / 2) * Block::mask_words + key / 32];
        if ((mask >> (key % 32) & 1U) == 0) score = -float_infinity;
    });
}

// New maxima of the rows over all warps that share them; `factor` is what sums so far are worth now.
template <class Block>
CTXPAR_DEVICE void update_maxima(const Block& b, const typename Block::scores& scores, typename Block::rows& state,
                                 float (&factor)[2]) {
    constexpr int columns = Block::shape.columns;
    CTXPAR_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
        float most = state.max[half];
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < Block::shape.score_tiles(); ++n) {
            most = larger(most, scores[n].at[2 * half]);
            most = larger(most, scores[n].at[2 * half + 1]);
        }
        most = larger(most, from_lane_xor(most, 1));
        most = larger(most, from_lane_xor(most, 2));
        factor[half] = most;
        if constexpr (columns > 1) {
            if (b.lane % 4 == 0) b.row_values()[b.column() * Block::shape.rows() + b.row_of(half)] = most;
        }
    }
    if constexpr (columns > 1) sync_block();
    CTXPAR_UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
        float most = factor[half];
        if constexpr (columns > 1) {
            CTXPAR_UNROLL_ALL
            for (int c = 0; c < columns; ++c)
                most = larger(most, b.row_values()[c * Block::shape.rows() + b.row_of(half)]);
        }
        factor[half] = exp2_fast((state.max[half] - finite(most)) * log2_e);
        state.max[half] = most;
    }
}

} // namespace ctxpar::inline v0_1::cuda
