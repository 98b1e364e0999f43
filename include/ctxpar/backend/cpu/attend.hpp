// Attention of query rows over paged local keys on the CPU: the body that every instruction set compiles.
//
// Work is cut into items of (segment, KV head, up to 32 (row, head) pairs, split of the keys); each is done by one
// thread and none depends on another, so bits depend neither on threads nor on the rest of the batch. An item walks its
// keys in tiles of 32: K and V rows are widened to fp32 once for all pairs, scores are dot products of 4 pairs by 4
// keys in registers, the softmax is online, P stays fp32.
//
// Sums have three levels, to stay exact at a million keys: registers over a tile, a cell of 1,024 keys, and the split.
// Cells and tiles lie at multiples of their size from key 0, wherever a row's interval starts.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t tile_keys = 32;
inline constexpr std::int64_t pair_block = 32;

constexpr std::int64_t padded(std::int64_t width) {
    return (width + pad_floats - 1) / pad_floats * pad_floats;
}

// One unit of work.
struct attend_item {
    const segment* run = nullptr;
    std::int64_t kv_head = 0;
    std::int64_t first_pair = 0; // pairs of the segment: pair = row_in_segment * heads_per_kv + head_in_group
    std::int64_t pairs = 0;
    std::int64_t split = 0; // 0 .. run->splits() - 1
};

// A thread's scratch memory, carved from floats.
struct attend_buffers {
    float* q;      // [pair_block][dq padded]
    float* keys;   // [tile_keys][dq padded]
    float* values; // [tile_keys][dv padded]; the keys themselves where values are in the keys
    float* p;      // [pair_block][tile_keys] scores, then probabilities
    float* cell;   // [pair_block][dv padded] unnormalised output of the cell
    float* total;  // [pair_block][dv padded] of the split

    static constexpr std::int64_t floats(std::int64_t query_width, std::int64_t value_width) {
        const std::int64_t q_pad = padded(query_width);
        const std::int64_t v_pad = padded(value_width);
        return (pair_block + tile_keys) * q_pad + (tile_keys + 2 * pair_block) * v_pad + pair_block * tile_keys;
    }
    static attend_buffers carve(float* memory, std::int64_t query_width, std::int64_t value_width) {
        const std::int64_t q_pad = padded(query_width);
        const std::int64_t v_pad = padded(value_width);
        attend_buffers b{};
        b.q = memory;
        b.keys = b.q + pair_block * q_pad;
        b.values = b.keys + tile_keys * q_pad;
        b.p = b.values + tile_keys * v_pad;
        b.cell = b.p + pair_block * tile_keys;
        b.total = b.cell + pair_block * v_pad;
        return b;
    }
};

// scores[pair][t] = q[pair] . keys[t] for Pairs pairs and all keys of a tile; Pairs times Keys dot products at a time.
template <int W, int Pairs>
CTXPAR_INLINE void score_block(const float* q, const float* keys, std::int64_t q_pad, float* scores) {
    constexpr int at_once = Pairs == 1 ? 1 : (W >= 8 ? 4 : 2); // pairs in registers
    constexpr int group = W / at_once;                         // keys in registers
    static_assert(Pairs % at_once == 0 && tile_keys % group == 0);
    for (int p = 0; p < Pairs; p += at_once) {
        for (std::int64_t t = 0; t < tile_keys; t += group) {
            floats<W> acc[W] = {};
            for (std::int64_t d = 0; d < q_pad; d += W) {
                floats<W> key[group];
#pragma GCC unroll 16
                for (int j = 0; j < group; ++j) load<W>(keys + (t + j) * q_pad + d, key[j]);
#pragma GCC unroll 16
                for (int i = 0; i < at_once; ++i) {
                    floats<W> query;
                    load<W>(q + (p + i) * q_pad + d, query);
#pragma GCC unroll 16
                    for (int j = 0; j < group; ++j) acc[group * i + j] += query * key[j];
                }
            }
            floats<W> sums;
            add_across<W>(acc, sums);
            for (int i = 0; i < at_once; ++i)
                std::memcpy(scores + (p + i) * tile_keys + t, reinterpret_cast<const float*>(&sums) + group * i,
                            group * sizeof(float));
        }
    }
}

