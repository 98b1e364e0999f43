// The matrix unit of bf16 (AMX): its instructions. In assembly, since compilers know neither what memory a tile is nor
// that tiles are state.
//
// A tile holds 16 rows of 64 bytes; a product adds to 16 x 16 sums in fp32 the products of 16 x 32 and 32 x 16 numbers
// in bf16, the second factor with its rows in pairs. Even and odd products are added up apart; numbers below the normal
// ones count as zero. A product is 16 cycles, and 8,192 multiply-adds.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t amx_depth = 32; // numbers that a product adds up
inline constexpr std::int64_t amx_side = 16;  // rows and columns of a tile of sums

#if defined(__x86_64__)

// All tiles are 16 rows of 64 bytes. A thread's tiles are its own and take part in every switch of threads until they
// are released.
CTXPAR_TARGET_AMX inline void amx_open() {
    struct alignas(64) layout {
        std::uint8_t palette = 1;
        std::uint8_t start_row = 0;
        std::uint8_t reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(layout) == 64);
    const layout all;
    asm volatile("ldtilecfg %0" : : "m"(all) : "memory");
}
CTXPAR_TARGET_AMX inline void amx_close() {
    asm volatile("tilerelease" : : : "memory");
}

template <int Tile>
CTXPAR_INLINE void amx_zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
template <int Tile>
CTXPAR_INLINE void amx_load(const void* base, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(base), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
CTXPAR_INLINE void amx_store(void* base, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride), "i"(Tile) : "memory");
}
// Sums += First x Second.
template <int Sums, int First, int Second>
CTXPAR_INLINE void amx_multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(First), "i"(Second));
}

#endif

} // namespace ctxpar::inline v0_1::cpu
