// The arithmetic of attention over one tile of keys, once for each instruction set.
//
// A tile is 32 keys whose K and V rows lie widened in fp32, for up to 32 (row, head) pairs. These kernels see plain
// arrays only: neither element types nor pages, heads or masks other than bits. They are chosen by table, so what calls
// them is compiled once.
//
// Pairs are the lanes of scores and weights, [key][pair], and of the queries, [column][pair]: a key's element is the
// same number for all lanes, so nothing is added across lanes and maxima and sums over keys go element by element.
// Pairs are padded to `lanes`, a multiple of pad_floats; padding pairs have queries of zero and see no key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t tile_keys = 32;
inline constexpr std::int64_t tile_pairs = 32;

using running_softmax = softmax_state<lse_base::natural>;

// What a softmax over a tile needs to know of its keys.
struct tile_factors {
    float key[tile_keys];   // softmax scale times the key's own scale
    float value[tile_keys]; // the value's own scale
};

// The softmax states of the pairs of a tile.
struct tile_softmax {
    float max[tile_pairs];
    float sum[tile_pairs];

    running_softmax of(std::int64_t pair) const { return {max[pair], sum[pair]}; }
    static tile_softmax none() {
        tile_softmax state{};
        for (float& value : state.max) value = -float_infinity;
        return state;
    }
};

// Queries and keys of a tile. All arrays are best aligned to 64 bytes.
struct tile_scores {
    const float* q;    // [q_pad][lanes]
    const float* keys; // [tile_keys][q_pad]
    std::int64_t q_pad;
    std::int64_t lanes;
    float* scores; // [tile_keys][lanes]
};

// Scores that become weights.
struct tile_weights {
    float* p;                  // [tile_keys][lanes]
    const std::uint32_t* mask; // [lanes] bit t: the pair sees key t
    std::int64_t lanes;
    float* keep; // [lanes] what the pair's output so far has to be multiplied by
};

// The weights of a tile, and how to lay them on the values.
struct tile_values {
    const float* p; // [tile_keys][lanes]
    std::int64_t lanes;
    const float* values; // [tile_keys][stride]
    std::int64_t stride; // floats from one value row to the next
    std::int64_t first;  // keys [first, last) count, the others have weight 0
    std::int64_t last;
    const float* keep;  // [lanes]
    float* out;         // [pairs][width], with room for the next multiple of 4 pairs
    std::int64_t width; // a multiple of pad_floats
};

// How the two products are cut into what the registers of an instruction set hold: at least 8 sums side by side, so
// that no multiply-add waits for the one before it, and fewer loads than multiply-adds.
template <int W>
struct tile_blocking {
    static constexpr int keys = W == 16 ? 8 : (W == 8 ? 4 : 2);    // scores: keys by
    static constexpr int lane_vectors = W == 4 ? 4 : 2;            // vectors of pairs
    static constexpr int pairs = 4;                                // outputs: pairs by
    static constexpr int columns = W == 16 ? 4 : (W == 8 ? 3 : 2); // vectors of columns,
    static constexpr int few_columns = W == 16 ? 1 : 2;            // or these, until the others divide what is left
};

// How many products of a score are added up in a row, and how many such sums: a score of 10 is to be good to 1e-6.
// Multiples of one another; the last level takes the blocks.
struct score_sums {
    static constexpr std::int64_t chain = 16;
    static constexpr std::int64_t piece = 64;
    static constexpr std::int64_t block = 128;
    static_assert(pad_floats % chain == 0 && piece % chain == 0 && block % piece == 0);
};

