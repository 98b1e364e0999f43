// Attention of query rows over paged local keys on a device, by matrix units: 16-bit queries, keys and values of 16 or
// 8 bits, whose rows begin at multiples of 16 bytes. attend_plain.cuh takes everything else.
//
// Rows times heads that share a KV head are packed into tiles of 16 rows (attend_items.cuh). Keys and values go from
// their pages to shared memory by asynchronous copies of 16 bytes, several tiles ahead. A tile:
//
//   S = scale Q K', capped and masked; m = max(m, max S); P = exp(S - m)      fp32
//   O = exp(m_before - m) O + P V,  l likewise                                fp32, P V of a tile summed by itself
//
// P enters the matrix units as the sum of `p_terms` 16-bit numbers: with three of bf16 or two of f16 the product is
// that of fp32 probabilities; with one they are rounded. l, and so the LSE, is of unrounded P.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cuda/attend_items.cuh>
#include <ctxpar/backend/cuda/attend_output.cuh>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tile_block.cuh>
#include <ctxpar/backend/cuda/tile_keys.cuh>
#include <ctxpar/backend/cuda/tile_results.cuh>
#include <ctxpar/backend/cuda/tile_scores.cuh>
#include <ctxpar/backend/cuda/tile_values.cuh>

namespace ctxpar::inline v0_1::cuda {

template <class Block>
CTXPAR_DEVICE void attend_tile(const Block& b, int tile, typename Block::rows& state) {
    const bool full = b.range().is_full(b.range().first_key(tile, Block::shape.keys), Block::shape.keys);
    if (!full) mask_rows(b, tile);
    wait_for_tile(b.stages);
    sync_block(); // the tile is here, and the one before is done
    copy_tile(b, tile + b.stages - 1);
    if constexpr (Block::layout::narrow) {
        widen(b, tile);
        sync_block();
    }
    typename Block::scores scores = {};
    multiply_keys(b, tile, scores);
    weigh_scores(b, tile, full, scores);
    float factor[2];
    update_maxima(b, scores, state, factor);
    const float value_factor = write_weights(b, tile, scores, state, factor);
    if constexpr (Block::shape.columns > 1) {
        sync_block();
    } else {
        sync_warp();
    }
    place_keys(b, tile + b.stages);
    multiply_values(b, tile, factor, value_factor, state);
}

// The piece that the block has found.
template <class Block>
CTXPAR_DEVICE void attend_piece(const Block& b) {
    typename Block::rows state;
    load_queries(b);
    CTXPAR_ROLLED
    for (int tile = 0; tile < b.stages; ++tile) place_keys(b, tile);
    sync_block();
    CTXPAR_ROLLED
    for (int tile = 0; tile < b.stages - 1; ++tile) copy_tile(b, tile);
    const int tiles = b.range().tiles;
    CTXPAR_ROLLED
    for (int tile = 0; tile < tiles; ++tile) attend_tile(b, tile, state);
    write_results(b, state);
    wait_copies<0>();
}

// Finds piece `index`; all lanes of one warp call it.
template <class Block>
CTXPAR_DEVICE void find_piece(const Block& b, item_finder& finder, unsigned index) {
    attend_item item;
    const bool found = finder.find(index, item);
    if (b.lane != 0) return;
    tile_piece& next = *reinterpret_cast<tile_piece*>(b.memory + Block::layout::piece);
    next.found = found;
    if (!found) return;
    next.item = item;
    next.range = range_of(b.args.plan, item, b.group, Block::shape.keys);
}

// Blocks take pieces in turns.
template <class Tiles, class Q, class Kv>
CTXPAR_KERNEL_OF(Tiles::shape.threads(), 256 / Tiles::shape.threads())
void attend_tiles_kernel(attend_call<Q, Kv> call, int stages) {
    const tile_block<Tiles, Q, Kv> b(call, stages);
    item_finder finder(b.args.plan, b.group, b.shape.rows());
    for (unsigned index = block_x();; index += grid_x()) {
        if (index != block_x()) sync_block(); // the piece before is done
        if (b.warp == 0) find_piece(b, finder, index);
        sync_block();
        if (!b.piece().found) break;
        attend_piece(b);
    }
}

} // namespace ctxpar::inline v0_1::cuda