// out[pair] = out[pair] * keep[pair] + sum_t p[pair][t] * values[t] for t in [first, last), Vectors vectors of columns.
template <int W, int Pairs, int Vectors>
CTXPAR_INLINE void value_block(const float* p, const float* values, std::int64_t v_stride, std::int64_t first,
                               std::int64_t last, const float* keep, float* out, std::int64_t out_stride) {
    floats<W> acc[Pairs][Vectors] = {};
    for (std::int64_t t = first; t < last; ++t) {
        floats<W> value[Vectors];
#pragma GCC unroll 16
        for (int c = 0; c < Vectors; ++c) load<W>(values + t * v_stride + c * W, value[c]);
#pragma GCC unroll 16
        for (int i = 0; i < Pairs; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < Vectors; ++c) acc[i][c] += value[c] * p[i * tile_keys + t];
        }
    }
    for (int i = 0; i < Pairs; ++i) {
        for (int c = 0; c < Vectors; ++c) {
            floats<W> sum;
            load<W>(out + i * out_stride + c * W, sum);
            sum = sum * keep[i] + acc[i][c];
            store<W>(sum, out + i * out_stride + c * W);
        }
    }
}

template <int W, int Pairs>
CTXPAR_INLINE void value_columns(const float* p, const float* values, std::int64_t v_stride, std::int64_t first,
                                 std::int64_t last, const float* keep, float* out, std::int64_t v_pad) {
    constexpr int wide = W == 16 ? 4 : 2;
    std::int64_t c = 0;
    for (; c + wide * W <= v_pad; c += wide * W)
        value_block<W, Pairs, wide>(p, values + c, v_stride, first, last, keep, out + c, v_pad);
    for (; c < v_pad; c += W) value_block<W, Pairs, 1>(p, values + c, v_stride, first, last, keep, out + c, v_pad);
}

// One thread's walk over the keys of an item, with vectors of W lanes.
template <int W, class Args>
struct attend_walk {
    const Args& args;
    const attend_item& item;
    attend_buffers buffers;
    std::int64_t group; // query heads of a KV head
    std::int64_t q_pad;
    std::int64_t v_pad;
    std::int64_t v_stride;       // floats from one value row to the next
    bool shared;                 // values lie in the key rows
    float key_factor[tile_keys]; // softmax scale times the key's own scale
    float value_factor[tile_keys];
    std::uint32_t mask[pair_block];
    softmax_state<lse_base::natural> cell[pair_block];
    softmax_state<lse_base::natural> total[pair_block];

    CTXPAR_INLINE std::int64_t row_of(std::int64_t pair) const {
        return item.run->first_row + (item.first_pair + pair) / group;
    }
    CTXPAR_INLINE std::int64_t head_of(std::int64_t pair) const {
        return item.kv_head * group + (item.first_pair + pair) % group;
    }

    CTXPAR_INLINE void load_queries() {
        for (std::int64_t i = 0; i < item.pairs; ++i)
            widen_row<W>(args.q.at(row_of(i), head_of(i)), args.q.width, buffers.q + i * q_pad);
    }

    // What each pair sees of the tile; returns the union.
    CTXPAR_INLINE std::uint32_t mask_tile(std::int64_t first) {
        std::uint32_t any = 0;
        for (std::int64_t i = 0; i < item.pairs; ++i) {
            const bool same_row = i > 0 && row_of(i) == row_of(i - 1);
            mask[i] = same_row ? mask[i - 1] : args.plan.arrays.rows[row_of(i)].tile_mask(first);
            any |= mask[i];
        }
        return any;
    }

    // Asks for the rows of a key that the next tile will read: heads of one token lie next to each other, so the rows
    // of one head are too far apart for the processor to foresee.
    CTXPAR_INLINE void prefetch_key(std::int64_t key) {
        const std::int64_t slot = args.plan.table.slot(item.run->request, key);
        const std::int64_t page = args.cache.page_of(slot);
        const std::int64_t token = args.cache.token_of(slot);
        prefetch_row(args.cache.k.at(page, token, item.kv_head), args.q.width);
        if (!shared) prefetch_row(args.cache.v.at(page, token, item.kv_head), args.out.width);
    }
    template <class Kv>
    CTXPAR_INLINE static void prefetch_row(const Kv* row, std::int64_t width) {
        const char* const bytes = reinterpret_cast<const char*>(row);
        for (std::int64_t b = 0; b < width * static_cast<std::int64_t>(sizeof(Kv)); b += 64)
            __builtin_prefetch(bytes + b);
    }

