// The arithmetic of attention for few query vectors over keys read where they lie, once for each instruction set.
//
// With a handful of (row, head) pairs to a KV head, as in decode, attention is as fast as memory delivers keys. So rows
// are not widened into a buffer but in registers, once for up to 8 pairs, and the rows that come next are asked for
// while these are worked on. These kernels see up to 32 rows by pointer, whatever page they lie in; widths are
// multiples of 32.
//
// Scores and weights lie [key][pair], which is how they leave the sums over the width: maxima and sums over keys are
// then element by element. Widening splits the two bf16 of a word, so columns are kept in that order
// (chunk_place) until the very end.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/rows_ahead.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t stream_keys = 32;  // rows of a step
inline constexpr std::int64_t stream_pairs = 8;  // pairs that share the reading of a row
inline constexpr std::int64_t stream_width = 32; // widths are multiples of this

// Rows of a step: `rows` are those of some KV head, `offset` elements on are those of the step's.
template <class T>
struct stream_rows {
    const T* const* rows; // [stream_keys]; from `count` on any rows, whose scores mean nothing
    std::int64_t offset;
    std::int64_t count;
    std::int64_t width;

    CTXPAR_INLINE const T* row(std::int64_t t) const { return rows[t] + offset; }
};

// What a softmax over keys has seen of each pair.
struct stream_state {
    float max[stream_pairs];
    float sum[stream_pairs];

    static stream_state none() {
        stream_state state{};
        for (float& max : state.max) max = -float_infinity;
        return state;
    }
};

// Queries and outputs of a kernel's pairs lie [chunk][pair][2 x lanes], a chunk being the columns that are widened
// together, in that order: column x of a chunk is its element
template <class T>
constexpr std::int64_t chunk_place(std::int64_t lanes, std::int64_t x) {
    return std::is_same_v<T, bf16> ? x / 2 + x % 2 * lanes : x;
}

// One chunk of a row: 2 W columns.
template <int W, class T>
CTXPAR_INLINE void widen_chunk(const T* from, floats<W>& first, floats<W>& second) {
    if constexpr (std::is_same_v<T, bf16>) {
        words<W> both;
        std::memcpy(&both, from, sizeof(both));
        const words<W> low = both << 16;
        const words<W> high = both & 0xffff0000U;
        copy_bits(low, first);
        copy_bits(high, second);
    } else {
        widen<W>(from, first);
        widen<W>(from + W, second);
    }
}

// One chunk of W columns of two rows, of which each has half of the lanes.
template <int W, class T>
CTXPAR_INLINE void widen_two(const T* a, const T* b, floats<W>& first, floats<W>& second) {
    if constexpr (std::is_same_v<T, bf16>) {
        words<W> both;
        load_two<W>(a, b, both);
        const words<W> low = both << 16;
        const words<W> high = both & 0xffff0000U;
        copy_bits(low, first);
        copy_bits(high, second);
    } else {
        floats<W> row_a;
        floats<W> row_b;
        widen<W>(a, row_a);
        widen<W>(b, row_b);
        join_first_halves<W>(row_a, row_b, first);
        join_second_halves<W>(row_a, row_b, second);
    }
}

// How scores of W lanes are summed.
template <int W, int Pairs>
struct score_shape {
    static constexpr int rows = W == 4 ? 1 : 2;      // that share a vector: the fewer lanes are added up in the end
    static constexpr int lanes = W / rows;           // of a row
    static constexpr int sums = W == 16 ? 16 : 8;    // vectors that are summed at the same time
    static constexpr int keys = sums * rows / Pairs; // whose rows are read side by side
    static constexpr int vectors = keys / rows;      // that hold a column of them
    static constexpr int columns = 2 * lanes;        // of a chunk
    static constexpr int at_once = W == 16 ? 4 : 2;  // vectors of rows in registers
    static constexpr int block = vectors < at_once ? vectors : at_once;
    static constexpr int apart = lanes / Pairs > 1 ? lanes / Pairs : 1; // keys between the two rows of a vector

