// Sixteen fp32 lanes, in the compilers' portable vector extension: the same source is AVX-512, AVX2, SSE2 or NEON code.
//
// Vectors are passed by reference only, and every function is inlined into the body that was compiled for an
// instruction set, so no vector ever crosses a function boundary (its ABI would depend on the instruction set).
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include <ctxpar/core/numeric.hpp>

#define CTXPAR_INLINE [[gnu::always_inline]] inline

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t lanes = 16;

using float_lanes = float __attribute__((vector_size(64)));
using int_lanes = std::int32_t __attribute__((vector_size(64)));
using uint_lanes = std::uint32_t __attribute__((vector_size(64)));
using half_lanes = std::uint16_t __attribute__((vector_size(32)));
using byte_lanes = std::uint8_t __attribute__((vector_size(16)));

CTXPAR_INLINE void load(const float* from, float_lanes& to) {
    std::memcpy(&to, from, sizeof(to));
}
CTXPAR_INLINE void store(const float_lanes& from, float* to) {
    std::memcpy(to, &from, sizeof(from));
}
CTXPAR_INLINE void fill(float value, float_lanes& to) {
    to = float_lanes{} + value;
}

// mask ? a : b, lane by lane; mask lanes are 0 or -1.
CTXPAR_INLINE void select(const int_lanes& mask, const float_lanes& a, const float_lanes& b, float_lanes& to) {
    int_lanes a_bits;
    int_lanes b_bits;
    std::memcpy(&a_bits, &a, sizeof(a));
    std::memcpy(&b_bits, &b, sizeof(b));
    const int_lanes bits = (a_bits & mask) | (b_bits & ~mask);
    std::memcpy(&to, &bits, sizeof(bits));
}

// Reading storage types. f16, e4m3 and e5m2 place exponent and mantissa at float's position and correct the bias by an
// exact multiplication; the largest exponent is put back for NaN and infinity.
CTXPAR_INLINE void widen(const float* from, float_lanes& to) {
    load(from, to);
}
CTXPAR_INLINE void widen(const bf16* from, float_lanes& to) {
    half_lanes raw;
    std::memcpy(&raw, from, sizeof(raw));
    const uint_lanes bits = __builtin_convertvector(raw, uint_lanes) << 16;
    std::memcpy(&to, &bits, sizeof(bits));
}
CTXPAR_INLINE void widen_f16_bits(const uint_lanes& raw, float_lanes& to) {
    const uint_lanes magnitude = (raw & 0x7fffU) << 13;
    float_lanes value;
    std::memcpy(&value, &magnitude, sizeof(value));
    value *= 0x1p112F;
    uint_lanes bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint_lanes special =
        reinterpret_cast<const uint_lanes&>(static_cast<const int_lanes&>((raw & 0x7c00U) == 0x7c00U));
    bits |= (special & 0x7f800000U) | ((raw & 0x8000U) << 16);
    std::memcpy(&to, &bits, sizeof(bits));
}
CTXPAR_INLINE void widen(const f16* from, float_lanes& to) {
    half_lanes raw;
    std::memcpy(&raw, from, sizeof(raw));
    widen_f16_bits(__builtin_convertvector(raw, uint_lanes), to);
}
CTXPAR_INLINE void widen(const fp8_e5m2* from, float_lanes& to) {
    byte_lanes raw;
    std::memcpy(&raw, from, sizeof(raw));
    widen_f16_bits(__builtin_convertvector(raw, uint_lanes) << 8, to);
}
CTXPAR_INLINE void widen(const fp8_e4m3* from, float_lanes& to) {
    byte_lanes bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    const uint_lanes raw = __builtin_convertvector(bytes, uint_lanes);
    const uint_lanes magnitude = (raw & 0x7fU) << 20;
    float_lanes value;
    std::memcpy(&value, &magnitude, sizeof(value));
    value *= 0x1p120F;
    uint_lanes bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint_lanes special =
        reinterpret_cast<const uint_lanes&>(static_cast<const int_lanes&>((raw & 0x7fU) == 0x7fU));
    bits |= (special & 0x7fc00000U) | ((raw & 0x80U) << 24);
    std::memcpy(&to, &bits, sizeof(bits));
}

// A row of `width` elements as floats, followed by zeros up to the next multiple of 16.
template <class T>
CTXPAR_INLINE void widen_row(const T* from, std::int64_t width, float* to) {
    float_lanes value;
    std::int64_t i = 0;
    for (; i + lanes <= width; i += lanes) {
        widen(from + i, value);
        store(value, to + i);
    }
    if (i < width) {
        T last[lanes] = {};
        std::memcpy(last, from + i, static_cast<std::size_t>(width - i) * sizeof(T));
        widen(static_cast<const T*>(last), value);
        store(value, to + i);
    }
}

// Sixteen vectors to one: lane i of `sums` is the sum of the lanes of acc[i], added as a tree.
CTXPAR_INLINE void add_across(float_lanes (&acc)[16], float_lanes& sums) {
    for (int count = 16; count > 1; count /= 2) {
        for (int i = 0; i < count / 2; ++i) {
            const float_lanes& a = acc[2 * i];
            const float_lanes& b = acc[2 * i + 1];
            const float_lanes even =
                __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            const float_lanes odd =
                __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            acc[i] = even + odd;
        }
    }
    sums = acc[0];
}

CTXPAR_INLINE float sum_of(const float_lanes& value) {
    float_lanes v = value;
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return v[0] + v[1];
}

// The largest lane; NaN lanes are passed over.
CTXPAR_INLINE float max_of(const float_lanes& value) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < 16; ++i) largest = value[i] > largest ? value[i] : largest;
    return largest;
}

// e^x for x <= 0, to within 2 ulp; 0 below -86, NaN for NaN. Two-step reduction by ln 2 and a polynomial of degree 6.
CTXPAR_INLINE void exp_of_negative(float_lanes& x) {
    float_lanes zero{};
    const int_lanes tiny = x < -86.0F;
    float_lanes safe;
    select(tiny, zero, x, safe);
    const int_lanes n = __builtin_convertvector(safe * 1.44269504F - 0.5F, int_lanes); // rounds to nearest, as x <= 0
    const float_lanes steps = __builtin_convertvector(n, float_lanes);
    float_lanes r = safe - steps * 0.693359375F;
    r = r - steps * -2.12194440e-4F;
    float_lanes p = r * 1.9875691500e-4F + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * (r * r) + r + 1.0F;
    int_lanes bits;
    std::memcpy(&bits, &p, sizeof(bits));
    bits += n << 23;
    std::memcpy(&p, &bits, sizeof(bits));
    select(tiny, zero, p, x);
}

} // namespace ctxpar::inline v0_1::cpu