// acc = sum of q[d] * keys[t][d] over one chain of columns, for Keys keys and Vectors vectors of pairs.
template <int W, int Keys, int Vectors>
CTXPAR_INLINE void score_chain(const float* q, std::int64_t lanes, const float* const (&row)[Keys], std::int64_t d,
                               floats<W> (&acc)[Keys][Vectors]) {
    CTXPAR_UNROLL
    for (int j = 0; j < Keys; ++j) {
        CTXPAR_UNROLL
        for (int x = 0; x < Vectors; ++x) acc[j][x] = floats<W>{};
    }
    for (int step = 0; step < score_sums::chain; ++step, ++d) {
        floats<W> query[Vectors];
        CTXPAR_UNROLL
        for (int x = 0; x < Vectors; ++x) load<W>(q + d * lanes + x * W, query[x]);
        CTXPAR_UNROLL
        for (int j = 0; j < Keys; ++j) {
            CTXPAR_UNROLL
            for (int x = 0; x < Vectors; ++x) acc[j][x] += query[x] * row[j][d];
        }
    }
}

// to[t] = sum of q[d] * keys[t][d] over columns [begin, end), for the same keys and pairs.
template <int W, int Keys, int Vectors>
CTXPAR_INLINE void score_block(const tile_scores& tile, std::int64_t key, std::int64_t lane, std::int64_t begin,
                               std::int64_t end, float* to) {
    const float* row[Keys];
    CTXPAR_UNROLL
    for (int j = 0; j < Keys; ++j) row[j] = tile.keys + (key + j) * tile.q_pad;
    to += key * tile.lanes + lane;
    for (std::int64_t d = begin; d < end;) {
        const bool first = d == begin;
        const std::int64_t last = std::min(d + score_sums::piece, end);
        floats<W> sum[Keys][Vectors] = {};
        for (; d < last; d += score_sums::chain) {
            floats<W> acc[Keys][Vectors];
            score_chain<W>(tile.q + lane, tile.lanes, row, d, acc);
            CTXPAR_UNROLL
            for (int j = 0; j < Keys; ++j) {
                CTXPAR_UNROLL
                for (int x = 0; x < Vectors; ++x) sum[j][x] += acc[j][x];
            }
        }
        CTXPAR_UNROLL
        for (int j = 0; j < Keys; ++j) {
            CTXPAR_UNROLL
            for (int x = 0; x < Vectors; ++x) {
                float* const at = to + j * tile.lanes + x * W;
                floats<W> before{};
                if (!first) load<W>(at, before);
                before += sum[j][x];
                store<W>(before, at);
            }
        }
    }
}

// All scores of a tile. Few columns at a time, so that both factors stay in the first cache.
template <int W>
CTXPAR_INLINE void score_tile(const tile_scores& tile) {
    using cut = tile_blocking<W>;
    alignas(64) float block[tile_keys * tile_pairs];
    for (std::int64_t begin = 0; begin < tile.q_pad; begin += score_sums::block) {
        float* const to = begin == 0 ? tile.scores : block;
        const std::int64_t end = std::min(begin + score_sums::block, tile.q_pad);
        std::int64_t lane = 0;
        for (; lane + cut::lane_vectors * W <= tile.lanes; lane += cut::lane_vectors * W)
            for (std::int64_t t = 0; t < tile_keys; t += cut::keys)
                score_block<W, cut::keys, cut::lane_vectors>(tile, t, lane, begin, end, to);
        if constexpr (cut::lane_vectors * W > pad_floats) {
            if (lane < tile.lanes)
                for (std::int64_t t = 0; t < tile_keys; t += cut::keys)
                    score_block<W, cut::keys, 1>(tile, t, lane, begin, end, to);
        }
        if (begin == 0) continue;
        for (std::int64_t i = 0; i < tile_keys * tile.lanes; ++i) tile.scores[i] += block[i];
    }
}

