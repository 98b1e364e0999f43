// The kernels of the matrix unit around its products: layouts, transposition, and weights in three terms. Products and
// whole attention are in attend_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <support/instruction_sets.hpp>

#include <ctxpar/backend/cpu/amx_group.hpp>

using namespace ctxpar;

TEST_CASE("Keys and columns of few pairs are permuted, values and weights alike") {
    std::vector<int> keys(cpu::amx_depth, 0);
    for (std::int64_t row = 0; row < cpu::amx_side; ++row) {
        for (std::int64_t half = 0; half < 2; ++half) {
            const std::int64_t key = cpu::few_key(row) + 2 * half;
            ++keys[static_cast<std::size_t>(key)];
            CHECK(cpu::few_weight(key) == 2 * row + half);
        }
    }
    CHECK(keys == std::vector<int>(cpu::amx_depth, 1));
    std::vector<int> columns(96, 0);
    for (std::int64_t d = 0; d < 96; ++d) ++columns[static_cast<std::size_t>(cpu::few_place(d))];
    CHECK(columns == std::vector<int>(96, 1));
}

#if defined(__x86_64__)

namespace {

// Nothing to ask for.
struct nothing_ahead {
    cpu::stream_ahead rows;
    cpu::amx_ahead ahead{rows, 0};
};

// Scores and what hides them, for the kernels of 16 lanes and of few pairs, of which the first 8 are used.
struct weighing {
    std::vector<float> scores = std::vector<float>(cpu::amx_keys * cpu::amx_side, 0.0F);
    std::uint32_t mask[2][cpu::tile_pairs] = {};
    cpu::tile_factors factors[2];
    std::vector<float> key_factors = std::vector<float>(cpu::amx_keys * cpu::few_pairs);
    std::vector<float> value_factors = std::vector<float>(cpu::amx_keys * cpu::few_pairs);
    alignas(64) bf16 terms[cpu::amx_terms * cpu::amx_keys * cpu::amx_side] = {};
    alignas(64) float keep[cpu::amx_side] = {};
    alignas(64) float reference[cpu::amx_side] = {};
    alignas(64) float sums[cpu::amx_side] = {};
    cpu::tile_softmax state = cpu::tile_softmax::none();
    nothing_ahead none;

    explicit weighing(std::uint32_t seed) {
        std::mt19937 random(seed);
        std::uniform_real_distribution<float> number(0.5F, 1.5F);
        for (std::int64_t t = 0; t < cpu::amx_keys; ++t) {
            cpu::tile_factors& half = factors[t / cpu::tile_keys];
            half.key[t % cpu::tile_keys] = number(random);
            half.value[t % cpu::tile_keys] = number(random);
            std::fill_n(key_factors.data() + t * cpu::few_pairs, cpu::few_pairs, half.key[t % cpu::tile_keys]);
            std::fill_n(value_factors.data() + t * cpu::few_pairs, cpu::few_pairs, half.value[t % cpu::tile_keys]);
            for (std::int64_t i = 0; i < cpu::few_pairs; ++i)
                scores[static_cast<std::size_t>(t * cpu::amx_side + i)] = 8.0F * number(random) - 8.0F;
        }
        for (auto& half : mask)
            for (std::int64_t i = 0; i < cpu::few_pairs; ++i) half[i] = i == 3 ? ~0U : random();
    }
    bool sees(std::int64_t t, std::int64_t i) const {
        return (mask[t / cpu::tile_keys][i] >> t % cpu::tile_keys & 1U) != 0;
    }
    double score(std::int64_t t, std::int64_t i) const {
        return static_cast<double>(scores[static_cast<std::size_t>(t * cpu::amx_side + i)]) *
               static_cast<double>(factors[t / cpu::tile_keys].key[t % cpu::tile_keys]);
    }
    cpu::amx_weights args() {
        return {scores.data(), mask[0],   factors, cpu::amx_side,      terms,
                keep,          reference, sums,    key_factors.data(), value_factors.data()};
    }
};

void weigh(weighing& given, bool few) {
    const cpu::amx_weights args = given.args();
    if (few) {
        cpu::scan_few(args, given.state);
        cpu::weigh_few(args, given.state, given.none.ahead);
    } else {
        cpu::scan_amx(args, given.state);
        cpu::weigh_amx(args, given.state, given.none.ahead);
    }
}

void check_weights(weighing& given, bool few) {
    const weighing before = given;
    weigh(given, few);
    cpu::amx_group group{};
    group.few = few;
    group.lanes = cpu::amx_side;
    for (std::int64_t i = 0; i < cpu::few_pairs; ++i) {
        CAPTURE(i);
        double largest = -1e30;
        double sum = 0;
        for (std::int64_t t = 0; t < cpu::amx_keys; ++t)
            if (before.sees(t, i)) largest = std::max(largest, before.score(t, i));
        for (std::int64_t t = 0; t < cpu::amx_keys; ++t) {
            const double weight = before.sees(t, i) ? std::exp(before.score(t, i) - largest) : 0.0;
            const double factor = static_cast<double>(before.factors[t / cpu::tile_keys].value[t % cpu::tile_keys]);
            sum += weight;
            const double got = static_cast<double>(group.weight(given.terms, t, i));
            CHECK(std::fabs(got - weight * factor) <= 2e-6 * weight * factor);
        }
        CHECK(static_cast<double>(given.state.max[i]) == doctest::Approx(largest).epsilon(1e-6));
        CHECK(static_cast<double>(given.state.sum[i]) == doctest::Approx(sum).epsilon(1e-6));
    }
}

} // namespace

