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

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t stream_keys = 32;  // rows of a step
inline constexpr std::int64_t stream_pairs = 8;  // pairs that share the reading of a row
inline constexpr std::int64_t stream_width = 32; // widths are multiples of this

// Rows of a step, and those that are asked for meanwhile.
template <class T>
struct stream_rows {
    const T* const* rows;  // [stream_keys]; from `count` on any rows, whose scores mean nothing
    const T* const* ahead; // [ahead_count]
    std::int64_t count;
    std::int64_t ahead_count;
    std::int64_t width;
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

// Queries and outputs of a kernel's pairs lie [chunk][pair][2 x lanes], a chunk being the columns that two vectors
// hold, in the order in which rows of T are widened: column x of a chunk is its element
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

// Asks for the lines of the rows ahead one after the other, from the first to the last: the processor's own prefetching
// follows such a walk.
template <class T>
class line_walk {
public:
    CTXPAR_INLINE explicit line_walk(const stream_rows<T>& all)
        : next_row_(all.ahead), last_row_(all.ahead + all.ahead_count), bytes_(all.width * std::int64_t(sizeof(T))) {}

    CTXPAR_INLINE void ask_for_line() {
        if (left_ <= 0) {
            if (next_row_ == last_row_) return;
            line_ = reinterpret_cast<const char*>(*next_row_++);
            left_ = bytes_;
        }
        __builtin_prefetch(line_, 0, 2);
        line_ += 64;
        left_ -= 64;
    }
    // As many lines as have `bytes` bytes of a row, at least one.
    template <std::int64_t Bytes>
    CTXPAR_INLINE void ask_for() {
        for (std::int64_t b = 0; b < Bytes; b += 64) ask_for_line();
    }

private:
    const T* const* next_row_;
    const T* const* last_row_;
    const char* line_ = nullptr;
    std::int64_t bytes_;
    std::int64_t left_ = 0;
};

// All lanes are *from. g++ gathers several of these into one vector and takes that apart, unless it is told what to do.
template <int W>
CTXPAR_INLINE void repeat(const float* from, floats<W>& to) {
#if defined(__x86_64__) && !defined(__clang__)
    if constexpr (W == 16) {
        asm("vbroadcastss %1, %0" : "=v"(to) : "m"(*from));
        return;
    } else if constexpr (W == 8) {
        asm("vbroadcastss %1, %0" : "=x"(to) : "m"(*from));
        return;
    }
#endif
    fill<W>(*from, to);
}

// Scores that are summed at the same time.
template <int W>
inline constexpr int stream_sums = W == 4 ? 8 : W;

// scores[key][pair] of Pairs pairs; q is [chunk][pair][2 W]. Writes whole vectors.
template <int W, int Pairs, class T>
CTXPAR_INLINE void stream_scores(const stream_rows<T>& all, const float* q, float* scores) {
    constexpr int sums = stream_sums<W>;
    constexpr int keys = sums / Pairs;  // whose rows are read side by side
    constexpr std::int64_t piece = 128; // columns that a lane's share of is added up in one chain
    line_walk<T> lines(all);
    for (std::int64_t t = 0; t < all.count; t += keys) {
        floats<W> result[sums / W] = {};
        for (std::int64_t start = 0; start < all.width; start += piece) {
            floats<W> acc[sums] = {};
            const std::int64_t end = start + piece < all.width ? start + piece : all.width;
            for (std::int64_t d = start; d < end; d += 2 * W) {
                CTXPAR_UNROLL
                for (int k = 0; k < keys; ++k) {
                    floats<W> first;
                    floats<W> second;
                    lines.template ask_for<2 * W * sizeof(T)>();
                    widen_chunk<W>(all.rows[t + k] + d, first, second);
                    CTXPAR_UNROLL
                    for (int i = 0; i < Pairs; ++i) {
                        floats<W> query;
                        load<W>(q + d * Pairs + i * 2 * W, query);
                        acc[k * Pairs + i] += first * query;
                        load<W>(q + d * Pairs + i * 2 * W + W, query);
                        acc[k * Pairs + i] += second * query;
                    }
                }
            }
            CTXPAR_UNROLL
            for (int v = 0; v < sums / W; ++v) {
                floats<W> part[W];
                CTXPAR_UNROLL
                for (int j = 0; j < W; ++j) part[j] = acc[v * W + j];
                floats<W> sum;
                add_across<W>(part, sum);
                result[v] += sum;
            }
        }
        CTXPAR_UNROLL
        for (int v = 0; v < sums / W; ++v) store<W>(result[v], scores + t * Pairs + v * W);
    }
}

// Scores [key][pair] times `factor` become weights relative to the largest score of each pair's state, which they
// join; keep[pair] is what scales its output so far. `count` keys, a multiple of W / Pairs.
template <int W, int Pairs>
CTXPAR_INLINE void stream_weigh(float* p, std::int64_t count, float factor, stream_state& state, float* keep) {
    constexpr int wide = Pairs < W ? W : Pairs; // lanes that hold each pair at least once
    constexpr int parts = wide / W;
    floats<W> largest[parts];
    CTXPAR_UNROLL
    for (int x = 0; x < parts; ++x) fill<W>(-std::numeric_limits<float>::infinity(), largest[x]);
    for (std::int64_t at = 0; at < count * Pairs; at += wide) {
        CTXPAR_UNROLL
        for (int x = 0; x < parts; ++x) {
            floats<W> score;
            load<W>(p + at + x * W, score);
            score *= factor;
            store<W>(score, p + at + x * W);
            select<W>(score > largest[x], score, largest[x], largest[x]);
        }
    }
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
    floats<W> sum[parts] = {};
    CTXPAR_UNROLL
    for (int x = 0; x < parts; ++x) load<W>(lanes + x * W, reference[x]);
    for (std::int64_t at = 0; at < count * Pairs; at += wide) {
        CTXPAR_UNROLL
        for (int x = 0; x < parts; ++x) {
            floats<W> weight;
            load<W>(p + at + x * W, weight);
            weight -= reference[x];
            exp_of_negative<W>(weight);
            store<W>(weight, p + at + x * W);
            sum[x] += weight;
        }
    }
    CTXPAR_UNROLL
    for (int x = 0; x < parts; ++x) store<W>(sum[x], lanes + x * W);
    for (int i = 0; i < Pairs; ++i) {
        float total = lanes[i];
        for (int j = i + Pairs; j < wide; j += Pairs) total += lanes[j];
        state.sum[i] += total;
    }
}

// out[pair] = out[pair] * keep[pair] + sum over keys of p[key][pair] * value row: Chunks chunks of columns from d on,
// for Together pairs from `first` on.
template <int W, int Pairs, int Together, int Chunks, class T>
CTXPAR_INLINE void stream_value_chunks(const stream_rows<T>& all, const float* p, int first, const float* keep,
                                       float* out, std::int64_t d, line_walk<T>& lines) {
    floats<W> acc[Together][2 * Chunks] = {};
    const float* weights = p + first;
    for (std::int64_t t = 0; t < all.count; ++t, weights += Pairs) {
        floats<W> value[2 * Chunks];
        CTXPAR_UNROLL
        for (int c = 0; c < Chunks; ++c) {
            if (first == 0) lines.template ask_for<2 * W * sizeof(T)>();
            widen_chunk<W>(all.rows[t] + d + c * 2 * W, value[2 * c], value[2 * c + 1]);
        }
        CTXPAR_UNROLL
        for (int i = 0; i < Together; ++i) {
            floats<W> weight;
            repeat<W>(weights + i, weight);
            CTXPAR_UNROLL
            for (int c = 0; c < 2 * Chunks; ++c) acc[i][c] += value[c] * weight;
        }
    }
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
CTXPAR_INLINE void stream_values(const stream_rows<T>& all, const float* p, const float* keep, float* out) {
    constexpr int most = W == 16 ? 16 : 8; // sums in registers
    constexpr int together = Pairs < most / 2 ? Pairs : most / 2;
    constexpr int chunks = most / 2 / together;
    line_walk<T> lines(all);
    std::int64_t d = 0;
    for (; d + chunks * 2 * W <= all.width; d += chunks * 2 * W)
        for (int first = 0; first < Pairs; first += together)
            stream_value_chunks<W, Pairs, together, chunks>(all, p, first, keep, out, d, lines);
    if constexpr (chunks > 1) {
        for (; d < all.width; d += 2 * W) stream_value_chunks<W, Pairs, together, 1>(all, p, 0, keep, out, d, lines);
    }
}

// The kernels of one instruction set for rows of T, for 2, 4 and 8 pairs.
template <class T>
struct stream_kernels {
    using score_function = void (*)(const stream_rows<T>& keys, const float* q, float* scores);
    using weigh_function = void (*)(float* p, std::int64_t count, float factor, stream_state& state, float* keep);
    using add_function = void (*)(const stream_rows<T>& values, const float* p, const float* keep, float* out);

    int lanes;
    int sums; // scores are written this many at a time
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
    CTXPAR_TARGET_AVX512 static void score(const stream_rows<T>& keys, const float* q, float* scores) {
        stream_scores<16, Pairs>(keys, q, scores);
    }
    template <int Pairs>
    CTXPAR_TARGET_AVX512 static void weigh(float* p, std::int64_t count, float factor, stream_state& state,
                                           float* keep) {
        stream_weigh<16, Pairs>(p, count, factor, state, keep);
    }
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX512 static void add(const stream_rows<T>& values, const float* p, const float* keep, float* out) {
        stream_values<16, Pairs>(values, p, keep, out);
    }
};
struct stream_avx2 {
    static constexpr int lanes = 8;
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX2 static void score(const stream_rows<T>& keys, const float* q, float* scores) {
        stream_scores<8, Pairs>(keys, q, scores);
    }
    template <int Pairs>
    CTXPAR_TARGET_AVX2 static void weigh(float* p, std::int64_t count, float factor, stream_state& state, float* keep) {
        stream_weigh<8, Pairs>(p, count, factor, state, keep);
    }
    template <int Pairs, class T>
    CTXPAR_TARGET_AVX2 static void add(const stream_rows<T>& values, const float* p, const float* keep, float* out) {
        stream_values<8, Pairs>(values, p, keep, out);
    }
};
struct stream_portable {
    static constexpr int lanes = 4;
    template <int Pairs, class T>
    static void score(const stream_rows<T>& keys, const float* q, float* scores) {
        stream_scores<4, Pairs>(keys, q, scores);
    }
    template <int Pairs>
    static void weigh(float* p, std::int64_t count, float factor, stream_state& state, float* keep) {
        stream_weigh<4, Pairs>(p, count, factor, state, keep);
    }
    template <int Pairs, class T>
    static void add(const stream_rows<T>& values, const float* p, const float* keep, float* out) {
        stream_values<4, Pairs>(values, p, keep, out);
    }
};

template <class T, class Body>
stream_kernels<T> stream_kernels_in() {
    return {Body::lanes,
            stream_sums<Body::lanes>,
            {Body::template score<2, T>, Body::template score<4, T>, Body::template score<8, T>},
            {Body::template weigh<2>, Body::template weigh<4>, Body::template weigh<8>},
            {Body::template add<2, T>, Body::template add<4, T>, Body::template add<8, T>}};
}

template <class T>
stream_kernels<T> stream_kernels_of(isa set) {
    if (set == isa::avx512) return stream_kernels_in<T, stream_avx512>();
    if (set == isa::avx2) return stream_kernels_in<T, stream_avx2>();
    return stream_kernels_in<T, stream_portable>();
}

} // namespace ctxpar::inline v0_1::cpu