// out = out * keep + p' values, for some pairs and Vectors vectors of columns.
template <int W, int Pairs, int Vectors>
CTXPAR_INLINE void value_block(const tile_values& tile, std::int64_t pair, std::int64_t column) {
    floats<W> acc[Pairs][Vectors] = {};
    for (std::int64_t t = tile.first; t < tile.last; ++t) {
        const float* const from = tile.values + t * tile.stride + column;
        const float* const p = tile.p + t * tile.lanes + pair;
        floats<W> value[Vectors];
        CTXPAR_UNROLL
        for (int c = 0; c < Vectors; ++c) load<W>(from + c * W, value[c]);
        CTXPAR_UNROLL
        for (int i = 0; i < Pairs; ++i) {
            CTXPAR_UNROLL
            for (int c = 0; c < Vectors; ++c) acc[i][c] += value[c] * p[i];
        }
    }
    for (int i = 0; i < Pairs; ++i) {
        float* const out = tile.out + (pair + i) * tile.width + column;
        CTXPAR_UNROLL
        for (int c = 0; c < Vectors; ++c) {
            floats<W> sum;
            load<W>(out + c * W, sum);
            sum = sum * tile.keep[pair + i] + acc[i][c];
            store<W>(sum, out + c * W);
        }
    }
}

// The values of a tile, weighted, into the outputs of `pairs` pairs. A strip of columns stays in the first cache for
// all of them.
template <int W>
CTXPAR_INLINE void add_values(const tile_values& tile, std::int64_t pairs) {
    using cut = tile_blocking<W>;
    constexpr std::int64_t wide = cut::columns * W;
    std::int64_t c = 0;
    if constexpr (cut::columns != cut::few_columns) {
        for (; (tile.width - c) % wide != 0; c += cut::few_columns * W)
            for (std::int64_t i = 0; i < pairs; i += cut::pairs)
                value_block<W, cut::pairs, cut::few_columns>(tile, i, c);
    }
    for (; c < tile.width; c += wide)
        for (std::int64_t i = 0; i < pairs; i += cut::pairs) value_block<W, cut::pairs, cut::columns>(tile, i, c);
}

// The scores of a vector of pairs times the factors of their keys, -inf where a pair doesn't see the key. `largest`
// rises to the largest; NaN is passed over.
template <int W>
CTXPAR_INLINE void scale_lanes(const tile_weights& tile, std::int64_t lane, const tile_factors& factors,
                               floats<W>& largest) {
    std::uint32_t all = ~0U;
    for (int i = 0; i < W; ++i) all &= tile.mask[lane + i];
    floats<W> nothing;
    fill<W>(-float_infinity, nothing);
    words<W> mask;
    std::memcpy(&mask, tile.mask + lane, sizeof(mask));
    floats<W> most[2] = {largest, largest};
    for (int t = 0; t < tile_keys; t += 2) {
        CTXPAR_UNROLL
        for (int x = 0; x < 2; ++x) {
            float* const at = tile.p + (t + x) * tile.lanes + lane;
            floats<W> score;
            load<W>(at, score);
            score *= factors.key[t + x];
            if (all != ~0U) select<W>((mask & (1U << (t + x))) != 0, score, nothing, score);
            select<W>(score > most[x], score, most[x], most[x]);
            store<W>(score, at);
        }
    }
    select<W>(most[1] > most[0], most[1], most[0], largest);
}

// The maxima of a vector of pairs rise to `largest`. Gives what the scores of their weights are relative to, and what
// their sums so far have to be multiplied by.
template <int W>
CTXPAR_INLINE void raise_maxima(const floats<W>& largest, float* max, floats<W>& reference, floats<W>& keep) {
    const floats<W> zero{};
    floats<W> one;
    fill<W>(1.0F, one);
    floats<W> before;
    load<W>(max, before);
    store<W>(largest, max);
    keep = before - largest;
    exp_up_to_8<W>(keep);
    select<W>(largest > before, keep, one, keep); // not where both are infinite
    words<W> bits;
    copy_bits(largest, bits);
    select<W>(bits == 0xff800000U, zero, largest, reference); // nothing was seen: exp(-inf - 0) is 0
}

