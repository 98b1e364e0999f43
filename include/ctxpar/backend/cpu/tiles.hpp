// The arithmetic of attention over one tile of keys, once for each instruction set.
//
// A tile is 32 keys whose K and V rows lie widened in fp32. These kernels see plain arrays only: neither element types
// nor pages, heads or masks other than bits. They are chosen by table, so what calls them is compiled once.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t tile_keys = 32;

using running_softmax = softmax_state<lse_base::natural>;

// What a softmax over a tile needs to know of its keys.
struct tile_factors {
    float key[tile_keys];   // softmax scale times the key's own scale
    float value[tile_keys]; // the value's own scale
};

// The weights of a tile, and how to lay them on the values: p is [pairs][tile_keys], values [tile_keys][stride].
struct tile_values {
    const float* p;
    const float* values;
    std::int64_t stride; // floats from one value row to the next
    std::int64_t first;  // keys [first, last) count, the others have weight 0
    std::int64_t last;
    const float* keep;  // [pairs] what the outputs so far are multiplied by
    float* out;         // [pairs][width]
    std::int64_t width; // a multiple of pad_floats
};

// scores[pair][t] = q[pair] . keys[t] for Pairs pairs and all keys of a tile; Pairs times Keys dot products at a time.
template <int W, int Pairs>
CTXPAR_INLINE void score_block(const float* q, const float* keys, std::int64_t q_pad, float* scores) {
    constexpr int at_once = Pairs == 1 ? 1 : (W >= 8 ? 4 : 2); // pairs in registers
    constexpr int group = W / at_once;                         // keys in registers
    constexpr int chain = 8; // products a lane adds up before they join the total: a score of 10 is good to 1e-6
    static_assert(Pairs % at_once == 0 && tile_keys % group == 0);
    for (int p = 0; p < Pairs; p += at_once) {
        for (std::int64_t t = 0; t < tile_keys; t += group) {
            floats<W> total[W] = {};
            for (std::int64_t start = 0; start < q_pad; start += chain * W) {
                floats<W> acc[W] = {};
                const std::int64_t end = start + chain * W < q_pad ? start + chain * W : q_pad;
                for (std::int64_t d = start; d < end; d += W) {
                    floats<W> key[group];
                    CTXPAR_UNROLL
                    for (int j = 0; j < group; ++j) load<W>(keys + (t + j) * q_pad + d, key[j]);
                    CTXPAR_UNROLL
                    for (int i = 0; i < at_once; ++i) {
                        floats<W> query;
                        load<W>(q + (p + i) * q_pad + d, query);
                        CTXPAR_UNROLL
                        for (int j = 0; j < group; ++j) acc[group * i + j] += query * key[j];
                    }
                }
                for (int i = 0; i < W; ++i) total[i] += acc[i];
            }
            floats<W> sums;
            add_across<W>(total, sums);
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
        CTXPAR_UNROLL
        for (int c = 0; c < Vectors; ++c) load<W>(values + t * v_stride + c * W, value[c]);
        CTXPAR_UNROLL
        for (int i = 0; i < Pairs; ++i) {
            CTXPAR_UNROLL
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
CTXPAR_INLINE void value_columns(const tile_values& tile, std::int64_t pair) {
    constexpr int wide = W == 16 ? 4 : 2;
    const float* p = tile.p + pair * tile_keys;
    const float* keep = tile.keep + pair;
    float* out = tile.out + pair * tile.width;
    std::int64_t c = 0;
    for (; c + wide * W <= tile.width; c += wide * W)
        value_block<W, Pairs, wide>(p, tile.values + c, tile.stride, tile.first, tile.last, keep, out + c, tile.width);
    for (; c < tile.width; c += W)
        value_block<W, Pairs, 1>(p, tile.values + c, tile.stride, tile.first, tile.last, keep, out + c, tile.width);
}

// scores[pair][t] for all pairs and keys of a tile; q is [pairs][q_pad], keys [tile_keys][q_pad].
template <int W>
CTXPAR_INLINE void score_pairs(const float* q, const float* keys, std::int64_t q_pad, std::int64_t pairs,
                               float* scores) {
    std::int64_t i = 0;
    for (; i + 4 <= pairs; i += 4) score_block<W, 4>(q + i * q_pad, keys, q_pad, scores + i * tile_keys);
    for (; i < pairs; ++i) score_block<W, 1>(q + i * q_pad, keys, q_pad, scores + i * tile_keys);
}

template <int W>
CTXPAR_INLINE void add_values(const tile_values& tile, std::int64_t pairs) {
    std::int64_t i = 0;
    for (; i + 4 <= pairs; i += 4) value_columns<W, 4>(tile, i);
    for (; i < pairs; ++i) value_columns<W, 1>(tile, i);
}

// One pair's scores become weights relative to the largest score of its state; returns what scales its output so far.
template <int W>
CTXPAR_INLINE float weigh_scores(float* p, std::uint32_t mask, const tile_factors& factors, running_softmax& state) {
    constexpr int vectors = static_cast<int>(tile_keys) / W;
    floats<W> nothing;
    fill<W>(-std::numeric_limits<float>::infinity(), nothing);
    words<W> lane_bit;
    for (int i = 0; i < W; ++i) lane_bit[i] = 1U << i;
    floats<W> score[vectors];
    floats<W> largest = nothing;
    CTXPAR_UNROLL
    for (int x = 0; x < vectors; ++x) {
        floats<W> factor;
        load<W>(p + x * W, score[x]);
        load<W>(factors.key + x * W, factor);
        const words<W> bits = words<W>{} + (mask >> (x * W));
        select<W>((bits & lane_bit) != 0, score[x] * factor, nothing, score[x]);
        select<W>(score[x] > largest, score[x], largest, largest);
    }
    const float keep = state.raise(max_of<W>(largest));
    const float reference = is_minus_infinity(state.max) ? 0.0F : state.max;
    floats<W> sum{};
    CTXPAR_UNROLL
    for (int x = 0; x < vectors; ++x) {
        floats<W> factor;
        floats<W> weight = score[x] - reference;
        exp_of_negative<W>(weight);
        sum += weight;
        load<W>(factors.value + x * W, factor);
        store<W>(weight * factor, p + x * W);
    }
    state.sum += sum_of<W>(sum);
    return keep;
}

// The kernels of one instruction set; widen is [element type] and therefore apart.
struct tile_kernels {
    void (*score)(const float* q, const float* keys, std::int64_t q_pad, std::int64_t pairs, float* scores);
    float (*weigh)(float* p, std::uint32_t mask, const tile_factors& factors, running_softmax& state);
    void (*add)(const tile_values& tile, std::int64_t pairs);
};

CTXPAR_TARGET_AVX512 inline void score_avx512(const float* q, const float* keys, std::int64_t q_pad, std::int64_t pairs,
                                              float* scores) {
    score_pairs<16>(q, keys, q_pad, pairs, scores);
}
CTXPAR_TARGET_AVX512 inline float weigh_avx512(float* p, std::uint32_t mask, const tile_factors& factors,
                                               running_softmax& state) {
    return weigh_scores<16>(p, mask, factors, state);
}
CTXPAR_TARGET_AVX512 inline void add_avx512(const tile_values& tile, std::int64_t pairs) {
    add_values<16>(tile, pairs);
}
template <class T>
CTXPAR_TARGET_AVX512 void widen_avx512(const T* from, std::int64_t width, float* to) {
    widen_row<16>(from, width, to);
}

CTXPAR_TARGET_AVX2 inline void score_avx2(const float* q, const float* keys, std::int64_t q_pad, std::int64_t pairs,
                                          float* scores) {
    score_pairs<8>(q, keys, q_pad, pairs, scores);
}
CTXPAR_TARGET_AVX2 inline float weigh_avx2(float* p, std::uint32_t mask, const tile_factors& factors,
                                           running_softmax& state) {
    return weigh_scores<8>(p, mask, factors, state);
}
CTXPAR_TARGET_AVX2 inline void add_avx2(const tile_values& tile, std::int64_t pairs) {
    add_values<8>(tile, pairs);
}
template <class T>
CTXPAR_TARGET_AVX2 void widen_avx2(const T* from, std::int64_t width, float* to) {
    widen_row<8>(from, width, to);
}

inline void score_portable(const float* q, const float* keys, std::int64_t q_pad, std::int64_t pairs, float* scores) {
    score_pairs<4>(q, keys, q_pad, pairs, scores);
}
inline float weigh_portable(float* p, std::uint32_t mask, const tile_factors& factors, running_softmax& state) {
    return weigh_scores<4>(p, mask, factors, state);
}
inline void add_portable(const tile_values& tile, std::int64_t pairs) {
    add_values<4>(tile, pairs);
}
template <class T>
void widen_portable(const T* from, std::int64_t width, float* to) {
    widen_row<4>(from, width, to);
}

inline tile_kernels kernels_of(isa set) {
    if (set == isa::avx512) return {score_avx512, weigh_avx512, add_avx512};
    if (set == isa::avx2) return {score_avx2, weigh_avx2, add_avx2};
    return {score_portable, weigh_portable, add_portable};
}

// Widens a row of T to fp32, padded with zeros to a multiple of pad_floats.
template <class T>
using widen_function = void (*)(const T* from, std::int64_t width, float* to);

template <class T>
widen_function<T> widen_of(isa set) {
    if (set == isa::avx512) return widen_avx512<T>;
    if (set == isa::avx2) return widen_avx2<T>;
    return widen_portable<T>;
}

} // namespace ctxpar::inline v0_1::cpu
