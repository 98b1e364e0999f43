// Rows of bf16 transposed, 8 columns of 32 rows at a time: the matrix unit wants the keys of a value's column side by
// side.
#pragma once

#include <cstdint>
#include <cstring>

#include <ctxpar/backend/cpu/amx.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/core/numeric.hpp>

#if defined(__x86_64__)

namespace ctxpar::inline v0_1::cpu {

using amx_halves = std::uint16_t __attribute__((vector_size(64)));

// 16 bytes of each of four rows, side by side. Inserted from memory, as compilers would not, they leave the one port
// that shuffles to the interleaving.
CTXPAR_INLINE void gather_quarters(const bf16* const (&row)[4], std::int64_t column, amx_halves& to) {
#if !defined(__clang__)
    using bytes = const char(*)[16];
    asm("vmovdqu64 %1, %x0" : "=v"(to) : "m"(*reinterpret_cast<bytes>(row[0] + column)));
    asm("vinserti64x2 $1, %1, %0, %0" : "+v"(to) : "m"(*reinterpret_cast<bytes>(row[1] + column)));
    asm("vinserti64x2 $2, %1, %0, %0" : "+v"(to) : "m"(*reinterpret_cast<bytes>(row[2] + column)));
    asm("vinserti64x2 $3, %1, %0, %0" : "+v"(to) : "m"(*reinterpret_cast<bytes>(row[3] + column)));
#else
    CTXPAR_UNROLL
    for (int i = 0; i < 4; ++i)
        std::memcpy(reinterpret_cast<char*>(&to) + 16 * i, static_cast<const void*>(row[i] + column), 16);
#endif
}

// Interleaves units of Bytes within each quarter: the lower units of both to `low`, the upper ones to `high`.
template <int Bytes>
CTXPAR_INLINE void interleave_quarters(const amx_halves& a, const amx_halves& b, amx_halves& low, amx_halves& high) {
    if constexpr (Bytes == 2) {
        low = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49,
                                      18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59);
        high = __builtin_shufflevector(a, b, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21, 53,
                                       22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63);
    } else if constexpr (Bytes == 4) {
        words<16> x;
        words<16> y;
        copy_bits(a, x);
        copy_bits(b, y);
        const words<16> lower = __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        const words<16> upper =
            __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
        copy_bits(lower, low);
        copy_bits(upper, high);
    } else {
        using whole = std::uint64_t __attribute__((vector_size(64)));
        whole x;
        whole y;
        copy_bits(a, x);
        copy_bits(b, y);
        const whole lower = __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
        const whole upper = __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15);
        copy_bits(lower, low);
        copy_bits(upper, high);
    }
}

// 8 columns of 32 rows become 8 rows of 32: quarter q of vector t has row 8 q + t, so that all that is left is to
// transpose 8 x 8 numbers in each quarter.
CTXPAR_INLINE void transpose_columns(const bf16* const* rows, std::int64_t column, bf16* to) {
    amx_halves a[8];
    amx_halves b[8];
    CTXPAR_UNROLL
    for (int t = 0; t < 8; ++t) gather_quarters({rows[t], rows[8 + t], rows[16 + t], rows[24 + t]}, column, a[t]);
    CTXPAR_UNROLL
    for (int t = 0; t < 8; t += 2) interleave_quarters<2>(a[t], a[t + 1], b[t], b[t + 1]); // columns 0-3, 4-7
    CTXPAR_UNROLL
    for (int t = 0; t < 8; t += 4) { // columns 0-1, 2-3, 4-5, 6-7 of rows t .. t + 3
        interleave_quarters<4>(b[t], b[t + 2], a[t], a[t + 1]);
        interleave_quarters<4>(b[t + 1], b[t + 3], a[t + 2], a[t + 3]);
    }
    CTXPAR_UNROLL
    for (int c = 0; c < 4; ++c) {
        amx_halves even;
        amx_halves odd;
        interleave_quarters<8>(a[c], a[c + 4], even, odd);
        std::memcpy(static_cast<void*>(to + 2 * c * amx_depth), &even, sizeof(even));
        std::memcpy(static_cast<void*>(to + (2 * c + 1) * amx_depth), &odd, sizeof(odd));
    }
}

} // namespace ctxpar::inline v0_1::cpu

#endif
