#include "weights.hpp"

#include <cmath>
#include <cstddef>
#include <cstring>

#include <ctxpar/backend/cpu/isa.hpp>

#include "place.hpp"

namespace demo {
namespace {

// Vectors are written as such: compilers differ in what they find themselves.
template <int Lanes>
struct vectors;
template <>
struct vectors<4> {
    using floats [[gnu::vector_size(16)]] = float;
    using words [[gnu::vector_size(16)]] = std::uint32_t;
    using halves [[gnu::vector_size(8)]] = std::uint16_t;
};
template <>
struct vectors<8> {
    using floats [[gnu::vector_size(32)]] = float;
    using words [[gnu::vector_size(32)]] = std::uint32_t;
    using halves [[gnu::vector_size(16)]] = std::uint16_t;
};
template <>
struct vectors<16> {
    using floats [[gnu::vector_size(64)]] = float;
    using words [[gnu::vector_size(64)]] = std::uint32_t;
    using halves [[gnu::vector_size(32)]] = std::uint16_t;
};

// Some rows with some rows of the weights.
template <int Lanes, int Rows, int Outputs>
[[gnu::always_inline]] inline void multiply(const ctxpar::bf16* weights, const float* rows, std::int64_t inputs,
                                            float* out, std::int64_t outputs) {
    using floats = typename vectors<Lanes>::floats;
    using words = typename vectors<Lanes>::words;
    floats sums[Rows][Outputs] = {};
    for (std::int64_t i = 0; i < inputs; i += Lanes) {
        floats numbers[Outputs];
        for (int o = 0; o < Outputs; ++o) {
            typename vectors<Lanes>::halves read;
            std::memcpy(&read, static_cast<const void*>(weights + o * inputs + i), sizeof(read));
            const words wide = __builtin_convertvector(read, words) << 16;
            std::memcpy(&numbers[o], &wide, sizeof(wide));
        }
        for (int row = 0; row < Rows; ++row) {
            floats x;
            std::memcpy(&x, rows + row * inputs + i, sizeof(x));
            for (int o = 0; o < Outputs; ++o) sums[row][o] += x * numbers[o];
        }
    }
    for (int row = 0; row < Rows; ++row)
        for (int o = 0; o < Outputs; ++o) {
            float sum = 0;
            for (int lane = 0; lane < Lanes; ++lane) sum += sums[row][o][lane];
            out[row * outputs + o] = sum;
        }
}

// Rows of the weights stay in the nearest cache for all rows.
template <int Lanes, int Outputs>
[[gnu::always_inline]] inline void multiply_all(const projection& all, const ctxpar::bf16* weights, const float* rows,
                                                float* out) {
    constexpr int together = 4;
    for (std::int64_t o = 0; o < all.outputs; o += Outputs, weights += Outputs * all.inputs) {
        std::int64_t row = 0;
        for (; row + together <= all.rows; row += together)
            multiply<Lanes, together, Outputs>(weights, rows + row * all.inputs, all.inputs,
                                               out + row * all.outputs + o, all.outputs);
        for (; row < all.rows; ++row)
            multiply<Lanes, 1, Outputs>(weights, rows + row * all.inputs, all.inputs, out + row * all.outputs + o,
                                        all.outputs);
    }
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void multiply_avx2(const projection& all, const ctxpar::bf16* weights, const float* rows,
                                               float* out) {
    multiply_all<8, 2>(all, weights, rows, out);
}
[[gnu::target("avx512f,avx2,fma")]] void multiply_avx512(const projection& all, const ctxpar::bf16* weights,
                                                         const float* rows, float* out) {
    multiply_all<16, 4>(all, weights, rows, out);
}
#endif

} // namespace

void project_on_host(const projection& all, const ctxpar::bf16* weights, const float* rows, float* out) {
#if defined(__x86_64__)
    const ctxpar::cpu::isa set = ctxpar::cpu::default_isa();
    if (set == ctxpar::cpu::isa::avx2) return multiply_avx2(all, weights, rows, out);
    if (set != ctxpar::cpu::isa::portable) return multiply_avx512(all, weights, rows, out);
#endif
    multiply_all<4, 2>(all, weights, rows, out);
}

std::vector<double> projected(const projection& all, const ctxpar::bf16* weights, const ctxpar::bf16* rows) {
    std::vector<double> out;
    for (std::int64_t row = 0; row < all.rows; ++row)
        for (std::int64_t o = 0; o < all.outputs; ++o) {
            double sum = 0;
            for (std::int64_t i = 0; i < all.inputs; ++i)
                sum += static_cast<double>(static_cast<float>(rows[row * all.inputs + i])) *
                       static_cast<double>(static_cast<float>(weights[o * all.inputs + i]));
            out.push_back(sum);
        }
    return out;
}

std::vector<ctxpar::bf16> rows_to_project(const projection& all) {
    std::vector<ctxpar::bf16> rows(static_cast<std::size_t>(all.rows * all.inputs));
    for (std::size_t i = 0; i < rows.size(); i += 4) {
        const std::uint64_t word = four_numbers(1, i);
        std::memcpy(static_cast<void*>(&rows[i]), &word, sizeof(word));
    }
    return rows;
}

double distance(const std::vector<float>& got, const std::vector<double>& wanted) {
    if (got.size() != wanted.size()) return 1;
    double apart = 0, all = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double off = static_cast<double>(got[i]) - wanted[i];
        apart += off * off;
        all += wanted[i] * wanted[i];
    }
    const double error = std::sqrt(apart / all);
    return error <= 1 ? error : 1; // of numbers that are none too
}

} // namespace demo
