// What a thread keeps of the pairs that it works on with the matrix unit, its scratch memory and its kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/cpu/amx_few.hpp>
#include <ctxpar/backend/cpu/amx_kernels.hpp>
#include <ctxpar/backend/cpu/blocked_walk.hpp>
#include <ctxpar/backend/cpu/item.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

static_assert(amx_pairs == pair_block && amx_pairs == tile_pairs && split_grain % amx_keys == 0);

inline constexpr std::int64_t amx_cell = 4 * split_grain; // keys

// Most groups of an item: blocks of pairs of one KV head, or KV heads with few pairs.
inline constexpr std::int64_t most_amx_groups = most_blocks;

constexpr std::int64_t padded_depth(std::int64_t width) {
    return (width + amx_depth - 1) / amx_depth * amx_depth;
}

// The kernels, for groups of up to 32 pairs or of up to 8; a template, so that a program may compile them once.
template <class T>
struct amx_kernels {
    void (*open)();
    void (*close)();
    void (*score)(const amx_scores&, const amx_ahead&);
    void (*scan)(const amx_weights&, tile_softmax&);
    void (*weigh)(const amx_weights&, tile_softmax&, const amx_ahead&);
    // Not where pairs are few: add does it.
    void (*arrange)(const bf16* const* rows, std::int64_t width, bf16* to, const amx_ahead&);
    void (*rescale)(float* out, std::int64_t width, std::int64_t lanes, const float* keep);
    void (*add)(const amx_values&, const amx_weights& next, tile_softmax& of_next, const amx_ahead&);
    void (*fold)(float* total, float* cell, std::int64_t width, std::int64_t lanes, const float* own,
                 const float* other);
    void (*row)(const T* from, std::int64_t width, bf16* to);
};
template <class T>
amx_kernels<T> amx_kernels_of([[maybe_unused]] bool few) {
#if defined(__x86_64__)
    if (few)
        return {amx_open, amx_close,   score_amx, scan_few, weigh_few,
                nullptr,  rescale_few, add_few,   fold_few, bf16_row<T>};
    return {amx_open,      amx_close,   score_amx, scan_amx, weigh_amx,
            transpose_amx, rescale_amx, add_amx,   fold_amx, bf16_row<T>};
#else
    return {}; // no processor of the family says that it has them
#endif
}

// A thread's scratch memory, carved from floats.
struct amx_buffers {
    bf16* keys;        // [amx_keys][depth]
    bf16* rows[2];     // [amx_keys][dv padded] values, where they are not read where they lie
    bf16* zeros;       // [dv padded]
    bf16* arranged[2]; // [amx_keys / amx_depth][dv padded][amx_depth] values as the unit wants them
    float* scores;     // [amx_keys][lanes]
    bf16* terms[2];    // [amx_terms][amx_keys / 2][lanes][2]
    float* row;        // [dv padded]
    float* groups;     // each q [depth / 2][lanes][2] bf16, cell and total [dv padded][lanes]

    static constexpr std::int64_t lane_floats(std::int64_t depth, std::int64_t v_pad) { return depth / 2 + 2 * v_pad; }
    static constexpr std::int64_t most_lanes(std::int64_t query_width, std::int64_t value_width) {
        return std::max(most_item_pairs(query_width, value_width), most_amx_groups * amx_side);
    }
    static constexpr std::int64_t floats(std::int64_t query_width, std::int64_t value_width) {
        const std::int64_t depth = padded_depth(query_width);
        const std::int64_t v_pad = padded(value_width);
        return amx_keys * depth / 2 + 2 * amx_keys * v_pad + amx_keys * amx_pairs * (1 + amx_terms) + 2 * v_pad +
               most_lanes(query_width, value_width) * lane_floats(depth, v_pad);
    }
    static amx_buffers carve(float* memory, std::int64_t depth, std::int64_t v_pad) {
        const auto take = [&](std::int64_t floats) {
            float* const here = memory;
            memory += floats;
            return here;
        };
        const auto take_bf16 = [&](std::int64_t count) { return reinterpret_cast<bf16*>(take(count / 2)); };
        amx_buffers b{};
        b.keys = take_bf16(amx_keys * depth);
        for (bf16*& rows : b.rows) rows = take_bf16(amx_keys * v_pad);
        for (bf16*& arranged : b.arranged) arranged = take_bf16(amx_keys * v_pad);
        for (bf16*& terms : b.terms) terms = take_bf16(amx_terms * amx_keys * amx_pairs);
        b.scores = take(amx_keys * amx_pairs);
        b.row = take(v_pad);
        b.zeros = take_bf16(2 * v_pad);
        b.groups = take(0);
        return b;
    }
};

// Up to 32 pairs of a KV head, or up to 8 where they are few: what they see of a step, and their sums so far.
struct amx_group {
    std::int64_t head;  // of the item's KV heads
    std::int64_t first; // pair of the item
    std::int64_t pairs;
    std::int64_t lanes; // 16 or 32
    bool few; // sums lie [pair][v_pad], the cell's [2][8 pairs][v_pad], columns by few_place; else [v_pad][lanes]
    std::uint64_t any;  // keys of the step that some pair sees
    std::uint64_t all;  // that all pairs see
    bool sees_all;      // of the step at hand
    bool cell_is_empty; // no key came since the last fold
    bf16* q;
    float* cell;                                          // unnormalised output
    float* total;                                         // of the split
    tile_softmax cell_softmax;                            // of the cell
    std::int64_t row[amx_pairs];                          // of the call
    std::uint32_t mask[amx_keys / tile_keys][tile_pairs]; // keys of each half of the step that the pair sees
    running_softmax softmax[amx_pairs];

    // Where pair i's sum of column d lies.
    std::int64_t place(std::int64_t i, std::int64_t d, std::int64_t v_pad) const {
        return few ? i * v_pad + few_place(d) : d * lanes + i;
    }
    // Its weight of key t of the step.
    float weight(const bf16* terms, std::int64_t t, std::int64_t i) const {
        if (few) return few_weight_of(terms, t, i);
        float sum = 0.0F;
        for (std::int64_t term = 0; term < amx_terms; ++term)
            sum += static_cast<float>(terms[((term * amx_keys / 2 + t / 2) * lanes + i) * 2 + t % 2]);
        return sum;
    }
    std::uint64_t sees(std::int64_t pair) const { return mask[0][pair] | std::uint64_t(mask[1][pair]) << tile_keys; }
};

} // namespace ctxpar::inline v0_1::cpu