TEST_CASE("Columns of rows become rows, whatever the width") {
    if (!cpu::has(cpu::isa::amx)) return;
    for (const std::int64_t width : {16, 48, 512}) {
        std::vector<bf16> memory(static_cast<std::size_t>(cpu::amx_keys * width));
        for (std::size_t i = 0; i < memory.size(); ++i)
            memory[i] = bf16::from_bits(static_cast<std::uint16_t>(i * 7919));
        std::vector<const bf16*> rows;
        for (std::int64_t t = 0; t < cpu::amx_keys; ++t) rows.push_back(memory.data() + t * width);
        std::reverse(rows.begin(), rows.end());
        std::vector<bf16> to(memory.size());
        nothing_ahead none;
        cpu::transpose_amx(rows.data(), width, to.data(), none.ahead);
        int wrong = 0;
        for (std::int64_t t = 0; t < cpu::amx_keys; ++t)
            for (std::int64_t d = 0; d < width; ++d) {
                const std::int64_t at = (t / cpu::amx_depth * width + d) * cpu::amx_depth + t % cpu::amx_depth;
                wrong += to[static_cast<std::size_t>(at)].bits == rows[static_cast<std::size_t>(t)][d].bits ? 0 : 1;
            }
        CHECK(wrong == 0);
    }
}

TEST_CASE("What scores are relative to stays until one is far above it") {
    if (!cpu::has(cpu::isa::amx)) return;
    for (const bool few : {false, true}) {
        CAPTURE(few);
        for (const auto& [rise, follows] : {std::pair{5.0F, false}, {6.0F, true}, {-3.0F, false}}) {
            CAPTURE(rise);
            weighing given(5);
            for (auto& half : given.mask) std::fill_n(half, cpu::tile_pairs, ~0U);
            std::fill(given.scores.begin(), given.scores.end(), 0.0F);
            for (cpu::tile_factors& half : given.factors) std::fill_n(half.key, cpu::tile_keys, 1.0F);
            std::fill(given.key_factors.begin(), given.key_factors.end(), 1.0F);
            weigh(given, few); // all weights are 1
            weighing next = given;
            for (std::int64_t i = 0; i < cpu::amx_side; ++i) {
                for (std::int64_t t = 0; t < cpu::amx_keys; ++t)
                    next.scores[static_cast<std::size_t>(t * cpu::amx_side + i)] = t == 7 ? rise : -1e30F;
            }
            weigh(next, few);
            const double expected = 64.0 + std::exp(static_cast<double>(rise));
            for (std::int64_t i = 0; i < cpu::few_pairs; ++i) {
                CHECK(next.state.max[i] == (follows ? rise : 0.0F));
                CHECK((next.keep[i] == 1.0F) == !follows);
                CHECK(static_cast<double>(next.state.sum[i]) * std::exp(static_cast<double>(next.state.max[i])) ==
                      doctest::Approx(expected).epsilon(1e-5));
            }
        }
    }
}

TEST_CASE("Three terms are the whole weight, of many pairs and of few") {
    if (!cpu::has(cpu::isa::amx)) return;
    for (const std::uint32_t seed : {1U, 2U, 3U}) {
        for (const bool few : {false, true}) {
            CAPTURE(few);
            weighing given(seed);
            check_weights(given, few);
        }
    }
}

#endif
