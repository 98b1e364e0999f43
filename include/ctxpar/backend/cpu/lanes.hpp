// Vectors of fp32 lanes in the compilers' portable vector extension: the same source is AVX-512 code with 16 lanes,
// AVX2 code with 8, SSE2 or NEON code with 4.
//
// Vectors are passed by reference only, and every function is inlined into the body that was compiled for an
// instruction set, so no vector ever crosses a function boundary (its ABI would depend on the instruction set).
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include <ctxpar/core/numeric.hpp>

#define CTXPAR_INLINE [[gnu::always_inline]] inline

// Unrolls the loop that follows. The front end of a CUDA compiler does not know the pragma; it is about speed alone.
#if defined(__CUDACC__)
#define CTXPAR_UNROLL
#else
#define CTXPAR_UNROLL _Pragma("GCC unroll 16")
#endif

namespace ctxpar::inline v0_1::cpu {

// Widths in memory are padded to multiples of this, which every vector length divides.
inline constexpr std::int64_t pad_floats = 16;

// The vector types of W lanes. Written out, because g++ drops a vector size that depends on a template argument.
template <int W>
struct lane_types;
template <>
struct lane_types<16> {
    using floats = float __attribute__((vector_size(64)));
    using ints = std::int32_t __attribute__((vector_size(64)));
    using words = std::uint32_t __attribute__((vector_size(64)));
    using halves = std::uint16_t __attribute__((vector_size(32)));
    using bytes = std::uint8_t __attribute__((vector_size(16)));
};
template <>
struct lane_types<8> {
    using floats = float __attribute__((vector_size(32)));
    using ints = std::int32_t __attribute__((vector_size(32)));
    using words = std::uint32_t __attribute__((vector_size(32)));
    using halves = std::uint16_t __attribute__((vector_size(16)));
    using bytes = std::uint8_t __attribute__((vector_size(8)));
};
template <>
struct lane_types<4> {
    using floats = float __attribute__((vector_size(16)));
    using ints = std::int32_t __attribute__((vector_size(16)));
    using words = std::uint32_t __attribute__((vector_size(16)));
    using halves = std::uint16_t __attribute__((vector_size(8)));
    using bytes = std::uint8_t __attribute__((vector_size(4)));
};
template <int W>
using floats = typename lane_types<W>::floats;
template <int W>
using ints = typename lane_types<W>::ints;
template <int W>
using words = typename lane_types<W>::words;

template <class To, class From>
CTXPAR_INLINE void copy_bits(const From& from, To& to) {
    static_assert(sizeof(To) == sizeof(From));
    std::memcpy(&to, &from, sizeof(to));
}

template <int W>
CTXPAR_INLINE void load(const float* from, floats<W>& to) {
    std::memcpy(&to, from, sizeof(to));
}
template <int W>
CTXPAR_INLINE void store(const floats<W>& from, float* to) {
    std::memcpy(to, &from, sizeof(from));
}
template <int W>
CTXPAR_INLINE void fill(float value, floats<W>& to) {
    to = value - floats<W>{}; // a sum would not be folded: -0 + 0 is 0
}

// mask ? a : b, lane by lane; mask lanes are 0 or -1.
template <int W>
CTXPAR_INLINE void select(const ints<W>& mask, const floats<W>& a, const floats<W>& b, floats<W>& to) {
    ints<W> a_bits;
    ints<W> b_bits;
    copy_bits(a, a_bits);
    copy_bits(b, b_bits);
    const ints<W> bits = (a_bits & mask) | (b_bits & ~mask);
    copy_bits(bits, to);
}

// Reading storage types.
template <int W>
CTXPAR_INLINE void widen(const float* from, floats<W>& to) {
    load<W>(from, to);
}
template <int W>
CTXPAR_INLINE void widen(const bf16* from, floats<W>& to) {
    typename lane_types<W>::halves raw;
    std::memcpy(&raw, from, sizeof(raw));
    const words<W> bits = __builtin_convertvector(raw, words<W>) << 16;
    copy_bits(bits, to);
}

// f16, e4m3 and e5m2 where nothing in the processor reads them. `magnitude` holds exponent and mantissa at float's
// place, `bias` is what their exponent lacks, `special` the lanes that are NaN or infinity. What would be subnormal is
// made with the implicit bit, which is then taken off: arithmetic on subnormal floats is a hundred times slower.
template <int W>
CTXPAR_INLINE void rebias(const words<W>& magnitude, std::uint32_t bias, const ints<W>& special,
                          std::uint32_t special_bits, const words<W>& sign, floats<W>& to) {
    constexpr std::uint32_t implicit = 0x00800000U;
    ints<W> signed_magnitude; // not all processors compare unsigned numbers
    words<W> small;
    copy_bits(magnitude, signed_magnitude);
    const ints<W> is_small = signed_magnitude < static_cast<std::int32_t>(implicit);
    copy_bits(is_small, small);
    const words<W> number = magnitude + bias + (small & implicit);
    const words<W> excess = small & (bias + implicit);
    floats<W> value;
    floats<W> taken_off;
    copy_bits(number, value);
    copy_bits(excess, taken_off);
    value -= taken_off;
    words<W> bits;
    words<W> special_mask;
    copy_bits(value, bits);
    copy_bits(special, special_mask);
    bits |= (special_mask & special_bits) | sign;
    copy_bits(bits, to);
}
template <int W>
CTXPAR_INLINE void widen_f16_bits(const words<W>& raw, floats<W>& to) {
    rebias<W>((raw & 0x7fffU) << 13, 112U << 23, (raw & 0x7c00U) == 0x7c00U, 0x7f800000U, (raw & 0x8000U) << 16, to);
}

// One byte to a word. g++ would take the bytes apart one by one, unless they are interleaved with zeros as it knows it.
template <int W>
CTXPAR_INLINE void spread_bytes(const void* from, words<W>& to) {
    if constexpr (W == 4) {
        std::uint32_t word;
        std::memcpy(&word, from, sizeof(word));
        const words<4> in_first = {word, 0, 0, 0};
        lane_types<16>::bytes bytes;
        copy_bits(in_first, bytes);
        const lane_types<16>::bytes no_bytes{};
        const lane_types<16>::bytes two =
            __builtin_shufflevector(bytes, no_bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        lane_types<8>::halves halves;
        copy_bits(two, halves);
        const lane_types<8>::halves no_halves{};
        const lane_types<8>::halves four = __builtin_shufflevector(halves, no_halves, 0, 8, 1, 9, 2, 10, 3, 11);
        copy_bits(four, to);
    } else {
        typename lane_types<W>::bytes raw;
        std::memcpy(&raw, from, sizeof(raw));
        to = __builtin_convertvector(raw, words<W>);
    }
}

#if defined(__x86_64__) && !defined(__clang__)
// The instructions that read f16 and spread bytes, which g++ does not choose by itself.
template <int W>
CTXPAR_INLINE void read_f16(const typename lane_types<W>::halves& raw, floats<W>& to) {
    if constexpr (W == 16)
        asm("vcvtph2ps %1, %0" : "=v"(to) : "v"(raw));
    else
        asm("vcvtph2ps %1, %0" : "=x"(to) : "x"(raw));
}
template <int W>
CTXPAR_INLINE void spread_signed_bytes(const void* from, typename lane_types<W>::halves& to) {
    const auto& bytes = *static_cast<const char(*)[W]>(from);
    if constexpr (W == 16)
        asm("vpmovsxbw %1, %0" : "=v"(to) : "m"(bytes));
    else
        asm("vpmovsxbw %1, %0" : "=x"(to) : "m"(bytes));
}
template <int W>
inline constexpr bool reads_f16 = W >= 8;
#else
template <int W>
inline constexpr bool reads_f16 = false;
#endif

template <int W>
CTXPAR_INLINE void widen(const f16* from, floats<W>& to) {
    typename lane_types<W>::halves raw;
    std::memcpy(&raw, from, sizeof(raw));
    if constexpr (reads_f16<W>)
        read_f16<W>(raw, to);
    else
        widen_f16_bits<W>(__builtin_convertvector(raw, words<W>), to);
}
template <int W>
CTXPAR_INLINE void widen(const fp8_e5m2* from, floats<W>& to) { // f16 without its last byte
    if constexpr (reads_f16<W>) {
        typename lane_types<W>::halves raw;
        spread_signed_bytes<W>(from, raw);
        raw <<= 8;
        read_f16<W>(raw, to);
    } else {
        words<W> raw;
        spread_bytes<W>(from, raw);
        widen_f16_bits<W>(raw << 8, to);
    }
}
template <int W>
CTXPAR_INLINE void widen(const fp8_e4m3* from, floats<W>& to) {
    if constexpr (reads_f16<W>) { // as f16 it is 2^-8 of itself
        typename lane_types<W>::halves raw;
        spread_signed_bytes<W>(from, raw);
        raw = raw << 7 & 0xbf80U;
        raw |= ((raw | 0x8000U) == 0xbf80U) & 0x7e00U;
        read_f16<W>(raw, to);
        to *= 256.0F;
    } else {
        words<W> raw;
        spread_bytes<W>(from, raw);
        rebias<W>((raw & 0x7fU) << 20, 120U << 23, (raw & 0x7fU) == 0x7fU, 0x7fc00000U, (raw & 0x80U) << 24, to);
    }
}

// A row of `width` elements as floats, followed by zeros up to the next multiple of pad_floats.
template <int W, class T>
CTXPAR_INLINE void widen_row(const T* from, std::int64_t width, float* to) {
    floats<W> value;
    std::int64_t i = 0;
    for (; i + W <= width; i += W) {
        widen<W>(from + i, value);
        store<W>(value, to + i);
    }
    for (const std::int64_t end = (width + pad_floats - 1) / pad_floats * pad_floats; i < end; i += W) {
        T last[W] = {};
        if (i < width) std::memcpy(last, from + i, static_cast<std::size_t>(width - i) * sizeof(T));
        widen<W>(static_cast<const T*>(last), value);
        store<W>(value, to + i);
    }
}

// The even lanes of a, then of b; and the odd ones.
template <int W>
CTXPAR_INLINE void pair_lanes(const floats<W>& a, const floats<W>& b, floats<W>& even, floats<W>& odd) {
    if constexpr (W == 16) {
        even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    } else if constexpr (W == 8) {
        even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
        odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
    } else {
        static_assert(W == 4);
        even = __builtin_shufflevector(a, b, 0, 2, 4, 6);
        odd = __builtin_shufflevector(a, b, 1, 3, 5, 7);
    }
}

// Of each group of four lanes the first half in `low`, the second in `high`, `Step` lanes of a and of b in turn.
template <int Step, int W>
CTXPAR_INLINE void interleave_by(const floats<W>& a, const floats<W>& b, floats<W>& low, floats<W>& high) {
    if constexpr (W == 16 && Step == 1) {
        low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        high = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    } else if constexpr (W == 16) {
        low = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        high = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    } else if constexpr (Step == 1) {
        low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
        high = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    } else {
        low = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
        high = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
}

// As many vectors as there are lanes, to one: lane i of `sums` is the sum of the lanes of acc[i], added as a tree.
// Overwrites acc.
template <int W>
CTXPAR_INLINE void add_across(floats<W> (&acc)[W], floats<W>& sums) {
    for (int count = W; count > 1; count /= 2) {
        for (int i = 0; i < count / 2; ++i) {
            floats<W> even;
            floats<W> odd;
            pair_lanes<W>(acc[2 * i], acc[2 * i + 1], even, odd);
            acc[i] = even + odd;
        }
    }
    sums = acc[0];
}

// The first half of the lanes is the first half of a, or the second, and the second half the same of b.
template <int W>
CTXPAR_INLINE void join_first_halves(const floats<W>& a, const floats<W>& b, floats<W>& to) {
    if constexpr (W == 16)
        to = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    else
        to = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
}
template <int W>
CTXPAR_INLINE void join_second_halves(const floats<W>& a, const floats<W>& b, floats<W>& to) {
    if constexpr (W == 16)
        to = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    else
        to = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}

// W / 2 words at a, then as many at b.
template <int W>
CTXPAR_INLINE void load_two(const void* a, const void* b, words<W>& to) {
    words<W / 2> first;
    words<W / 2> second;
    std::memcpy(&first, a, sizeof(first));
    std::memcpy(&second, b, sizeof(second));
    if constexpr (W == 16)
        to = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    else
        to = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
}

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

// Both halves of the lanes are the W / 2 numbers at `from`.
template <int W>
CTXPAR_INLINE void repeat_half(const float* from, floats<W>& to) {
#if defined(__x86_64__) && !defined(__clang__)
    const auto& numbers = *reinterpret_cast<const float(*)[W / 2]>(from);
    if constexpr (W == 16)
        asm("vbroadcastf64x4 %1, %0" : "=v"(to) : "m"(numbers));
    else
        asm("vbroadcastf128 %1, %0" : "=x"(to) : "m"(numbers));
#else
    words<W> bits;
    load_two<W>(from, from, bits);
    copy_bits(bits, to);
#endif
}

// Half as many vectors as there are lanes, to one: lane i of each half of `sums` is the sum of the lanes in that half
// of acc[i], added as a tree.
template <int W>
CTXPAR_INLINE void add_across_halves(const floats<W> (&acc)[W / 2], floats<W>& sums) {
    // Step by step within groups of four lanes, which is what processors shuffle best.
    floats<W> twos[W / 4];
    floats<W> fours[W / 8];
    floats<W> even;
    floats<W> odd;
    CTXPAR_UNROLL
    for (int i = 0; i < W / 4; ++i) {
        interleave_by<1, W>(acc[2 * i], acc[2 * i + 1], even, odd);
        twos[i] = even + odd;
    }
    CTXPAR_UNROLL
    for (int i = 0; i < W / 8; ++i) {
        interleave_by<2, W>(twos[2 * i], twos[2 * i + 1], even, odd);
        fours[i] = even + odd;
    }
    if constexpr (W == 16) {
        // Groups 0 and 1 of each vector are the first half's.
        even = __builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
        odd = __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
        sums = even + odd;
    } else {
        sums = fours[0];
    }
}

// The sum of all lanes, as a tree.
template <int W>
CTXPAR_INLINE float sum_of(const floats<W>& value) {
    float part[W];
    store<W>(value, part);
    for (int count = W / 2; count > 0; count /= 2)
        for (int i = 0; i < count; ++i) part[i] += part[i + count];
    return part[0];
}

// The largest lane; NaN lanes are passed over.
template <int W>
CTXPAR_INLINE float max_of(const floats<W>& value) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < W; ++i) largest = value[i] > largest ? value[i] : largest;
    return largest;
}

// e^x for x <= 8, to within 2 ulp; 0 below -86, NaN for NaN. x = n ln 2 + r, and a polynomial in r of degree 6.
template <int W>
CTXPAR_INLINE void exp_up_to_8(floats<W>& x) {
    // Added to a number below 2^22, this leaves its nearest integer, plus the exponent's bias, in the last bits. It is
    // read as bits, so that no conversion meets a number that an integer can't hold.
    constexpr float shift = 12582912.0F + 127.0F;
    words<W> n;
    const floats<W> shifted = x * 1.44269504F + shift;
    copy_bits(shifted, n);
    ints<W> whole;
    const words<W> unbiased = n - 0x4b40007fU;
    copy_bits(unbiased, whole);
    const floats<W> steps = __builtin_convertvector(whole, floats<W>);
    floats<W> r = x - steps * 0.693359375F;
    r = r - steps * -2.12194440e-4F;
    floats<W> p = r * 1.392617750e-3F + 8.363174180e-3F;
    p = p * r + 4.166655465e-2F;
    p = p * r + 1.666657702e-1F;
    p = p * r + 0.5F;
    p = p * (r * r) + r;
    floats<W> scale;
    const words<W> exponent = n << 23;
    copy_bits(exponent, scale);
    p = p * scale + scale;
    words<W> bits;
    copy_bits(p, bits);
    words<W> tiny;
    const ints<W> is_tiny = x < -86.0F;
    copy_bits(is_tiny, tiny);
    bits &= ~tiny;
    copy_bits(bits, x);
}

} // namespace ctxpar::inline v0_1::cpu