    // Widens the keys that some row sees; the others, whose blocks may be gone, are zero and not touched.
    CTXPAR_INLINE void load_tile(std::int64_t first, std::uint32_t any) {
        const std::uint32_t ahead = args.plan.arrays.rows[row_of(item.pairs - 1)].tile_mask(first + tile_keys);
        for (std::int64_t t = 0; t < tile_keys; ++t) {
            if ((any >> t & 1U) == 0) {
                std::fill_n(buffers.keys + t * q_pad, q_pad, 0.0F);
                if (!shared) std::fill_n(buffers.values + t * v_pad, v_pad, 0.0F);
                key_factor[t] = value_factor[t] = 0.0F;
                continue;
            }
            if ((ahead >> t & 1U) != 0) prefetch_key(first + tile_keys + t);
            const std::int64_t slot = args.plan.table.slot(item.run->request, first + t);
            const std::int64_t page = args.cache.page_of(slot);
            const std::int64_t token = args.cache.token_of(slot);
            widen_row<W>(args.cache.k.at(page, token, item.kv_head), args.q.width, buffers.keys + t * q_pad);
            if (!shared)
                widen_row<W>(args.cache.v.at(page, token, item.kv_head), args.out.width, buffers.values + t * v_pad);
            key_factor[t] = args.score.scale * args.cache.k_scale.at(page, token, item.kv_head);
            value_factor[t] = args.cache.v_scale.at(page, token, item.kv_head);
        }
    }

    CTXPAR_INLINE void score_tile() {
        std::int64_t i = 0;
        for (; i + 4 <= item.pairs; i += 4)
            score_block<W, 4>(buffers.q + i * q_pad, buffers.keys, q_pad, buffers.p + i * tile_keys);
        for (; i < item.pairs; ++i)
            score_block<W, 1>(buffers.q + i * q_pad, buffers.keys, q_pad, buffers.p + i * tile_keys);
        if (args.score.soft_cap > 0.0F) cap_scores();
    }

    // With a soft cap the factor of the key comes first, and is then done with.
    CTXPAR_INLINE void cap_scores() {
        const float cap = args.score.soft_cap;
        for (std::int64_t i = 0; i < item.pairs; ++i)
            for (std::int64_t t = 0; t < tile_keys; ++t) {
                float& score = buffers.p[i * tile_keys + t];
                score = cap * std::tanh(score * key_factor[t] / cap);
            }
        std::fill_n(key_factor, tile_keys, 1.0F);
    }

    // Scores of one pair to probabilities relative to the cell's largest score; returns what scales its output so far.
    CTXPAR_INLINE float softmax_tile(std::int64_t pair) {
        constexpr int vectors = static_cast<int>(tile_keys) / W;
        floats<W> nothing;
        fill<W>(-std::numeric_limits<float>::infinity(), nothing);
        words<W> lane_bit;
        for (int i = 0; i < W; ++i) lane_bit[i] = 1U << i;
        float* p = buffers.p + pair * tile_keys;
        floats<W> score[vectors];
        floats<W> largest = nothing;
#pragma GCC unroll 8
        for (int x = 0; x < vectors; ++x) {
            floats<W> factor;
            load<W>(p + x * W, score[x]);
            load<W>(key_factor + x * W, factor);
            const words<W> bits = words<W>{} + (mask[pair] >> (x * W));
            select<W>((bits & lane_bit) != 0, score[x] * factor, nothing, score[x]);
            select<W>(score[x] > largest, score[x], largest, largest);
        }
        softmax_state<lse_base::natural>& state = cell[pair];
        const float keep = state.raise(max_of<W>(largest));
        const float reference = is_minus_infinity(state.max) ? 0.0F : state.max;
        floats<W> sum{};
#pragma GCC unroll 8
        for (int x = 0; x < vectors; ++x) {
            floats<W> factor;
            floats<W> weight = score[x] - reference;
            exp_of_negative<W>(weight);
            sum += weight;
            load<W>(value_factor + x * W, factor);
            store<W>(weight * factor, p + x * W);
        }
        state.sum += sum_of<W>(sum);
        return keep;
    }

