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

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/attend_items.cuh>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/tuning.hpp>

namespace ctxpar::inline v0_1::cuda {

// Where a key of a tile lies.
struct key_place {
    const void* key;   // null: no row sees it, it is not read
    const void* value; // unused where values are in keys
};

// What a launch is given. The output is fp32, or of the queries' type where narrow_base is not null: one kernel writes
// either.
template <class Q, class Kv>
struct tile_args {
    attend_args<Q, Kv, float, lse_base::natural> attend; // `out` says where elements lie
    Q* narrow_base = nullptr;
};
template <class Q, class Kv, class O>
tile_args<Q, Kv> tile_args_of(const attend_args<Q, Kv, O, lse_base::natural>& from) {
    static_assert(std::is_same_v<O, float> || std::is_same_v<O, Q>,
                  "ctxpar: attention writes fp32 or the type of the queries");
    tile_args<Q, Kv> args;
    const head_view<O>& out = from.out;
    args.attend.plan = from.plan;
    args.attend.q = from.q;
    args.attend.cache = from.cache;
    args.attend.out = {nullptr,          out.rows,       out.heads,      out.width, out.heads_per_block,
                       out.block_stride, out.row_stride, out.head_stride};
    args.attend.lse_out = from.lse_out;
    args.attend.score = from.score;
    args.attend.scratch = from.scratch;
    if constexpr (std::is_same_v<O, float>) {
        args.attend.out.base = out.base;
    } else {
        args.narrow_base = out.base;
    }
    return args;
}

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
    static constexpr int places = shape.max_stages + 1; // of tiles whose keys' places are known

    static constexpr int align(int bytes) { return (bytes + 15) / 16 * 16; }
    static constexpr int piece = 0;
    static constexpr int queries = align(static_cast<int>(sizeof(tile_piece)));
    static constexpr int weights = align(queries + 2 * shape.rows() * key_pitch);
    static constexpr int row_values = align(weights + 2 * shape.p_terms * shape.rows() * weight_pitch);
    static constexpr int masks = align(row_values + 4 * shape.columns * shape.rows());
    static constexpr int key_places = align(masks + 2 * shape.rows() * shape.keys / 8);
    static constexpr int scales = align(key_places + static_cast<int>(sizeof(key_place)) * places * shape.keys);
    static constexpr int wide_keys = align(scales + 8 * places * shape.keys);
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

// One block at work. The members are what does not change from piece to piece.
template <class Tiles, class Q, class Kv>
class tile_attention {
    static constexpr tile_shape shape = Tiles::shape;
    using layout = tile_layout<Tiles, Q, Kv>;
    using weight = typename layout::weight;
    using arguments = attend_args<Q, Kv, float, lse_base::natural>;
    static constexpr int score_tiles = shape.score_tiles();
    static constexpr int value_tiles = shape.value_tiles();
    static constexpr int weight_steps = shape.keys / 16;
    static constexpr int mask_words = shape.keys / 32;

    // A thread's rows are 16 * row_tile + lane / 4 and that + 8 of the piece.
    struct row_state {
        float max[2] = {-float_infinity, -float_infinity};
        float sum[2] = {0.0F, 0.0F}; // of this thread's keys
        tile_sums out[value_tiles] = {};
    };

public:
    CTXPAR_DEVICE tile_attention(const tile_args<Q, Kv>& args, int stages)
        : args_(args.attend), narrow_base_(args.narrow_base), memory_(shared_array<std::uint8_t>()), stages_(stages),
          group_(static_cast<int>(args_.q.heads / args_.cache.kv_heads)),
          warp_(static_cast<int>(thread_index() / warp_size)), lane_(static_cast<int>(lane_index())) {}

