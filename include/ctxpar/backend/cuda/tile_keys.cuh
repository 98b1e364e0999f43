// From global to shared memory: the queries of a piece, and the keys and values of its tiles, page by page.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tile_block.cuh>

namespace ctxpar::inline v0_1::cuda {

// Packed rows of the piece; rows and columns beyond the real ones are 0.
template <class Block>
CTXPAR_DEVICE void load_queries(const Block& b) {
    constexpr int chunks = Block::shape.key_width / 8;
    CTXPAR_ROLLED
    for (int i = static_cast<int>(thread_index()); i < Block::shape.rows() * chunks; i += Block::shape.threads()) {
        const int row = i / chunks, at = i % chunks * 8;
        chunk16 chunk{};
        if (row < b.item().count && at < b.args.q.width) {
            const std::int64_t packed = b.item().first + row;
            const std::int64_t head = b.item().kv_head * b.group + packed % b.group;
            chunk = load_chunk(b.args.q.at(b.item().run.first_row + packed / b.group, head) + at);
        }
        put_chunk(b.memory + Block::layout::queries + 2 * (row * Block::layout::key_pitch + at), chunk);
    }
}

// Finds where the keys of a tile lie, a thread each.
template <class Block>
CTXPAR_DEVICE void place_keys(const Block& b, int tile) {
    if (tile >= b.range().tiles) return;
    constexpr int keys = Block::shape.keys;
    const auto& cache = b.args.cache;
    const std::int64_t first = b.range().first_key(tile, keys);
    CTXPAR_ROLLED
    for (int i = static_cast<int>(thread_index()); i < keys; i += Block::shape.threads()) {
        key_place place{nullptr, nullptr};
        float key_factor = 1.0F, value_factor = 0.0F;
        if (b.range().needs(first + i)) {
            const std::int64_t kv_head = b.item().kv_head;
            const std::int64_t slot = b.args.plan.table.slot(b.item().run.request, first + i);
            const std::int64_t page = cache.page_of(slot), token = cache.token_of(slot);
            place.key = cache.k.at(page, token, kv_head);
            if constexpr (!Block::shape.shared_values) place.value = cache.v.at(page, token, kv_head);
            key_factor = cache.k_scale.at(page, token, kv_head);
            value_factor = b.value_scale().at(page, token, kv_head);
        }
        b.places(tile)[i] = place;
        b.scales(tile)[i] = key_factor;
        b.scales(tile)[keys + i] = value_factor;
    }
}

// The rows of one plane of a tile, sent for; what is not needed becomes 0. Width is that of the tile, `width` the real
// one.
template <int Width, bool Values, class Block>
CTXPAR_DEVICE void copy_rows(const Block& b, int tile, std::uint8_t* to, int pitch, std::int64_t width) {
    using element = typename Block::cached;
    constexpr int chunk = 16 / static_cast<int>(sizeof(element)); // elements
    constexpr int chunks = Width / chunk;
    CTXPAR_ROLLED
    for (int i = static_cast<int>(thread_index()); i < Block::shape.keys * chunks; i += Block::shape.threads()) {
        const int row = i / chunks, at = i % chunks * chunk;
        const key_place& place = b.places(tile)[row];
        const void* const from = Values ? place.value : place.key;
        std::uint8_t* const target = to + row * pitch + at * static_cast<int>(sizeof(element));
        if (from != nullptr && at < width) {
            copy_async(target, static_cast<const element*>(from) + at);
        } else {
            put_chunk(target, chunk16{});
        }
    }
}

// Sends for the keys and values of a tile. Always one group of copies, also past the last tile.
template <class Block>
CTXPAR_DEVICE void copy_tile(const Block& b, int tile) {
    using layout = typename Block::layout;
    if (tile < b.range().tiles) {
        copy_rows<Block::shape.key_width, false>(b, tile, b.stage(tile), layout::stage_key_pitch,
                                                 b.args.cache.key_width);
        if constexpr (!Block::shape.shared_values)
            copy_rows<Block::shape.value_width, true>(b, tile, b.stage(tile) + layout::stage_values,
                                                      layout::stage_value_pitch, b.args.cache.value_width);
    }
    commit_copies();
}

// Waits for the tile that was sent for first, of stages - 1 on their way.
CTXPAR_DEVICE void wait_for_tile(int stages) {
    if (stages == 2) {
        wait_copies<0>();
    } else if (stages == 3) {
        wait_copies<1>();
    } else {
        wait_copies<2>();
    }
}

// Rows of 8-bit numbers as rows of 16-bit ones.
template <class To, int Width, class Block>
CTXPAR_DEVICE void widen_rows(const Block&, const std::uint8_t* from, int from_pitch, std::uint8_t* to, int to_pitch) {
    using element = typename Block::cached;
    constexpr int chunks = Width / 16;
    CTXPAR_ROLLED
    for (int i = static_cast<int>(thread_index()); i < Block::shape.keys * chunks; i += Block::shape.threads()) {
        const int row = i / chunks, at = i % chunks * 16;
        const chunk16 bytes = get_chunk(from + row * from_pitch + at);
        chunk16 wide[2];
        CTXPAR_UNROLL_ALL
        for (int word = 0; word < 4; ++word) {
            wide[word / 2].words[word % 2 * 2] = widen_pair<To, element>(bytes.words[word] & 0xffffU);
            wide[word / 2].words[word % 2 * 2 + 1] = widen_pair<To, element>(bytes.words[word] >> 16);
        }
        std::uint8_t* const target = to + 2 * (row * to_pitch + at);
        put_chunk(target, wide[0]);
        put_chunk(target + 16, wide[1]);
    }
}

// 8-bit keys and values of a tile as 16-bit ones: keys as queries are, values as probabilities.
template <class Block>
CTXPAR_DEVICE void widen(const Block& b, int tile) {
    using layout = typename Block::layout;
    widen_rows<typename Block::query, Block::shape.key_width>(b, b.stage(tile), layout::stage_key_pitch,
                                                              b.memory + layout::wide_keys, layout::key_pitch);
    if constexpr (!layout::one_copy)
        widen_rows<typename Block::weight, Block::shape.value_width>(
            b, b.stage(tile) + layout::stage_values, layout::stage_value_pitch, b.memory + layout::wide_values,
            layout::value_pitch);
}

} // namespace ctxpar::inline v0_1::cuda