    // The key that is row r of vector v: so that scores leave the sums in the order in which they are stored.
    static constexpr int key(int v, int r) { return rows == 1 ? v : v / apart * 2 * apart + v % apart + r * apart; }
};

// The sums of one group of accumulators, one for each lane, join the results that have the same place.
template <int W, int Pairs>
CTXPAR_INLINE void finish_scores(const floats<W>* acc, floats<W>& result) {
    using shape = score_shape<W, Pairs>;
    floats<W> part[shape::lanes];
    CTXPAR_UNROLL
    for (int j = 0; j < shape::lanes; ++j) part[j] = acc[j];
    floats<W> sum;
    if constexpr (shape::rows == 1)
        add_across<W>(part, sum);
    else
        add_across_halves<W>(part, sum);
    result += sum;
}

// acc += the products of one chunk of columns, from d on, of `block` vectors of rows from vector b of key t on.
template <int W, int Pairs, class T>
CTXPAR_INLINE void add_products(const stream_rows<T>& all, std::int64_t t, int b, std::int64_t d, const float* q,
                                floats<W>* acc) {
    using shape = score_shape<W, Pairs>;
    floats<W> first[shape::block];
    floats<W> second[shape::block];
    CTXPAR_UNROLL
    for (int v = 0; v < shape::block; ++v) {
        if constexpr (shape::rows == 1)
            widen_chunk<W>(all.row(t + b + v) + d, first[v], second[v]);
        else
            widen_two<W>(all.row(t + shape::key(b + v, 0)) + d, all.row(t + shape::key(b + v, 1)) + d, first[v],
                         second[v]);
    }
    CTXPAR_UNROLL
    for (int i = 0; i < Pairs; ++i) {
        floats<W> even;
        floats<W> odd;
        if constexpr (shape::rows == 1) {
            load<W>(q + i * shape::columns, even);
            load<W>(q + i * shape::columns + W, odd);
        } else {
            repeat_half<W>(q + i * shape::columns, even);
            repeat_half<W>(q + i * shape::columns + shape::lanes, odd);
        }
        CTXPAR_UNROLL
        for (int v = 0; v < shape::block; ++v) {
            floats<W>& sum = acc[(b + v) * Pairs + i];
            sum += first[v] * even;
            sum += second[v] * odd;
        }
    }
}

// scores[key][pair] of Pairs pairs; q is [chunk][pair][columns]. Writes shape::keys keys at a time.
template <int W, int Pairs, class T>
CTXPAR_INLINE void stream_scores(const stream_rows<T>& all, const float* q, float* scores, stream_ahead& ahead) {
    using shape = score_shape<W, Pairs>;
    constexpr int groups = shape::sums / shape::lanes;
    constexpr std::int64_t piece = 128; // columns that a lane's share of is added up in one chain
    for (std::int64_t t = 0; t < all.count; t += shape::keys) {
        floats<W> result[groups] = {};
        for (std::int64_t start = 0; start < all.width; start += piece) {
            floats<W> acc[shape::sums] = {};
            const std::int64_t end = start + piece < all.width ? start + piece : all.width;
            for (std::int64_t d = start; d < end; d += stream_width) {
                ahead.read(shape::keys * stream_width * std::int64_t(sizeof(T)));
                CTXPAR_UNROLL
                for (int c = 0; c < stream_width; c += shape::columns) {
                    CTXPAR_UNROLL
                    for (int b = 0; b < shape::vectors; b += shape::block)
                        add_products<W, Pairs>(all, t, b, d + c, q + (d + c) * Pairs, acc);
                }
            }
            CTXPAR_UNROLL
            for (int g = 0; g < groups; ++g) finish_scores<W, Pairs>(acc + g * shape::lanes, result[g]);
        }
        CTXPAR_UNROLL
        for (int g = 0; g < groups; ++g) {
            if constexpr (shape::rows == 1 || Pairs <= shape::lanes) {
                store<W>(result[g], scores + t * Pairs + g * W);
            } else {
                float both[W];
                store<W>(result[g], both);
                std::memcpy(scores + t * Pairs + g * shape::lanes, both, sizeof(both) / 2);
                std::memcpy(scores + (t + 1) * Pairs + g * shape::lanes, both + shape::lanes, sizeof(both) / 2);
            }
        }
    }
}

