#include "warp.hpp"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Nothing here is told where to read or write: rows of matrices were checked before, all else is the emulator's own.
#define SIMT_OWN __attribute__((no_sanitize("address", "undefined")))

namespace simt {
namespace {

constexpr std::uint32_t all_lanes = 0xffffffffU;

struct word_exchange {
    std::uint32_t given;
    unsigned from;
    std::uint32_t taken;
};
SIMT_OWN void exchange_words(void* const* data, std::uint32_t) {
    for (unsigned lane = 0; lane < warp_size; ++lane) {
        auto* const own = static_cast<word_exchange*>(data[lane]);
        own->taken = static_cast<const word_exchange*>(data[own->from % warp_size])->given;
    }
}

struct ballot {
    bool yes;
    std::uint32_t all;
};
SIMT_OWN void count_votes(void* const* data, std::uint32_t) {
    std::uint32_t all = 0;
    for (unsigned lane = 0; lane < warp_size; ++lane)
        all |= static_cast<std::uint32_t>(static_cast<const ballot*>(data[lane])->yes) << lane;
    for (unsigned lane = 0; lane < warp_size; ++lane) static_cast<ballot*>(data[lane])->all = all;
}

struct matrix_load {
    const void* row;
    four_words taken;
};
SIMT_OWN void load_by_rows(void* const* data, std::uint32_t) {
    std::uint32_t words[warp_size][4]; // two elements each
    for (unsigned row = 0; row < warp_size; ++row)
        std::memcpy(words[row], static_cast<const matrix_load*>(data[row])->row, sizeof(words[row]));
    for (unsigned lane = 0; lane < warp_size; ++lane)
        for (unsigned m = 0; m < 4; ++m)
            static_cast<matrix_load*>(data[lane])->taken.at[m] = words[8 * m + lane / 4][lane % 4];
}
SIMT_OWN void load_by_columns(void* const* data, std::uint32_t) {
    std::uint16_t elements[warp_size][8];
    for (unsigned row = 0; row < warp_size; ++row)
        std::memcpy(elements[row], static_cast<const matrix_load*>(data[row])->row, sizeof(elements[row]));
    for (unsigned lane = 0; lane < warp_size; ++lane)
        for (unsigned m = 0; m < 4; ++m) {
            const unsigned row = 8 * m + lane % 4 * 2, column = lane / 4;
            static_cast<matrix_load*>(data[lane])->taken.at[m] =
                elements[row][column] | static_cast<std::uint32_t>(elements[row + 1][column]) << 16;
        }
}

// The operands of a warp, put together.
struct alignas(32) operands {
    std::uint32_t a[16][8]; // pairs of columns
    std::uint16_t b[16][8];
    float sums[16][8];
};
SIMT_OWN void put_together(operands& all, void* const* lanes) {
    for (unsigned lane = 0; lane < warp_size; ++lane) {
        const auto* const own = static_cast<const lane_product*>(lanes[lane]);
        const unsigned high = lane / 4, low = lane % 4;
        for (unsigned i = 0; i < 4; ++i) all.a[high + i % 2 * 8][low + i / 2 * 4] = own->a.at[i];
        for (unsigned i = 0; i < 2; ++i) {
            all.b[low * 2 + i * 8][high] = static_cast<std::uint16_t>(own->b[i]);
            all.b[low * 2 + i * 8 + 1][high] = static_cast<std::uint16_t>(own->b[i] >> 16);
            std::memcpy(&all.sums[high + i * 8][low * 2], &own->sums.at[2 * i], 2 * sizeof(float));
        }
    }
}
SIMT_OWN void take_apart(const operands& all, void* const* lanes) {
    for (unsigned lane = 0; lane < warp_size; ++lane)
        for (unsigned i = 0; i < 2; ++i)
            std::memcpy(&static_cast<lane_product*>(lanes[lane])->sums.at[2 * i],
                        &all.sums[lane / 4 + i * 8][lane % 4 * 2], 2 * sizeof(float));
}

SIMT_OWN double number_of(std::uint16_t bits, half_format format) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t rest = bits & 0x7fffU;
    if (format == half_format::bf16) return static_cast<double>(std::bit_cast<float>(sign | rest << 16));
    if (rest >= 0x7c00U) return static_cast<double>(std::bit_cast<float>(sign | 0x7f800000U | (rest & 0x3ffU) << 13));
    const double value = static_cast<double>(std::bit_cast<float>(rest << 13)) * 0x1p112; // of another bias
    return sign != 0 ? -value : value;
}

#if defined(__x86_64__)
#define SIMT_VECTORS __attribute__((target("avx2,fma,f16c"), no_sanitize("address", "undefined")))

SIMT_VECTORS void widen(const void* halves, double* numbers, unsigned count, half_format format) {
    for (unsigned i = 0; i < count; i += 8) {
        const __m128i bits = _mm_load_si128(static_cast<const __m128i*>(halves) + i / 8);
        const __m256 floats = format == half_format::f16
                                  ? _mm256_cvtph_ps(bits)
                                  : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
        _mm256_store_pd(numbers + i, _mm256_cvtps_pd(_mm256_castps256_ps128(floats)));
        _mm256_store_pd(numbers + i + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(floats, 1)));
    }
}

