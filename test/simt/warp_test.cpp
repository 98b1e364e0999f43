// What a warp does together is what its definition says, element by element.
#include "warp.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace simt;

namespace {

const auto here = std::source_location::current();

void run_warps(unsigned warps, const std::function<void()>& kernel) {
    for (const thread_order order : {thread_order::first_in, thread_order::any, thread_order::one_warp}) {
        grid_options options;
        options.block.x = warps * warp_size;
        options.order = order;
        run_grid(options, kernel);
    }
}

// From the definition of each format: sign, exponent, mantissa.
double number_of(std::uint16_t bits, half_format format) {
    const int mantissa_bits = format == half_format::bf16 ? 7 : 10;
    const int exponent_bits = 15 - mantissa_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const double mantissa = static_cast<double>(bits & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits);
    double value = std::ldexp(exponent == 0 ? mantissa : 1 + mantissa, std::max(exponent, 1) - bias);
    if (exponent == (1 << exponent_bits) - 1) value = mantissa == 0 ? INFINITY : NAN;
    return bits >> 15 != 0 ? -value : value;
}

struct product {
    std::uint16_t a[16][16];
    std::uint16_t b[16][8];
    float sums[16][8];

    float due(unsigned row, unsigned column, half_format format) const {
        double sum = static_cast<double>(sums[row][column]);
        for (unsigned k = 0; k < 16; ++k) sum += number_of(a[row][k], format) * number_of(b[k][column], format);
        return static_cast<float>(sum);
    }
    lane_product of_lane(unsigned lane) const {
        const unsigned row = lane / 4, pair = lane % 4 * 2;
        const auto both = [](std::uint16_t low, std::uint16_t high) {
            return low | static_cast<std::uint32_t>(high) << 16;
        };
        return {{{sums[row][pair], sums[row][pair + 1], sums[row + 8][pair], sums[row + 8][pair + 1]}},
                {{both(a[row][pair], a[row][pair + 1]), both(a[row + 8][pair], a[row + 8][pair + 1]),
                  both(a[row][pair + 8], a[row][pair + 9]), both(a[row + 8][pair + 8], a[row + 8][pair + 9])}},
                {both(b[pair][row], b[pair + 1][row]), both(b[pair + 8][row], b[pair + 9][row])}};
    }
};

bool same(float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

product any_product(std::mt19937& random, bool every_number, half_format format) {
    product p;
    const auto any_bits = [&] {
        const auto bits = static_cast<std::uint16_t>(random());
        if (every_number) return bits;
        const unsigned exponent = (format == half_format::bf16 ? 120U << 7 : 12U << 10); // near one
        const unsigned rest = format == half_format::bf16 ? 0x83ffU : 0x8fffU;
        return static_cast<std::uint16_t>((bits & rest) + exponent);
    };
    for (auto& row : p.a)
        for (auto& each : row) each = any_bits();
    for (auto& row : p.b)
        for (auto& each : row) each = any_bits();
    for (auto& row : p.sums)
        for (float& each : row) each = std::normal_distribution<float>()(random);
    return p;
}

void check_results(const product& p, const std::array<lane_product, warp_size>& lanes, half_format format) {
    int wrong = 0;
    for (unsigned lane = 0; lane < warp_size; ++lane)
        for (unsigned i = 0; i < 4; ++i)
            wrong += same(lanes[lane].sums.at[i], p.due(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2, format)) ? 0 : 1;
    CHECK(wrong == 0);
}

} // namespace

TEST_CASE("every lane gets the word of the lane that it names") {
    std::vector<std::uint32_t> taken(64);
    run_warps(2, [&] {
        const unsigned rank = position().rank;
        taken[rank] = word_of_lane(1000 + rank, rank * 7 + 3, "word_of_lane", here);
    });
    for (unsigned rank = 0; rank < 64; ++rank) CHECK(taken[rank] == 1000 + rank / 32 * 32 + (rank * 7 + 3) % 32);
}

TEST_CASE("a vote names the lanes of the own warp that say yes") {
    std::vector<std::uint32_t> taken(64);
    run_warps(2, [&] {
        const unsigned rank = position().rank;
        taken[rank] = lanes_of(rank < 32 ? rank % 3 == 0 : rank == 63, "lanes_of", here);
    });
    std::uint32_t thirds = 0;
    for (unsigned lane = 0; lane < 32; lane += 3) thirds |= 1U << lane;
    for (unsigned rank = 0; rank < 64; ++rank) CHECK(taken[rank] == (rank < 32 ? thirds : 0x80000000U));
}

TEST_CASE("four matrices are loaded by rows, or transposed") {
    std::array<std::array<std::uint16_t, 8>, 32> rows;
    for (unsigned row = 0; row < 32; ++row)
        for (unsigned column = 0; column < 8; ++column)
            rows[row][column] = static_cast<std::uint16_t>(256 * row + column);
    std::vector<four_words> by_rows(32), by_columns(32);
    run_warps(1, [&] {
        const unsigned lane = position().rank;
        by_rows[lane] = load_matrices(rows[lane].data(), false, "load_matrices", here);
        by_columns[lane] = load_matrices(rows[lane].data(), true, "load_matrices", here);
    });
    for (unsigned lane = 0; lane < 32; ++lane)
        for (unsigned m = 0; m < 4; ++m)
            for (unsigned half = 0; half < 2; ++half) {
                const unsigned one = lane / 4, other = lane % 4 * 2 + half;
                CHECK((by_rows[lane].at[m] >> (16 * half) & 0xffffU) == rows[8 * m + one][other]);
                CHECK((by_columns[lane].at[m] >> (16 * half) & 0xffffU) == rows[8 * m + other][one]);
            }
}

TEST_CASE("products of matrices are those of exact numbers, with every value that the formats have") {
    std::mt19937 random(1);
    for (const half_format format : {half_format::bf16, half_format::f16})
        for (int round = 0; round < 40; ++round) {
            const product p = any_product(random, round % 4 == 0, format);
            std::array<lane_product, warp_size> lanes;
            for (unsigned lane = 0; lane < warp_size; ++lane) lanes[lane] = p.of_lane(lane);
            std::array<lane_product, warp_size> plain = lanes, kernel = lanes;
            std::array<void*, warp_size> places, plain_places;
            for (unsigned lane = 0; lane < warp_size; ++lane) {
                places[lane] = &lanes[lane];
                plain_places[lane] = &plain[lane];
            }
            multiply_all(places.data(), format);
            check_results(p, lanes, format);
            multiply_all_plainly(plain_places.data(), format);
            check_results(p, plain, format);
            run_warps(1, [&] {
                const unsigned lane = position().rank;
                const lane_product own = p.of_lane(lane);
                kernel[lane].sums = multiply(own.sums, own.a, own.b[0], own.b[1], format, "multiply", here);
            });
            check_results(p, kernel, format);
        }
}

TEST_CASE("every number of 16 bits is taken for what its bits say") {
    for (const half_format format : {half_format::bf16, half_format::f16}) {
        int wrong = 0;
        for (std::uint32_t first = 0; first < 0x10000; first += 16) {
            product p{};
            for (unsigned row = 0; row < 16; ++row) {
                p.a[row][row] = static_cast<std::uint16_t>(first + row); // the others are nought
                for (unsigned column = 0; column < 8; ++column)
                    p.b[row][column] = format == half_format::bf16 ? 0x3f80 : 0x3c00; // one
            }
            for (const auto function : {multiply_all, multiply_all_plainly}) {
                std::array<lane_product, warp_size> lanes;
                std::array<void*, warp_size> places;
                for (unsigned lane = 0; lane < warp_size; ++lane) {
                    lanes[lane] = p.of_lane(lane);
                    places[lane] = &lanes[lane];
                }
                function(places.data(), format);
                for (unsigned row = 0; row < 16; ++row) {
                    const auto due = static_cast<float>(number_of(p.a[row][row], format));
                    const float is = lanes[row % 8 * 4].sums.at[row / 8 * 2];
                    wrong += is == due || (std::isnan(is) && std::isnan(due)) ? 0 : 1;
                }
            }
        }
        CHECK(wrong == 0);
    }
}