// A vector of pairs: their scores become weights relative to the largest score of their states.
template <int W>
CTXPAR_INLINE void weigh_lanes(const tile_weights& tile, std::int64_t lane, const tile_factors& factors,
                               tile_softmax& state) {
    floats<W> largest;
    load<W>(state.max + lane, largest);
    scale_lanes<W>(tile, lane, factors, largest);
    floats<W> reference;
    floats<W> keep;
    raise_maxima<W>(largest, state.max + lane, reference, keep);
    store<W>(keep, tile.keep + lane);
    floats<W> sum[4] = {};
    for (int t = 0; t < tile_keys; t += 4) {
        CTXPAR_UNROLL
        for (int x = 0; x < 4; ++x) {
            float* const at = tile.p + (t + x) * tile.lanes + lane;
            floats<W> weight;
            load<W>(at, weight);
            weight -= reference;
            exp_up_to_8<W>(weight);
            sum[x] += weight;
            weight *= factors.value[t + x];
            store<W>(weight, at);
        }
    }
    floats<W> total;
    load<W>(state.sum + lane, total);
    total = total * keep + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
    store<W>(total, state.sum + lane);
}

template <int W>
CTXPAR_INLINE void weigh_tile(const tile_weights& tile, const tile_factors& factors, tile_softmax& state) {
    for (std::int64_t lane = 0; lane < tile.lanes; lane += W) weigh_lanes<W>(tile, lane, factors, state);
}

// The kernels of one instruction set; widen is [element type] and therefore apart.
struct tile_kernels {
    void (*score)(const tile_scores& tile);
    void (*weigh)(const tile_weights& tile, const tile_factors& factors, tile_softmax& state);
    void (*add)(const tile_values& tile, std::int64_t pairs);
};

CTXPAR_TARGET_AVX512 inline void score_avx512(const tile_scores& tile) {
    score_tile<16>(tile);
}
CTXPAR_TARGET_AVX512 inline void weigh_avx512(const tile_weights& tile, const tile_factors& factors,
                                              tile_softmax& state) {
    weigh_tile<16>(tile, factors, state);
}
CTXPAR_TARGET_AVX512 inline void add_avx512(const tile_values& tile, std::int64_t pairs) {
    add_values<16>(tile, pairs);
}
template <class T>
CTXPAR_TARGET_AVX512 void widen_avx512(const T* from, std::int64_t width, float* to) {
    widen_row<16>(from, width, to);
}

CTXPAR_TARGET_AVX2 inline void score_avx2(const tile_scores& tile) {
    score_tile<8>(tile);
}
CTXPAR_TARGET_AVX2 inline void weigh_avx2(const tile_weights& tile, const tile_factors& factors, tile_softmax& state) {
    weigh_tile<8>(tile, factors, state);
}
CTXPAR_TARGET_AVX2 inline void add_avx2(const tile_values& tile, std::int64_t pairs) {
    add_values<8>(tile, pairs);
}
template <class T>
CTXPAR_TARGET_AVX2 void widen_avx2(const T* from, std::int64_t width, float* to) {
    widen_row<8>(from, width, to);
}

inline void score_portable(const tile_scores& tile) {
    score_tile<4>(tile);
}
inline void weigh_portable(const tile_weights& tile, const tile_factors& factors, tile_softmax& state) {
    weigh_tile<4>(tile, factors, state);
}
inline void add_portable(const tile_values& tile, std::int64_t pairs) {
    add_values<4>(tile, pairs);
}
template <class T>
void widen_portable(const T* from, std::int64_t width, float* to) {
    widen_row<4>(from, width, to);
}

// A template, so that a program may compile the kernels once: extern template tile_kernels kernels_of<void>(isa).
template <class = void>
tile_kernels kernels_of(isa set) {
    if (set >= isa::avx512) return {score_avx512, weigh_avx512, add_avx512};
    if (set == isa::avx2) return {score_avx2, weigh_avx2, add_avx2};
    return {score_portable, weigh_portable, add_portable};
}

// Widens a row of T to fp32, padded with zeros to a multiple of pad_floats.
template <class T>
using widen_function = void (*)(const T* from, std::int64_t width, float* to);

template <class T>
widen_function<T> widen_of(isa set) {
    if (set >= isa::avx512) return widen_avx512<T>;
    if (set == isa::avx2) return widen_avx2<T>;
    return widen_portable<T>;
}

} // namespace ctxpar::inline v0_1::cpu
