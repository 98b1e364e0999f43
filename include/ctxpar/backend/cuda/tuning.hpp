// Numbers that only decide speed: how the attention of a step is cut into tiles, and how many stages of tiles are on
// their way. Plain structs from constexpr functions of the widths and of the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ctxpar/attention/rows.hpp>
#include <ctxpar/core/config.hpp>

namespace ctxpar::inline v0_1::cuda {

// A block of attend_tiles_kernel works on 16 * row_tiles query rows (rows times heads that share a KV head) and on
// `keys` keys at a time. `columns` warps share 16 rows: first each has its part of the keys of a tile, then its part of
// the value's columns.
struct tile_shape {
    int key_width = 0;   // elements of a key, padded to a multiple of 32
    int value_width = 0; // elements of a value, padded to a multiple of 8 * columns
    bool shared_values = false;
    int row_tiles = 1;
    int columns = 1;
    int keys = 64;      // a multiple of 32 and of 8 * columns
    int p_terms = 1;    // 16-bit numbers that a probability is split into
    int max_stages = 4; // tiles in shared memory at once

    CTXPAR_HD constexpr int rows() const { return 16 * row_tiles; }
    CTXPAR_HD constexpr int threads() const { return 32 * row_tiles * columns; }
    CTXPAR_HD constexpr int score_tiles() const { return keys / columns / 8; }
    CTXPAR_HD constexpr int value_tiles() const { return value_width / columns / 8; }
};

// Few rows (decode): 16 rows are enough for a GQA ratio of 16, and four warps share them, so that each byte of keys
// and values is read from shared memory once; a tile is 32 KB of keys and values at most, of which two or three on
// their way cover the latency of memory. Many rows (prefill, verify): 64 rows, a warp for each 16, two where the output
// of 16 rows would not fit a warp's registers; shorter tiles, so that more blocks fit a processor. MLA with many heads:
// 32 rows and four warps for each 16, since its output of 512 columns is what fills the registers.
constexpr tile_shape tiles_for(int key_width, int value_width, bool shared_values, bool many_rows, int p_terms) {
    tile_shape shape;
    shape.key_width = key_width;
    shape.value_width = value_width;
    shape.shared_values = shared_values;
    shape.row_tiles = many_rows ? (value_width > 256 ? 2 : 4) : 1;
    shape.columns = many_rows ? (value_width > 256 ? 4 : (value_width > 128 ? 2 : 1)) : 4;
    shape.keys = many_rows || key_width > 128 ? 32 : 64;
    shape.p_terms = p_terms;
    shape.max_stages = key_width > 256 && !many_rows ? 2 : 4; // two, and MLA with few heads fits small devices
    return shape;
}

// The padded width of tiles for heads of these widths: latent_key_width stands for MLA's. 0 where a width is not known,
// -1 where there are no tiles.
inline constexpr int latent_key_width = 576;
inline constexpr int latent_value_width = 512;
constexpr int tile_width_of(std::int64_t query, std::int64_t value) {
    if (query == 0 || value == 0) return 0;
    const std::int64_t larger = query > value ? query : value;
    for (const int width : {64, 96, 128, 192, 256})
        if (larger <= width) return width;
    return larger <= latent_key_width && value <= latent_value_width ? latent_key_width : -1;
}

// The same as a type, for kernels.
template <int KeyWidth, int ValueWidth, bool SharedValues, bool ManyRows, int PTerms>
struct tiles {
    static constexpr tile_shape shape = tiles_for(KeyWidth, ValueWidth, SharedValues, ManyRows, PTerms);
};

// What a device has, by compute capability (10 * major + minor).
struct device_limits {
    int shared_per_block = 0; // bytes, opted in
    int shared_per_processor = 0;
};
constexpr device_limits limits_of(int capability) {
    if (capability >= 120 || capability == 86 || capability == 89) return {99 * 1024, 100 * 1024};
    if (capability >= 90) return {227 * 1024, 228 * 1024};
    return {163 * 1024, 164 * 1024};
}

// How many tiles to keep on their way: three where two blocks still fit a processor, since two blocks hide each
// other's barriers; else as many as fit one block, at least two. 0: the shape does not fit this device.
constexpr int stages_for(const device_limits& device, int fixed_bytes, int stage_bytes, int max_stages) {
    const int system = 1024; // reserved by the runtime for every block
    const int shared = std::min(device.shared_per_processor / 2 - system, device.shared_per_block);
    const int beside = (shared - fixed_bytes) / stage_bytes;
    const int alone = (device.shared_per_block - fixed_bytes) / stage_bytes;
    if (beside >= 2) return std::min(beside, std::min(3, max_stages));
    return alone >= 2 ? std::min(alone, max_stages) : 0;
}

// How the keys of a request are split among the blocks of a device with so many processors.
//
// One request alone should give every processor work: two blocks each, or one where a block of MLA fills it. A split is
// 512 keys at least: its partial result, 16 rows of fp32 that are written and read again, is then about a fifteenth of
// the bytes of its keys and values (GQA, 128 elements of 16 bits). Partials of the largest step take at most `room`,
// unless eight splits need more: steps of many rows fill a device without splits.
constexpr split_rule splits_for(const split_work& work, int processors) {
    const auto width = static_cast<int>(work.value_width);
    const bool latent = width > 256;
    const std::int64_t rows = work.heads / work.kv_heads * work.rows_per_request; // that share a KV head
    const bool many_rows = rows > tiles_for(width, width, latent, false, 1).rows();
    const std::int64_t tile_rows = tiles_for(width, width, latent, many_rows, 1).rows();
    const std::int64_t pieces = (rows + tile_rows - 1) / tile_rows * work.kv_heads; // of a request without splits
    const std::int64_t wanted = (latent ? 1 : 2) * std::int64_t{processors};
    const std::int64_t room = std::int64_t{64} << 20;
    const std::int64_t fits = room / (4 * work.rows * work.heads * work.value_width);
    const std::int64_t most = std::min<std::int64_t>(std::max<std::int64_t>(8, fits), 128);
    return {std::clamp<std::int64_t>(wanted / pieces, 1, most), 512, 256};
}

} // namespace ctxpar::inline v0_1::cuda