    // Blocks take pieces in turns.
    CTXPAR_DEVICE void run() {
        item_finder finder(args_.plan, group_, shape.rows());
        for (unsigned index = block_x();; index += grid_x()) {
            if (index != block_x()) sync_block(); // the piece before is done
            if (warp_ == 0) find(finder, index);
            sync_block();
            if (!piece().found) break;
            attend();
        }
    }

private:
    CTXPAR_DEVICE const tile_piece& piece() const {
        return *reinterpret_cast<const tile_piece*>(memory_ + layout::piece);
    }
    CTXPAR_DEVICE const attend_item& item() const { return piece().item; }
    CTXPAR_DEVICE const tile_range& range() const { return piece().range; }
    CTXPAR_DEVICE int row_tile() const { return warp_ / shape.columns; }
    CTXPAR_DEVICE int column() const { return warp_ % shape.columns; }
    CTXPAR_DEVICE std::uint8_t* stage(int tile) const {
        return memory_ + layout::stages + tile % stages_ * layout::stage_bytes;
    }
    CTXPAR_DEVICE key_place* places(int tile) const {
        return reinterpret_cast<key_place*>(memory_ + layout::key_places) + tile % (stages_ + 1) * shape.keys;
    }
    CTXPAR_DEVICE float* scales(int tile) const { // of keys, then of values
        return reinterpret_cast<float*>(memory_ + layout::scales) + tile % (stages_ + 1) * 2 * shape.keys;
    }
    CTXPAR_DEVICE float* row_values() const { return reinterpret_cast<float*>(memory_ + layout::row_values); }
    // Of one tile while those of the next are written.
    CTXPAR_DEVICE std::uint32_t* masks(int tile) const {
        return reinterpret_cast<std::uint32_t*>(memory_ + layout::masks) + tile % 2 * shape.rows() * mask_words;
    }
    CTXPAR_DEVICE bool scales_keys() const { return args_.cache.k_scale.data != nullptr; }
    CTXPAR_DEVICE const kv_scale& value_scale() const {
        return shape.shared_values ? args_.cache.k_scale : args_.cache.v_scale;
    }

    CTXPAR_DEVICE void find(item_finder& finder, unsigned index) const {
        attend_item item;
        const bool found = finder.find(index, item);
        if (lane_ != 0) return;
        tile_piece& next = *reinterpret_cast<tile_piece*>(memory_ + layout::piece);
        next.found = found;
        if (!found) return;
        next.item = item;
        next.range = range_of(args_.plan, item, group_, shape.keys);
    }

    CTXPAR_DEVICE void attend() {
        row_state state;
        load_queries();
        for (int tile = 0; tile < stages_; ++tile) place_keys(tile);
        sync_block();
        for (int tile = 0; tile < stages_ - 1; ++tile) copy_tile(tile);
        const int tiles = range().tiles;
        for (int tile = 0; tile < tiles; ++tile) attend_tile(tile, state);
        finish(state);
        wait_copies<0>();
    }

    CTXPAR_DEVICE void attend_tile(int tile, row_state& state) {
        const bool full = range().is_full(range().first_key(tile, shape.keys), shape.keys);
        if (!full) mask_rows(tile);
        wait_for_tile();
        sync_block(); // the tile is here, and the one before is done
        copy_tile(tile + stages_ - 1);
        if constexpr (layout::narrow) {
            widen(tile);
            sync_block();
        }
        tile_sums scores[score_tiles] = {};
        multiply_keys(tile, scores);
        weigh_scores(tile, full, scores);
        float factor[2];
        update_maxima(scores, state, factor);
        const float value_factor = write_weights(tile, scores, state, factor);
        if constexpr (shape.columns > 1) {
            sync_block();
        } else {
            sync_warp();
        }
        place_keys(tile + stages_);
        multiply_values(tile, factor, value_factor, state);
    }

    // Packed rows of the piece to shared memory; rows and columns beyond the real ones are 0.
    CTXPAR_DEVICE void load_queries() const {
        constexpr int chunks = shape.key_width / 8;
        CTXPAR_ROLLED
        for (int i = static_cast<int>(thread_index()); i < shape.rows() * chunks; i += shape.threads()) {
            const int row = i / chunks, at = i % chunks * 8;
            chunk16 chunk{};
            if (row < item().count && at < args_.q.width) {
                const std::int64_t packed = item().first + row;
                chunk = load_chunk(
                    args_.q.at(item().run.first_row + packed / group_, item().kv_head * group_ + packed % group_) + at);
            }
            put_chunk(memory_ + layout::queries + 2 * (row * layout::key_pitch + at), chunk);
        }
    }