    CTXPAR_INLINE void add_tile(std::int64_t first) {
        const std::uint32_t any = mask_tile(first);
        if (any == 0) return;
        load_tile(first, any);
        score_tile();
        float keep[pair_block];
        for (std::int64_t i = 0; i < item.pairs; ++i) keep[i] = softmax_tile(i);
        const std::int64_t from = std::countr_zero(any);
        const std::int64_t to = tile_keys - std::countl_zero(any);
        const float* values = shared ? buffers.keys : buffers.values;
        std::int64_t i = 0;
        for (; i + 4 <= item.pairs; i += 4)
            value_columns<W, 4>(buffers.p + i * tile_keys, values, v_stride, from, to, keep + i,
                                buffers.cell + i * v_pad, v_pad);
        for (; i < item.pairs; ++i)
            value_columns<W, 1>(buffers.p + i * tile_keys, values, v_stride, from, to, keep + i,
                                buffers.cell + i * v_pad, v_pad);
    }

    // Puts the cell's state into the split's.
    CTXPAR_INLINE void fold_cell() {
        for (std::int64_t i = 0; i < item.pairs; ++i) {
            const auto factor = total[i].merge(cell[i]);
            float* sum = buffers.total + i * v_pad;
            const float* add = buffers.cell + i * v_pad;
            for (std::int64_t d = 0; d < v_pad; ++d) sum[d] = sum[d] * factor.own + add[d] * factor.other;
            cell[i] = {};
        }
        std::fill_n(buffers.cell, item.pairs * v_pad, 0.0F);
    }

    CTXPAR_INLINE void walk() {
        std::fill_n(buffers.cell, item.pairs * v_pad, 0.0F);
        std::fill_n(buffers.total, item.pairs * v_pad, 0.0F);
        load_queries();
        const segment& run = *item.run;
        const std::int64_t split_begin = (run.first_split + item.split) * run.split_tokens;
        const std::int64_t begin = std::max(run.begin, split_begin) / tile_keys * tile_keys;
        const std::int64_t end = std::min(run.end, split_begin + run.split_tokens);
        for (std::int64_t first = begin; first < end; first += tile_keys) {
            add_tile(first);
            if ((first + tile_keys) % split_grain == 0 || first + tile_keys >= end) fold_cell();
        }
        for (std::int64_t i = 0; i < item.pairs; ++i) write(i);
    }

    // The pair's O and LSE, to the output or, where the segment has several splits, to the split's partials.
    CTXPAR_INLINE void write(std::int64_t i) {
        const std::int64_t row = row_of(i);
        const std::int64_t head = head_of(i);
        const lse<lse_base::natural> lse_value = total[i].finish();
        const bool nothing = is_minus_infinity(lse_value.value);
        const float* sum = buffers.total + i * v_pad;
        if (item.run->splits() > 1) {
            const std::int64_t at = (item.split * args.out.rows + row) * args.out.heads + head;
            args.scratch.split_lse[at] = lse_value;
            float* to = args.scratch.split_out + at * args.out.width;
            for (std::int64_t d = 0; d < args.out.width; ++d) to[d] = nothing ? 0.0F : sum[d] / total[i].sum;
            return;
        }
        using element = std::remove_reference_t<decltype(*args.out.base)>;
        element* to = args.out.at(row, head);
        for (std::int64_t d = 0; d < args.out.width; ++d)
            to[d] = static_cast<element>(nothing ? 0.0F : sum[d] / total[i].sum);
        args.lse_out.at(row, head)->value = lse_value.value;
    }
};