// p[at] *= factor, and the largest of them in each lane of Vectors vectors that are taken in turn. NaN is passed over.
template <int W, int Vectors>
CTXPAR_INLINE void scale_scores(float* p, std::int64_t end, float factor, floats<W>* largest) {
    for (std::int64_t at = 0; at < end; at += Vectors * W) {
        CTXPAR_UNROLL
        for (int x = 0; x < Vectors; ++x) {
            floats<W> score;
            load<W>(p + at + x * W, score);
            score *= factor;
            store<W>(score, p + at + x * W);
            select<W>(score > largest[x], score, largest[x], largest[x]);
        }
    }
}

// p[at] = exp(p[at] - reference), and their sums in each lane of Vectors vectors that are taken in turn; there are
// Parts vectors of references.
template <int W, int Vectors, int Parts>
CTXPAR_INLINE void weigh_scores(float* p, std::int64_t end, const floats<W> (&reference)[Parts], floats<W>* sum) {
    for (std::int64_t at = 0; at < end; at += Vectors * W) {
        CTXPAR_UNROLL
        for (int x = 0; x < Vectors; ++x) {
            floats<W> weight;
            load<W>(p + at + x * W, weight);
            weight -= reference[x % Parts];
            exp_up_to_8<W>(weight);
            store<W>(weight, p + at + x * W);
            sum[x] += weight;
        }
    }
}

// Scores [key][pair] times `factor` become weights relative to the largest score of each pair's state, which they
// join; keep[pair] is what scales its output so far. `count` keys, a multiple of W / Pairs.
template <int W, int Pairs>
CTXPAR_INLINE void stream_weigh(float* p, std::int64_t count, float factor, stream_state& state, float* keep) {
    constexpr int wide = Pairs < W ? W : Pairs; // lanes that hold each pair at least once
    constexpr int parts = wide / W;
    constexpr int vectors = 4 * parts; // so many at a time do not wait for each other
    const std::int64_t end = count * Pairs;
    const bool in_fours = end % (vectors * W) == 0;
    floats<W> largest[vectors];
    CTXPAR_UNROLL
    for (int x = 0; x < vectors; ++x) fill<W>(-std::numeric_limits<float>::infinity(), largest[x]);
    if (in_fours)
        scale_scores<W, vectors>(p, end, factor, largest);
    else
        scale_scores<W, parts>(p, end, factor, largest);
    CTXPAR_UNROLL
    for (int x = parts; x < vectors; ++x)
        select<W>(largest[x] > largest[x % parts], largest[x], largest[x % parts], largest[x % parts]);
    float lanes[wide];
    CTXPAR_UNROLL
    for (int x = 0; x < parts; ++x) store<W>(largest[x], lanes + x * W);
    for (int i = 0; i < Pairs; ++i) {
        float most = lanes[i];
        for (int j = i + Pairs; j < wide; j += Pairs) most = lanes[j] > most ? lanes[j] : most;
        keep[i] = 1.0F;
        if (most > state.max[i]) {
            keep[i] = is_minus_infinity(state.max[i]) ? 0.0F : std::exp(state.max[i] - most);
            state.max[i] = most;
            state.sum[i] *= keep[i];
        }
        const float reference = is_minus_infinity(state.max[i]) ? 0.0F : state.max[i];
        for (int j = i; j < wide; j += Pairs) lanes[j] = reference;
    }
    floats<W> reference[parts];
    floats<W> sum[vectors] = {};
    CTXPAR_UNROLL
    for (int x = 0; x < parts; ++x) load<W>(lanes + x * W, reference[x]);
    if (in_fours)
        weigh_scores<W, vectors>(p, end, reference, sum);
    else
        weigh_scores<W, parts>(p, end, reference, sum);
    CTXPAR_UNROLL
    for (int x = parts; x < vectors; ++x) sum[x % parts] += sum[x];
    CTXPAR_UNROLL
    for (int x = 0; x < parts; ++x) store<W>(sum[x], lanes + x * W);
    for (int i = 0; i < Pairs; ++i) {
        float total = lanes[i];
        for (int j = i + Pairs; j < wide; j += Pairs) total += lanes[j];
        state.sum[i] += total;
    }
}