    // Finds where the keys of a tile lie, a thread each.
    CTXPAR_DEVICE void place_keys(int tile) const {
        if (tile >= range().tiles) return;
        const std::int64_t first = range().first_key(tile, shape.keys);
        CTXPAR_ROLLED
        for (int i = static_cast<int>(thread_index()); i < shape.keys; i += shape.threads()) {
            key_place place{nullptr, nullptr};
            float key_factor = 1.0F, value_factor = 0.0F;
            if (range().needs(first + i)) {
                const std::int64_t slot = args_.plan.table.slot(item().run.request, first + i);
                const std::int64_t page = args_.cache.page_of(slot), token = args_.cache.token_of(slot);
                place.key = args_.cache.k.at(page, token, item().kv_head);
                if constexpr (!shape.shared_values) place.value = args_.cache.v.at(page, token, item().kv_head);
                key_factor = args_.cache.k_scale.at(page, token, item().kv_head);
                value_factor = value_scale().at(page, token, item().kv_head);
            }
            places(tile)[i] = place;
            scales(tile)[i] = key_factor;
            scales(tile)[shape.keys + i] = value_factor;
        }
    }

    // Sends for the keys and values of a tile; what is not needed becomes 0. Always one group, also past the last tile.
    CTXPAR_DEVICE void copy_tile(int tile) const {
        if (tile < range().tiles) {
            copy_rows<shape.key_width>(tile, stage(tile), layout::stage_key_pitch, args_.cache.key_width, false);
            if constexpr (!shape.shared_values)
                copy_rows<shape.value_width>(tile, stage(tile) + layout::stage_values, layout::stage_value_pitch,
                                             args_.cache.value_width, true);
        }
        commit_copies();
    }
    template <int Width>
    CTXPAR_DEVICE void copy_rows(int tile, std::uint8_t* to, int pitch, std::int64_t width, bool values) const {
        constexpr int chunk = 16 / static_cast<int>(sizeof(Kv)); // elements
        constexpr int chunks = Width / chunk;
        CTXPAR_ROLLED
        for (int i = static_cast<int>(thread_index()); i < shape.keys * chunks; i += shape.threads()) {
            const int row = i / chunks, at = i % chunks * chunk;
            const key_place place = places(tile)[row];
            const void* const from = values ? place.value : place.key;
            std::uint8_t* const target = to + row * pitch + at * static_cast<int>(sizeof(Kv));
            if (from != nullptr && at < width) {
                copy_async(target, static_cast<const Kv*>(from) + at);
            } else {
                put_chunk(target, chunk16{});
            }
        }
    }
    CTXPAR_DEVICE void wait_for_tile() const {
        if (stages_ == 2) {
            wait_copies<0>();
        } else if (stages_ == 3) {
            wait_copies<1>();
        } else {
            wait_copies<2>();
        }
    }

    // 8-bit keys and values of a tile as 16-bit ones.
    CTXPAR_DEVICE void widen(int tile) const {
        widen_rows<Q, shape.key_width>(stage(tile), layout::stage_key_pitch, memory_ + layout::wide_keys,
                                       layout::key_pitch);
        if constexpr (!layout::one_copy)
            widen_rows<weight, shape.value_width>(stage(tile) + layout::stage_values, layout::stage_value_pitch,
                                                  memory_ + layout::wide_values, layout::value_pitch);
    }
    template <class To, int Width>
    CTXPAR_DEVICE void widen_rows(const std::uint8_t* from, int from_pitch, std::uint8_t* to, int to_pitch) const {
        constexpr int chunks = Width / 16;
        CTXPAR_ROLLED
        for (int i = static_cast<int>(thread_index()); i < shape.keys * chunks; i += shape.threads()) {
            const int row = i / chunks, at = i % chunks * 16;
            const chunk16 bytes = get_chunk(from + row * from_pitch + at);
            chunk16 wide[2];
            CTXPAR_UNROLL_ALL
            for (int word = 0; word < 4; ++word) {
                wide[word / 2].words[word % 2 * 2] = widen_pair<To, Kv>(bytes.words[word] & 0xffffU);
                wide[word / 2].words[word % 2 * 2 + 1] = widen_pair<To, Kv>(bytes.words[word] >> 16);
            }
            std::uint8_t* const target = to + 2 * (row * to_pitch + at);
            put_chunk(target, wide[0]);
            put_chunk(target + 16, wide[1]);
        }
    }