template <int W, class Args>
CTXPAR_INLINE void attend_body(const Args& args, const attend_item& item, float* scratch) {
    const auto& cache = args.cache;
    const bool shared = cache.v.base == cache.k.base && cache.v.pages == cache.k.pages &&
                        cache.v.page_byte_offset == cache.k.page_byte_offset;
    const std::int64_t q_pad = padded(args.q.width);
    const std::int64_t v_pad = padded(args.out.width);
    attend_walk<W, Args> walk{args,
                              item,
                              attend_buffers::carve(scratch, args.q.width, args.out.width),
                              args.q.heads / cache.kv_heads,
                              q_pad,
                              v_pad,
                              shared ? q_pad : v_pad,
                              shared,
                              {},
                              {},
                              {},
                              {},
                              {}};
    walk.walk();
}

template <class Args>
CTXPAR_TARGET_AVX512 void attend_item_avx512(const Args& args, const attend_item& item, float* scratch) {
    attend_body<16>(args, item, scratch);
}
template <class Args>
CTXPAR_TARGET_AVX2 void attend_item_avx2(const Args& args, const attend_item& item, float* scratch) {
    attend_body<8>(args, item, scratch);
}
template <class Args>
void attend_item_portable(const Args& args, const attend_item& item, float* scratch) {
    attend_body<4>(args, item, scratch);
}

// Does one item with the body of an instruction set.
template <class Args>
void attend_one(isa set, const Args& args, const attend_item& item, float* scratch) {
    if (set == isa::avx512) {
        attend_item_avx512(args, item, scratch);
    } else if (set == isa::avx2) {
        attend_item_avx2(args, item, scratch);
    } else {
        attend_item_portable(args, item, scratch);
    }
}

// Items of one segment: (KV head, block of pairs, split), splits fastest. A segment without keys has one split, which
// writes the empty state.
struct segment_items {
    std::int64_t kv_heads;
    std::int64_t pairs;
    std::int64_t splits;

    template <class Args>
    segment_items(const Args& args, const segment& run)
        : kv_heads(args.cache.kv_heads), pairs(run.rows * (args.q.heads / args.cache.kv_heads)),
          splits(std::max<std::int64_t>(run.splits(), 1)) {}

    std::int64_t blocks() const { return (pairs + pair_block - 1) / pair_block; }
    std::int64_t count() const { return kv_heads * blocks() * splits; }
    attend_item item(const segment& run, std::int64_t index) const {
        attend_item one;
        one.run = &run;
        one.split = index % splits;
        one.first_pair = index / splits % blocks() * pair_block;
        one.pairs = std::min(pair_block, pairs - one.first_pair);
        one.kv_head = index / splits / blocks();
        return one;
    }
};

// Merges the splits of one row, all heads.
template <class Args>
void combine_splits(const Args& args, std::int64_t row, std::int64_t splits) {
    using element = std::remove_reference_t<decltype(*args.out.base)>;
    const std::int64_t step = args.out.rows * args.out.heads;
    for (std::int64_t head = 0; head < args.out.heads; ++head) {
        const std::int64_t first = row * args.out.heads + head;
        const natural_lse* lses = args.scratch.split_lse + first;
        merge_weights<lse_base::natural> weights;
        for (std::int64_t s = 0; s < splits; ++s) weights.see(lses[s * step]);
        for (std::int64_t s = 0; s < splits; ++s) weights.add(lses[s * step]);
        element* to = args.out.at(row, head);
        for (std::int64_t d0 = 0; d0 < args.out.width; d0 += 64) {
            const std::int64_t columns = std::min<std::int64_t>(64, args.out.width - d0);
            float sum[64] = {};
            for (std::int64_t s = 0; s < splits; ++s) {
                if (!weights.has_weight(lses[s * step])) continue;
                const float weight = weights.weight(lses[s * step]);
                const float* from = args.scratch.split_out + (s * step + first) * args.out.width + d0;
                for (std::int64_t d = 0; d < columns; ++d) sum[d] += weight * from[d];
            }
            for (std::int64_t d = 0; d < columns; ++d) to[d0 + d] = static_cast<element>(sum[d]);
        }
        args.lse_out.at(row, head)->value = weights.result().value;
    }
}

} // namespace ctxpar::inline v0_1::cpu