// acc[pair][vector] += p[pair] * Chunks chunks of columns of a value row, for Together pairs.
template <int W, int Together, int Chunks, class T>
CTXPAR_INLINE void add_value(const T* row, const float* p, floats<W> (&acc)[Together][2 * Chunks]) {
    floats<W> value[2 * Chunks];
    CTXPAR_UNROLL
    for (int c = 0; c < Chunks; ++c) widen_chunk<W>(row + c * 2 * W, value[2 * c], value[2 * c + 1]);
    CTXPAR_UNROLL
    for (int i = 0; i < Together; ++i) {
        floats<W> weight;
        repeat<W>(p + i, weight);
        CTXPAR_UNROLL
        for (int c = 0; c < 2 * Chunks; ++c) acc[i][c] += value[c] * weight;
    }
}

// out[pair] = out[pair] * keep[pair] + sum over keys of p[key][pair] * value row: Chunks chunks of columns from d on,
// for Together pairs from `first` on.
template <int W, int Pairs, int Together, int Chunks, class T>
CTXPAR_INLINE void stream_value_chunks(const stream_rows<T>& all, const float* p, int first, const float* keep,
                                       float* out, std::int64_t d, stream_ahead& ahead) {
    constexpr int side = 4; // keys between two looks ahead
    floats<W> acc[Together][2 * Chunks] = {};
    const float* weights = p + first;
    std::int64_t t = 0;
    for (; t + side <= all.count; t += side, weights += side * Pairs) {
        if (first == 0) ahead.read(side * Chunks * 2 * W * std::int64_t(sizeof(T)));
        CTXPAR_UNROLL
        for (int k = 0; k < side; ++k) add_value<W, Together, Chunks>(all.row(t + k) + d, weights + k * Pairs, acc);
    }
    for (; t < all.count; ++t, weights += Pairs) add_value<W, Together, Chunks>(all.row(t) + d, weights, acc);
    CTXPAR_UNROLL
    for (int i = 0; i < Together; ++i) {
        CTXPAR_UNROLL
        for (int c = 0; c < 2 * Chunks; ++c) {
            float* const to = out + d * Pairs + (c / 2 * Pairs + first + i) * 2 * W + c % 2 * W;
            floats<W> sum;
            load<W>(to, sum);
            sum = sum * keep[first + i] + acc[i][c];
            store<W>(sum, to);
        }
    }
}

template <int W, int Pairs, class T>
CTXPAR_INLINE void stream_values(const stream_rows<T>& all, const float* p, const float* keep, float* out,
                                 stream_ahead& ahead) {
    constexpr int most = W == 16 ? 16 : 8; // sums in registers
    constexpr int together = Pairs < most / 2 ? Pairs : most / 2;
    constexpr int chunks = most / 2 / together;
    std::int64_t d = 0;
    for (; d + chunks * 2 * W <= all.width; d += chunks * 2 * W)
        for (int first = 0; first < Pairs; first += together)
            stream_value_chunks<W, Pairs, together, chunks>(all, p, first, keep, out, d, ahead);
    if constexpr (chunks > 1) {
        for (; d < all.width; d += 2 * W) stream_value_chunks<W, Pairs, together, 1>(all, p, 0, keep, out, d, ahead);
    }
}

