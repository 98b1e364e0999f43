// Weighted sums of vectors, for merges, once for each instruction set.
//
// A sum is made in fp32, vector by vector in their order, over as many columns as fit in registers. What comes of it
// depends on the instruction set (fused or not) and on nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cpu {

// Rounds to nearest even, as small_float does.
template <int W>
CTXPAR_INLINE void narrow(const floats<W>& from, float* to) {
    store<W>(from, to);
}
template <int W>
CTXPAR_INLINE void store_halves(const words<W>& bits, void* to) {
    const auto halves = __builtin_convertvector(bits, typename lane_types<W>::halves);
    std::memcpy(to, &halves, sizeof(halves));
}
// mask ? a : b for words.
template <int W>
CTXPAR_INLINE void select_words(const ints<W>& mask, const words<W>& a, const words<W>& b, words<W>& to) {
    words<W> bits;
    copy_bits(mask, bits);
    to = (a & bits) | (b & ~bits);
}
template <int W>
CTXPAR_INLINE void narrow(const floats<W>& from, bf16* to) {
    words<W> bits;
    copy_bits(from, bits);
    const words<W> rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    words<W> result;
    select_words<W>((bits & 0x7fffffffU) > 0x7f800000U, bits >> 16 | 0x40U, rounded, result);
    store_halves<W>(result, to);
}
// Below 2^-14 an addition of 1/2 leaves the rounded subnormal in the lowest bits.
template <int W>
CTXPAR_INLINE void narrow(const floats<W>& from, f16* to) {
    words<W> bits;
    copy_bits(from, bits);
    const words<W> sign = bits >> 16 & 0x8000U;
    const words<W> size = bits & 0x7fffffffU;
    words<W> result = (size + 0xfffU + (size >> 13 & 1U) - (112U << 23)) >> 13;
    floats<W> small;
    copy_bits(size, small);
    small += 0.5F;
    words<W> small_bits;
    copy_bits(small, small_bits);
    select_words<W>(size < 0x38800000U, small_bits - 0x3f000000U, result, result);
    select_words<W>(size >= 0x477ff000U, words<W>{} + 0x7c00U, result, result); // rounds to infinity from 65520 on
    select_words<W>(size > 0x7f800000U, (size >> 13 & 0x3ffU) | 0x7e00U, result, result);
    store_halves<W>(result | sign, to);
}

// Asks for what lies some lines behind the next `Bytes` of every vector, which is mostly the next vectors: all parts
// are walked along side by side, too slowly for the processor to run ahead by itself.
template <int Bytes, class P>
CTXPAR_INLINE void ask_ahead(const P* const* parts, std::int64_t count, std::int64_t d) {
    constexpr std::int64_t distance = 1024;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto at = reinterpret_cast<std::uintptr_t>(parts[i] + d) + distance; // may be past the end: no pointer
        CTXPAR_UNROLL
        for (int x = 0; x < Bytes; x += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + x), 0, 2);
    }
}

// to = sum over i of weights[i] * parts[i], `count` >= 1 of them. The last columns, fewer than a vector, are made in
// full in a buffer.
template <int W, class P, class Out>
CTXPAR_INLINE void combine_vectors(const P* const* parts, const float* weights, std::int64_t count, std::int64_t width,
                                   Out* to) {
    constexpr int at_once = 4;
    floats<W> sum[at_once];
    floats<W> value;
    std::int64_t d = 0;
    for (; d + at_once * W <= width; d += at_once * W) {
        ask_ahead<at_once * W* int(sizeof(P))>(parts, count, d);
        CTXPAR_UNROLL
        for (int x = 0; x < at_once; ++x) {
            widen<W>(parts[0] + d + x * W, value);
            sum[x] = value * weights[0];
        }
        for (std::int64_t i = 1; i < count; ++i) {
            CTXPAR_UNROLL
            for (int x = 0; x < at_once; ++x) {
                widen<W>(parts[i] + d + x * W, value);
                sum[x] += value * weights[i];
            }
        }
        CTXPAR_UNROLL
        for (int x = 0; x < at_once; ++x) narrow<W>(sum[x], to + d + x * W);
    }
    for (; d < width; d += W) {
        const std::int64_t columns = std::min<std::int64_t>(W, width - d);
        floats<W> total{};
        for (std::int64_t i = 0; i < count; ++i) {
            P last[W] = {};
            std::memcpy(static_cast<void*>(last), parts[i] + d, static_cast<std::size_t>(columns) * sizeof(P));
            widen<W>(static_cast<const P*>(last), value);
            total = i == 0 ? value * weights[0] : total + value * weights[i];
        }
        Out result[W];
        narrow<W>(total, result);
        std::memcpy(static_cast<void*>(to + d), result, static_cast<std::size_t>(columns) * sizeof(Out));
    }
}

template <class P, class Out>
using combine_function = void (*)(const P* const* parts, const float* weights, std::int64_t count, std::int64_t width,
                                  Out* to);

template <class P, class Out>
CTXPAR_TARGET_AVX512 void combine_avx512(const P* const* parts, const float* weights, std::int64_t count,
                                         std::int64_t width, Out* to) {
    combine_vectors<16>(parts, weights, count, width, to);
}
template <class P, class Out>
CTXPAR_TARGET_AVX2 void combine_avx2(const P* const* parts, const float* weights, std::int64_t count,
                                     std::int64_t width, Out* to) {
    combine_vectors<8>(parts, weights, count, width, to);
}
template <class P, class Out>
void combine_portable(const P* const* parts, const float* weights, std::int64_t count, std::int64_t width, Out* to) {
    combine_vectors<4>(parts, weights, count, width, to);
}

template <class P, class Out>
combine_function<P, Out> combine_of(isa set) {
    if (set >= isa::avx512) return combine_avx512<P, Out>;
    if (set == isa::avx2) return combine_avx2<P, Out>;
    return combine_portable<P, Out>;
}

} // namespace ctxpar::inline v0_1::cpu