    // Which keys of a tile each row sees, a bit each.
    CTXPAR_DEVICE void mask_rows(int tile) const {
        const std::int64_t first = range().first_key(tile, shape.keys);
        CTXPAR_ROLLED
        for (int i = static_cast<int>(thread_index()); i < shape.rows() * mask_words; i += shape.threads()) {
            const int row = i / mask_words, word = i % mask_words;
            std::uint32_t mask = 0;
            if (row < item().count) {
                const std::int64_t from = first + word * 32;
                mask = args_.plan.arrays.rows[item().run.first_row + (item().first + row) / group_].tile_mask(from);
                if (range().end - from < 32) mask &= range().end > from ? (1U << (range().end - from)) - 1U : 0U;
            }
            masks(tile)[i] = mask;
        }
    }

    // scores += Q K' for this warp's rows and keys.
    CTXPAR_DEVICE void multiply_keys(int tile, tile_sums (&scores)[score_tiles]) const {
        const std::uint8_t* const keys = layout::narrow ? memory_ + layout::wide_keys : stage(tile);
        const std::uint8_t* const q_row =
            memory_ + layout::queries + 2 * ((16 * row_tile() + lane_ % 16) * layout::key_pitch + lane_ / 16 * 8);
        const std::uint8_t* const k_row =
            keys + 2 * ((column() * 8 * score_tiles + lane_ % 8) * layout::key_pitch + lane_ / 8 * 8);
        CTXPAR_ROLLED
        for (int d = 0; d < shape.key_width; d += 32) {
            const four_matrices low = load_rows(q_row + 2 * d), high = load_rows(q_row + 2 * (d + 16));
            CTXPAR_UNROLL_ALL
            for (int n = 0; n < score_tiles; ++n) {
                const four_matrices k = load_rows(k_row + 2 * (n * 8 * layout::key_pitch + d));
                multiply_add<Q>(scores[n], low, k.at[0], k.at[1]);
                multiply_add<Q>(scores[n], high, k.at[2], k.at[3]);
            }
        }
    }

    // The key of the tile that score e of score tile n is of, and its row in the piece.
    CTXPAR_DEVICE int key_of(int n, int e) const { return (column() * score_tiles + n) * 8 + lane_ % 4 * 2 + e % 2; }
    CTXPAR_DEVICE int row_of(int half) const { return 16 * row_tile() + lane_ / 4 + 8 * half; }

    // Products become scores: scale, cap, mask.
    CTXPAR_DEVICE void weigh_scores(int tile, bool full, tile_sums (&scores)[score_tiles]) const {
        const float scale = args_.score.scale * (scales_keys() ? 1.0F : args_.cache.k_scale.uniform);
        const float cap = args_.score.soft_cap;
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < score_tiles; ++n) {
            CTXPAR_UNROLL_ALL
            for (int e = 0; e < 4; ++e) {
                const int key = key_of(n, e);
                float score = scores[n].at[e] * scale;
                if (scales_keys()) score *= scales(tile)[key];
                if (cap > 0.0F) score = cap * tanhf(score / cap);
                if (!full && (masks(tile)[row_of(e / 2) * mask_words + key / 32] >> (key % 32) & 1U) == 0)
                    score = -float_infinity;
                scores[n].at[e] = score;
            }
        }
    }