// The kernels of one instruction set for rows of T, for 2, 4 and 8 pairs.
template <class T>
struct stream_kernels {
    using score_function = void (*)(const stream_rows<T>& keys, const float* q, float* scores, stream_ahead& ahead);
    using weigh_function = void (*)(float* p, std::int64_t count, float factor, stream_state& state, float* keep);
    using add_function = void (*)(const stream_rows<T>& values, const float* p, const float* keep, float* out,
                                  stream_ahead& ahead);

    int query_lanes; // of chunks of queries
    int lanes;       // of chunks of outputs
    int sums;        // scores are written this many at a time
    score_function scores[3];
    weigh_function weights[3];
    add_function values[3];

    static constexpr int place(std::int64_t pairs) { return pairs == 2 ? 0 : (pairs == 4 ? 1 : 2); }
    score_function score(std::int64_t pairs) const { return scores[place(pairs)]; }
    weigh_function weigh(std::int64_t pairs) const { return weights[place(pairs)]; }
    add_function add(std::int64_t pairs) const { return values[place(pairs)]; }
};

// The bodies for each instruction set.
struct stream_avx512 {
    static constexpr int lanes = 16;
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX512 static void score(const stream_rows<T>& keys, const float* q, float* scores,
                                           stream_ahead& ahead) {
        stream_scores<16, Pairs>(keys, q, scores, ahead);
    }
    template <int Pairs>
    CTXPAR_TARGET_AVX512 static void weigh(float* p, std::int64_t count, float factor, stream_state& state,
                                           float* keep) {
        stream_weigh<16, Pairs>(p, count, factor, state, keep);
    }
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX512 static void add(const stream_rows<T>& values, const float* p, const float* keep, float* out,
                                         stream_ahead& ahead) {
        stream_values<16, Pairs>(values, p, keep, out, ahead);
    }
};
struct stream_avx2 {
    static constexpr int lanes = 8;
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX2 static void score(const stream_rows<T>& keys, const float* q, float* scores,
                                         stream_ahead& ahead) {
        stream_scores<8, Pairs>(keys, q, scores, ahead);
    }
    template <int Pairs>
    CTXPAR_TARGET_AVX2 static void weigh(float* p, std::int64_t count, float factor, stream_state& state, float* keep) {
        stream_weigh<8, Pairs>(p, count, factor, state, keep);
    }
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX2 static void add(const stream_rows<T>& values, const float* p, const float* keep, float* out,
                                       stream_ahead& ahead) {
        stream_values<8, Pairs>(values, p, keep, out, ahead);
    }
};
struct stream_portable {
    static constexpr int lanes = 4;
    template <int Pairs, class T>
    static void score(const stream_rows<T>& keys, const float* q, float* scores, stream_ahead& ahead) {
        stream_scores<4, Pairs>(keys, q, scores, ahead);
    }
    template <int Pairs>
    static void weigh(float* p, std::int64_t count, float factor, stream_state& state, float* keep) {
        stream_weigh<4, Pairs>(p, count, factor, state, keep);
    }
    template <int Pairs, class T>
    static void add(const stream_rows<T>& values, const float* p, const float* keep, float* out, stream_ahead& ahead) {
        stream_values<4, Pairs>(values, p, keep, out, ahead);
    }
};

template <class T, class Body>
stream_kernels<T> stream_kernels_in() {
    using shape = score_shape<Body::lanes, stream_pairs>;
    return {shape::lanes,
            Body::lanes,
            shape::keys * int(stream_pairs),
            {Body::template score<2, T>, Body::template score<4, T>, Body::template score<8, T>},
            {Body::template weigh<2>, Body::template weigh<4>, Body::template weigh<8>},
            {Body::template add<2, T>, Body::template add<4, T>, Body::template add<8, T>}};
}

template <class T>
stream_kernels<T> stream_kernels_of(isa set) {
    if (set >= isa::avx512) return stream_kernels_in<T, stream_avx512>();
    if (set == isa::avx2) return stream_kernels_in<T, stream_avx2>();
    return stream_kernels_in<T, stream_portable>();
}

} // namespace ctxpar::inline v0_1::cpu
