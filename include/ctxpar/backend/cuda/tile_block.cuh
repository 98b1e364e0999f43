// A block of the attention by matrix units (attend_tiles.cuh): what it is given, and what lies where in its shared
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/attend_items.cuh>
#include <ctxpar/backend/cuda/attend_output.cuh>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tuning.hpp>

namespace ctxpar::inline v0_1::cuda {

// Where a key of a tile lies.
struct key_place {
    const void* key;   // null: no row sees it, it is not read
    const void* value; // unused where values are in keys
};

// What a block works on; in shared memory, since it is the same for all threads.
struct tile_piece {
    attend_item item;
    tile_range range;
    bool found;
};

// A block's shared memory, in bytes from its start. Rows of 16-bit elements are 16 bytes longer than their elements, so
// that eight rows of a matrix lie in different banks.
template <class Tiles, class Q, class Kv>
struct tile_layout {
    static constexpr tile_shape shape = Tiles::shape;
    using weight = std::conditional_t<sizeof(Kv) == 1, bf16, Kv>; // what P and V are multiplied as
    static constexpr bool narrow = sizeof(Kv) == 1;               // 8-bit: widened after they arrived
    static constexpr bool one_copy = shape.shared_values && std::is_same_v<weight, Q>;

    static constexpr int key_pitch = shape.key_width + 8;
    static constexpr int value_pitch = one_copy ? key_pitch : shape.value_width + 8;
    static constexpr int weight_pitch = shape.keys + 8;

    static constexpr int align(int bytes) { return (bytes + 15) / 16 * 16; }
    static constexpr int piece = 0;
    static constexpr int queries = align(static_cast<int>(sizeof(tile_piece)));
    static constexpr int weights = align(queries + 2 * shape.rows() * key_pitch);
    static constexpr int row_values = align(weights + 2 * shape.p_terms * shape.rows() * weight_pitch);
    static constexpr int masks = align(row_values + 4 * shape.columns * shape.rows());
    static constexpr int key_places = align(masks + 2 * shape.rows() * shape.keys / 8);
    static constexpr int scales =
        align(key_places + static_cast<int>(sizeof(key_place)) * shape.max_stages * shape.keys);
    static constexpr int wide_keys = align(scales + 8 * (shape.max_stages + 1) * shape.keys);
    static constexpr int wide_values = align(wide_keys + (narrow ? 2 * shape.keys * key_pitch : 0));
    static constexpr int stages =
        align(wide_values + (narrow && !one_copy ? 2 * shape.keys * value_pitch : 0)); // to the end

    // A stage: the keys of a tile as they came, then its values.
    static constexpr int stage_key_pitch = narrow ? shape.key_width : 2 * key_pitch; // bytes
    static constexpr int stage_value_pitch =
        shape.shared_values ? stage_key_pitch : (narrow ? shape.value_width : 2 * value_pitch);
    static constexpr int stage_values = shape.shared_values ? 0 : shape.keys * stage_key_pitch;
    static constexpr int stage_bytes = stage_values + shape.keys * stage_value_pitch;
};

// What a thread keeps of its rows, which are 16 * row_tile + lane / 4 and that + 8 of the piece.
template <int ValueTiles>
struct tile_rows {
    float max[2] = {-float_infinity, -float_infinity};
    float sum[2] = {0.0F, 0.0F}; // of this thread's keys
    tile_sums out[ValueTiles] = {};
};

// One block at work, as each of its threads sees it: what does not change from piece to piece, and the piece. Tiles
// are numbered from 0 in each piece.
template <class Tiles, class Q, class Kv>
struct tile_block {
    static constexpr tile_shape shape = Tiles::shape;
    using layout = tile_layout<Tiles, Q, Kv>;
    using weight = typename layout::weight;
    using query = Q;
    using cached = Kv;
    using rows = tile_rows<shape.value_tiles()>;
    using scores = tile_sums[shape.score_tiles()];
    static constexpr int mask_words = shape.keys / 32;

    const attend_args<Q, Kv, float, lse_base::natural>& args;
    Q* narrow_base;
    std::uint8_t* memory;
    int stages;
    int group; // heads that share a KV head
    int warp;
    int lane;

    CTXPAR_DEVICE tile_block(const attend_call<Q, Kv>& from, int stage_count)
        : args(from.attend), narrow_base(from.narrow_base), memory(shared_array<std::uint8_t>()), stages(stage_count),
          group(static_cast<int>(args.q.heads / args.cache.kv_heads)),
          warp(static_cast<int>(thread_index() / warp_size)), lane(static_cast<int>(lane_index())) {}

    CTXPAR_DEVICE const tile_piece& piece() const {
        return *reinterpret_cast<const tile_piece*>(memory + layout::piece);
    }
    CTXPAR_DEVICE const attend_item& item() const { return piece().item; }
    CTXPAR_DEVICE const tile_range& range() const { return piece().range; }

    // The warp's 16 rows, and which part of the keys and of the values' columns is its own.
    CTXPAR_DEVICE int row_tile() const { return warp / shape.columns; }
    CTXPAR_DEVICE int column() const { return warp % shape.columns; }
    // The thread's rows in the piece, and the key in the tile that score e of score tile n is of.
    CTXPAR_DEVICE int row_of(int half) const { return 16 * row_tile() + lane / 4 + 8 * half; }
    CTXPAR_DEVICE int key_of(int n, int e) const {
        return (column() * shape.score_tiles() + n) * 8 + lane % 4 * 2 + e % 2;
    }

    // Keys and values of a tile as they came, and as 16-bit numbers.
    CTXPAR_DEVICE std::uint8_t* stage(int tile) const {
        return memory + layout::stages + tile % stages * layout::stage_bytes;
    }
    CTXPAR_DEVICE const std::uint8_t* wide_keys(int tile) const {
        return layout::narrow ? memory + layout::wide_keys : stage(tile);
    }
    CTXPAR_DEVICE const std::uint8_t* wide_values(int tile) const {
        if constexpr (layout::narrow) return memory + (layout::one_copy ? layout::wide_keys : layout::wide_values);
        return stage(tile) + layout::stage_values;
    }
    CTXPAR_DEVICE key_place* places(int tile) const {
        return reinterpret_cast<key_place*>(memory + layout::key_places) + tile % stages * shape.keys;
    }
    // Scales of keys, then of values. Of one tile more: those of the tile at work are read while others are found.
    CTXPAR_DEVICE float* scales(int tile) const {
        return reinterpret_cast<float*>(memory + layout::scales) + tile % (stages + 1) * 2 * shape.keys;
    }
    // A number of each row from each of the warps that share it.
    CTXPAR_DEVICE float* row_values() const { return reinterpret_cast<float*>(memory + layout::row_values); }
    // Of one tile while those of the next are written.
    CTXPAR_DEVICE std::uint32_t* masks(int tile) const {
        return reinterpret_cast<std::uint32_t*>(memory + layout::masks) + tile % 2 * shape.rows() * mask_words;
    }

    CTXPAR_DEVICE bool scales_keys() const { return args.cache.k_scale.data != nullptr; }
    CTXPAR_DEVICE const kv_scale& value_scale() const {
        return shape.shared_values ? args.cache.k_scale : args.cache.v_scale;
    }
};

CTXPAR_DEVICE float larger(float a, float b) {
    return b > a ? b : a; // a NaN b is not taken
}
CTXPAR_DEVICE float finite(float max) {
    return is_minus_infinity(max) ? 0.0F : max;
}

} // namespace ctxpar::inline v0_1::cuda