    // New maxima of the rows over all warps that share them; `factor` is what sums so far are worth now.
    CTXPAR_DEVICE void update_maxima(const tile_sums (&scores)[score_tiles], row_state& state,
                                     float (&factor)[2]) const {
        CTXPAR_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
            float most = state.max[half];
            CTXPAR_UNROLL_ALL
            for (int n = 0; n < score_tiles; ++n) {
                most = larger(most, scores[n].at[2 * half]);
                most = larger(most, scores[n].at[2 * half + 1]);
            }
            most = larger(most, from_lane_xor(most, 1));
            most = larger(most, from_lane_xor(most, 2));
            factor[half] = most;
            if constexpr (shape.columns > 1) {
                if (lane_ % 4 == 0) row_values()[column() * shape.rows() + row_of(half)] = most;
            }
        }
        if constexpr (shape.columns > 1) sync_block();
        CTXPAR_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
            float most = factor[half];
            if constexpr (shape.columns > 1) {
                CTXPAR_UNROLL_ALL
                for (int c = 0; c < shape.columns; ++c)
                    most = larger(most, row_values()[c * shape.rows() + row_of(half)]);
            }
            factor[half] = exp2_fast((state.max[half] - finite(most)) * log2_e);
            state.max[half] = most;
        }
    }
    CTXPAR_DEVICE static float larger(float a, float b) { return b > a ? b : a; } // a NaN b is not taken
    CTXPAR_DEVICE static float finite(float max) { return is_minus_infinity(max) ? 0.0F : max; }

    // P to shared memory, its sums to the state. Returns what P V has to be multiplied by.
    CTXPAR_DEVICE float write_weights(int tile, const tile_sums (&scores)[score_tiles], row_state& state,
                                      const float (&factor)[2]) const {
        const bool scaled = value_scale().data != nullptr;
        const float largest = scaled ? largest_value_scale(tile) : 1.0F;
        CTXPAR_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
            const float base = finite(state.max[half]);
            float sum = 0.0F;
            CTXPAR_UNROLL_ALL
            for (int n = 0; n < score_tiles; ++n) {
                float low = exp2_fast((scores[n].at[2 * half] - base) * log2_e);
                float high = exp2_fast((scores[n].at[2 * half + 1] - base) * log2_e);
                sum += low;
                sum += high;
                const int key = key_of(n, 0);
                if (scaled) {
                    low *= scales(tile)[shape.keys + key] / largest;
                    high *= scales(tile)[shape.keys + key + 1] / largest;
                }
                write_terms(row_of(half), key, low, high);
            }
            state.sum[half] = state.sum[half] * factor[half] + sum;
        }
        return scaled ? largest : value_scale().uniform;
    }
    // Two probabilities as sums of p_terms numbers.
    CTXPAR_DEVICE void write_terms(int row, int key, float low, float high) const {
        std::uint8_t* place = memory_ + layout::weights + 2 * (row * layout::weight_pitch + key);
        CTXPAR_UNROLL_ALL
        for (int term = 0; term < shape.p_terms; ++term) {
            const std::uint32_t pair = pack_pair<weight>(low, high);
            *reinterpret_cast<std::uint32_t*>(place) = pair;
            const float_pair rounded = unpack_pair<weight>(pair);
            low -= rounded.low;
            high -= rounded.high;
            place += 2 * shape.rows() * layout::weight_pitch;
        }
    }
    // Probabilities are multiplied by at most 1, so that they keep their bits in a 16-bit type.
    CTXPAR_DEVICE float largest_value_scale(int tile) const {
        float most = 0.0F;
        for (int i = lane_; i < shape.keys; i += warp_size) {
            const float scale = scales(tile)[shape.keys + i];
            most = larger(most, scale < 0.0F ? -scale : scale);
        }
        for (unsigned step = warp_size / 2; step > 0; step /= 2) most = larger(most, from_lane_xor(most, step));
        return most > 0.0F ? most : 1.0F;
    }

    // O = factor O + value_factor P V for this warp's rows and columns; the smallest terms are added first.
    CTXPAR_DEVICE void multiply_values(int tile, const float (&factor)[2], float value_factor, row_state& state) const {
        const std::uint8_t* const values = layout::narrow
                                               ? memory_ + (layout::one_copy ? layout::wide_keys : layout::wide_values)
                                               : stage(tile) + layout::stage_values;
        const std::uint8_t* const p_row =
            memory_ + layout::weights + 2 * ((16 * row_tile() + lane_ % 16) * layout::weight_pitch + lane_ / 16 * 8);
        const std::uint8_t* const v_row = values + 2 * (lane_ * layout::value_pitch + column() * 8 * value_tiles);
        four_matrices p[shape.p_terms][weight_steps];
        CTXPAR_UNROLL_ALL
        for (int term = 0; term < shape.p_terms; ++term) {
            CTXPAR_UNROLL_ALL
            for (int step = 0; step < weight_steps; ++step)
                p[term][step] = load_rows(p_row + 2 * (term * shape.rows() * layout::weight_pitch + 16 * step));
        }
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < value_tiles; ++n) {
            four_matrices v[weight_steps / 2];
            CTXPAR_UNROLL_ALL
            for (int i = 0; i < weight_steps / 2; ++i)
                v[i] = load_columns(v_row + 2 * (32 * i * layout::value_pitch + 8 * n));
            tile_sums sums = {};
            CTXPAR_UNROLL_ALL
            for (int term = shape.p_terms - 1; term >= 0; --term) {
                CTXPAR_UNROLL_ALL
                for (int step = 0; step < weight_steps; ++step)
                    multiply_add<weight>(sums, p[term][step], v[step / 2].at[step % 2 * 2],
                                         v[step / 2].at[step % 2 * 2 + 1]);
            }
            CTXPAR_UNROLL_ALL
            for (int e = 0; e < 4; ++e)
                state.out[n].at[e] = state.out[n].at[e] * factor[e / 2] + sums.at[e] * value_factor;
        }
    }

    // Sums over all threads of a row, and the results: to the output, or to the scratch of the splits.
    CTXPAR_DEVICE void finish(row_state& state) const {
        CTXPAR_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
            float& sum = state.sum[half];
            sum += from_lane_xor(sum, 1);
            sum += from_lane_xor(sum, 2);
            if constexpr (shape.columns > 1) {
                if (lane_ % 4 == 0) row_values()[column() * shape.rows() + row_of(half)] = sum;
            }
        }
        if constexpr (shape.columns > 1) {
            sync_block();
            CTXPAR_UNROLL_ALL
            for (int half = 0; half < 2; ++half) {
                state.sum[half] = 0.0F;
                CTXPAR_UNROLL_ALL
                for (int c = 0; c < shape.columns; ++c)
                    state.sum[half] += row_values()[c * shape.rows() + row_of(half)];
            }
        }
        CTXPAR_UNROLL_ALL
        for (int half = 0; half < 2; ++half) {
            if (row_of(half) < item().count) write_row(state, half);
        }
    }
    CTXPAR_DEVICE void write_row(const row_state& state, int half) const {
        const std::int64_t packed = item().first + row_of(half);
        const std::int64_t row = item().run.first_row + packed / group_;
        const std::int64_t head = item().kv_head * group_ + packed % group_;
        const bool nothing = state.sum[half] == 0.0F;
        const float share = nothing ? 0.0F : 1.0F / state.sum[half];
        const natural_lse lse_value{nothing ? -float_infinity : state.max[half] + logf(state.sum[half])};
        const bool writes_lse = column() == 0 && lane_ % 4 == 0;
        if (item().run.splits() > 1) {
            const std::int64_t at = (item().split * args_.out.rows + row) * args_.out.heads + head;
            write_columns(args_.scratch.split_out + at * args_.out.width, state, half, share);
            if (writes_lse) args_.scratch.split_lse[at] = lse_value;
        } else {
            const std::int64_t at = args_.out.offset(row, head);
            if (narrow_base_ != nullptr) {
                write_columns(narrow_base_ + at, state, half, share);
            } else {
                write_columns(args_.out.base + at, state, half, share);
            }
            if (writes_lse) *args_.lse_out.at(row, head) = lse_value;
        }
    }
    template <class To>
    CTXPAR_DEVICE void write_columns(To* out, const row_state& state, int half, float share) const {
        CTXPAR_UNROLL_ALL
        for (int n = 0; n < value_tiles; ++n) {
            CTXPAR_UNROLL_ALL
            for (int e = 0; e < 2; ++e) {
                const int d = (column() * value_tiles + n) * 8 + lane_ % 4 * 2 + e;
                if (d < args_.out.width) out[d] = static_cast<To>(state.out[n].at[2 * half + e] * share);
            }
        }
    }

    const arguments& args_;
    Q* narrow_base_;
    std::uint8_t* memory_;
    int stages_;
    int group_;
    int warp_;
    int lane_;
};

template <class Tiles, class Q, class Kv>
CTXPAR_KERNEL_OF(Tiles::shape.threads(), 256 / Tiles::shape.threads())
void attend_tiles_kernel(tile_args<Q, Kv> args, int stages) {
    tile_attention<Tiles, Q, Kv>(args, stages).run();
}

} // namespace ctxpar::inline v0_1::cuda