// Two rows at a time. That products are added unrounded is no difference: they are exact.
SIMT_VECTORS void multiply_vectors(operands& all, half_format format) {
    alignas(32) double a[16][16], b[16][8];
    widen(all.a, a[0], 256, format);
    widen(all.b, b[0], 128, format);
    for (unsigned row = 0; row < 16; row += 2) {
        float* const sums = all.sums[row];
        __m256d sum0 = _mm256_cvtps_pd(_mm_load_ps(sums)), sum1 = _mm256_cvtps_pd(_mm_load_ps(sums + 4));
        __m256d sum2 = _mm256_cvtps_pd(_mm_load_ps(sums + 8)), sum3 = _mm256_cvtps_pd(_mm_load_ps(sums + 12));
        for (unsigned k = 0; k < 16; ++k) {
            const __m256d left = _mm256_load_pd(b[k]), right = _mm256_load_pd(b[k] + 4);
            const __m256d upper = _mm256_broadcast_sd(&a[row][k]), lower = _mm256_broadcast_sd(&a[row + 1][k]);
            sum0 = _mm256_fmadd_pd(upper, left, sum0);
            sum1 = _mm256_fmadd_pd(upper, right, sum1);
            sum2 = _mm256_fmadd_pd(lower, left, sum2);
            sum3 = _mm256_fmadd_pd(lower, right, sum3);
        }
        _mm_store_ps(sums, _mm256_cvtpd_ps(sum0));
        _mm_store_ps(sums + 4, _mm256_cvtpd_ps(sum1));
        _mm_store_ps(sums + 8, _mm256_cvtpd_ps(sum2));
        _mm_store_ps(sums + 12, _mm256_cvtpd_ps(sum3));
    }
}
const bool has_vectors =
    __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif

} // namespace

SIMT_OWN void multiply_all_plainly(void* const* lanes, half_format format) {
    operands all;
    put_together(all, lanes);
    double a[16][16], b[16][8];
    for (unsigned k = 0; k < 16; ++k) {
        for (unsigned row = 0; row < 16; ++row)
            a[row][k] = number_of(static_cast<std::uint16_t>(all.a[row][k / 2] >> (16 * (k % 2))), format);
        for (unsigned column = 0; column < 8; ++column) b[k][column] = number_of(all.b[k][column], format);
    }
    for (unsigned row = 0; row < 16; ++row)
        for (unsigned column = 0; column < 8; ++column) {
            double sum = static_cast<double>(all.sums[row][column]);
            for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            all.sums[row][column] = static_cast<float>(sum);
        }
    take_apart(all, lanes);
}

SIMT_OWN void multiply_all(void* const* lanes, half_format format) {
#if defined(__x86_64__)
    if (has_vectors) {
        operands all;
        put_together(all, lanes);
        multiply_vectors(all, format);
        take_apart(all, lanes);
        return;
    }
#endif
    multiply_all_plainly(lanes, format);
}

SIMT_OWN std::uint32_t word_of_lane(std::uint32_t own, unsigned lane, const char* what,
                                    const std::source_location& where) {
    word_exchange mine{own, lane, 0};
    meet_in_warp(all_lanes, what, &mine, exchange_words, where);
    return mine.taken;
}

SIMT_OWN std::uint32_t lanes_of(bool yes, const char* what, const std::source_location& where) {
    ballot mine{yes, 0};
    meet_in_warp(all_lanes, what, &mine, count_votes, where);
    return mine.all;
}

SIMT_OWN four_words load_matrices(const void* row, bool transposed, const char* what,
                                  const std::source_location& where) {
    matrix_load mine{row, {}};
    meet_in_warp(all_lanes, what, &mine, transposed ? load_by_columns : load_by_rows, where);
    return mine.taken;
}

SIMT_OWN lane_sums multiply(lane_sums sums, four_words a, std::uint32_t b0, std::uint32_t b1, half_format format,
                            const char* what, const std::source_location& where) {
    lane_product own{sums, a, {b0, b1}};
    const warp_work work = format == half_format::bf16
                               ? [](void* const* lanes, std::uint32_t) { multiply_all(lanes, half_format::bf16); }
                               : [](void* const* lanes, std::uint32_t) { multiply_all(lanes, half_format::f16); };
    meet_in_warp(all_lanes, what, &own, work, where);
    return own.sums;
}

} // namespace simt
