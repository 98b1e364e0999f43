// The tile kernels of every instruction set do the same arithmetic: scores, online softmax weights, weighted values.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <support/instruction_sets.hpp>

#include <ctxpar/backend/cpu/tiles.hpp>

using namespace ctxpar;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<float> random_numbers(std::size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> number(-1.0F, 1.0F);
    std::vector<float> values(count);
    for (float& value : values) value = number(generator);
    return values;
}

// [columns][lanes] from [pairs][columns]; lanes without a pair are zero.
std::vector<float> side_by_side(const std::vector<float>& rows, std::int64_t pairs, std::int64_t lanes) {
    const std::int64_t columns = static_cast<std::int64_t>(rows.size()) / pairs;
    std::vector<float> result(static_cast<std::size_t>(columns * lanes));
    for (std::int64_t p = 0; p < pairs; ++p)
        for (std::int64_t d = 0; d < columns; ++d)
            result[static_cast<std::size_t>(d * lanes + p)] = rows[static_cast<std::size_t>(p * columns + d)];
    return result;
}

constexpr std::int64_t lanes_of(std::int64_t pairs) {
    return (pairs + 15) / 16 * 16;
}

// Weighs random scores of which each pair sees some, and checks weights and states against doubles.
void weigh_once(const cpu::tile_kernels& kernels, std::int64_t lanes, int round) {
    std::mt19937 generator(static_cast<unsigned>(round));
    std::vector<std::uint32_t> mask(static_cast<std::size_t>(lanes));
    for (std::uint32_t& bits : mask) bits = round < 4 ? ~0U : static_cast<std::uint32_t>(generator());
    auto p = random_numbers(static_cast<std::size_t>(lanes * cpu::tile_keys), static_cast<unsigned>(round));
    cpu::tile_factors factors{};
    for (int t = 0; t < cpu::tile_keys; ++t) {
        factors.key[t] = 8.0F + static_cast<float>(t % 3);
        factors.value[t] = 0.5F * static_cast<float>(1 + t % 4);
    }
    cpu::tile_softmax state = cpu::tile_softmax::none();
    for (std::int64_t i = 0; i < lanes; ++i) { // something was seen before
        state.max[i] = static_cast<float>(i) - 8.0F;
        state.sum[i] = 2.0F;
        for (std::int64_t t = 0; t < cpu::tile_keys; ++t)
            if ((mask[static_cast<std::size_t>(i)] >> t & 1U) == 0)
                p[static_cast<std::size_t>(t * lanes + i)] = std::nanf(""); // must not matter
    }
    const cpu::tile_softmax old = state;
    const std::vector<float> raw = p;
    std::vector<float> keep(static_cast<std::size_t>(lanes));
    kernels.weigh({p.data(), mask.data(), lanes, keep.data()}, factors, state);
    for (std::int64_t i = 0; i < lanes; ++i) {
        const auto score = [&](std::int64_t t) {
            return static_cast<double>(raw[static_cast<std::size_t>(t * lanes + i)]) *
                   static_cast<double>(factors.key[t]);
        };
        const auto sees = [&](std::int64_t t) { return (mask[static_cast<std::size_t>(i)] >> t & 1U) != 0; };
        double largest = static_cast<double>(old.max[i]);
        for (std::int64_t t = 0; t < cpu::tile_keys; ++t)
            if (sees(t)) largest = std::fmax(largest, score(t));
        double sum = 2.0 * std::exp(static_cast<double>(old.max[i]) - largest);
        CHECK(keep[static_cast<std::size_t>(i)] == doctest::Approx(sum / 2.0).epsilon(2e-6));
        for (std::int64_t t = 0; t < cpu::tile_keys; ++t) {
            const float got = p[static_cast<std::size_t>(t * lanes + i)];
            const double weight = sees(t) ? std::exp(score(t) - largest) : 0.0;
            sum += weight;
            CHECK(got == doctest::Approx(weight * static_cast<double>(factors.value[t])).epsilon(3e-6));
            if (!sees(t)) CHECK(got == 0.0F);
        }
        CHECK(state.max[i] == doctest::Approx(largest).epsilon(1e-6));
        CHECK(state.sum[i] == doctest::Approx(sum).epsilon(2e-6));
    }
}

double exact_dot(const float* a, const float* b, std::int64_t width) {
    double dot = 0.0;
    for (std::int64_t d = 0; d < width; ++d) dot += static_cast<double>(a[d]) * static_cast<double>(b[d]);
    return dot;
}

} // namespace

TEST_CASE("scores are dot products, for any number of pairs") {
    for (const cpu::isa set : ctxpar_test::instruction_sets()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        for (const std::int64_t pairs : {1, 2, 5, 15, 16, 17, 31, 32}) {
            for (const std::int64_t width : {16, 48, 128, 144, 576}) {
                const std::int64_t lanes = lanes_of(pairs);
                const auto q = random_numbers(static_cast<std::size_t>(pairs * width), 1);
                const auto keys = random_numbers(static_cast<std::size_t>(cpu::tile_keys * width), 2);
                const auto columns = side_by_side(q, pairs, lanes);
                std::vector<float> scores(static_cast<std::size_t>(lanes * cpu::tile_keys), std::nanf(""));
                kernels.score({columns.data(), keys.data(), width, lanes, scores.data()});
                double worst = 0.0;
                for (std::int64_t p = 0; p < lanes; ++p)
                    for (std::int64_t t = 0; t < cpu::tile_keys; ++t) {
                        const double dot =
                            p < pairs ? exact_dot(q.data() + p * width, keys.data() + t * width, width) : 0.0;
                        const float got = scores[static_cast<std::size_t>(t * lanes + p)];
                        worst = std::fmax(worst, std::isnan(got) ? 1.0 : std::fabs(got - dot));
                    }
                CAPTURE(cpu::name_of(set));
                CAPTURE(pairs);
                CAPTURE(width);
                CHECK(worst <= 2e-7 * std::sqrt(static_cast<double>(width)));
            }
        }
    }
}

TEST_CASE("a score of magnitude 10 is good to 1e-6, however wide the rows are") {
    for (const cpu::isa set : ctxpar_test::instruction_sets()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        for (const std::int64_t width : {64, 128, 256, 576, 1024}) {
            double squares = 0.0;
            constexpr unsigned rounds = 4;
            for (unsigned round = 0; round < rounds; ++round) {
                auto q = random_numbers(static_cast<std::size_t>(32 * width), 10 + round);
                const auto keys = random_numbers(static_cast<std::size_t>(32 * width), 20 + round);
                for (float& value : q) value *= 30.0F / std::sqrt(static_cast<float>(width));
                const auto columns = side_by_side(q, 32, 32);
                std::vector<float> scores(32 * 32);
                kernels.score({columns.data(), keys.data(), width, 32, scores.data()});
                for (std::int64_t i = 0; i < 32 * 32; ++i) {
                    const double dot = exact_dot(q.data() + i % 32 * width, keys.data() + i / 32 * width, width);
                    squares += std::pow(static_cast<double>(scores[static_cast<std::size_t>(i)]) - dot, 2);
                }
            }
            CAPTURE(cpu::name_of(set));
            CAPTURE(width);
            CHECK(std::sqrt(squares / (rounds * 32 * 32)) <= 1.2e-6);
        }
    }
}

TEST_CASE("weights of visible keys add up to the state, hidden keys have none") {
    for (const cpu::isa set : ctxpar_test::instruction_sets()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        for (int round = 0; round < 20; ++round) weigh_once(kernels, round % 2 == 0 ? 16 : 32, round);
    }
}

TEST_CASE("all keys hidden or all scores -inf leave a state as it was, and NaN stays visible") {
    for (const cpu::isa set : ctxpar_test::instruction_sets()) {
        CAPTURE(cpu::name_of(set));
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        cpu::tile_factors ones{};
        for (float& factor : ones.key) factor = 1.0F;
        for (float& factor : ones.value) factor = 1.0F;
        cpu::tile_softmax state = cpu::tile_softmax::none();
        state.max[1] = state.max[3] = 2.0F;
        state.sum[1] = state.sum[3] = 5.0F;
        std::vector<std::uint32_t> mask(16, ~0U);
        mask[2] = mask[3] = 0;
        std::vector<float> p(16 * cpu::tile_keys, -infinity);
        p[7 * 16 + 4] = std::nanf("");
        p[9 * 16 + 5] = infinity;
        p[9 * 16 + 6] = 1.0F;
        std::vector<float> keep(16);
        kernels.weigh({p.data(), mask.data(), 16, keep.data()}, ones, state);
        for (const int untouched : {0, 1, 2, 3}) {
            const cpu::running_softmax now = state.of(untouched);
            CHECK(keep[static_cast<std::size_t>(untouched)] == 1.0F);
            CHECK(now.sum == (untouched % 2 == 1 ? 5.0F : 0.0F));
            CHECK((untouched % 2 == 1 ? now.max == 2.0F : is_minus_infinity(now.max)));
            for (std::size_t t = 0; t < 32; ++t) CHECK(p[t * 16 + static_cast<std::size_t>(untouched)] == 0.0F);
        }
        CHECK(std::isnan(state.sum[4]));
        CHECK(is_minus_infinity(state.max[4]));
        CHECK(std::isnan(state.sum[5]));
        CHECK(state.max[6] == 1.0F);
        CHECK(state.sum[6] == 1.0F);
        p.assign(p.size(), 0.0F);
        kernels.weigh({p.data(), mask.data(), 16, keep.data()}, ones, state);
        CHECK(std::isnan(state.sum[4]));
        CHECK(std::isnan(state.sum[5]));
        CHECK(state.of(0).sum == 32.0F);
        CHECK(state.of(0).max == 0.0F);
        CHECK(keep[0] == 0.0F);
    }
}

TEST_CASE("values are added by weight over the keys in range, on what is kept") {
    for (const cpu::isa set : ctxpar_test::instruction_sets()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        for (const std::int64_t pairs : {1, 3, 4, 6, 17, 32}) {
            for (const std::int64_t width : {16, 32, 48, 64, 80, 512}) {
                const std::int64_t lanes = lanes_of(pairs);
                const std::int64_t stride = width + 64; // values may lie in wider rows
                const auto p = random_numbers(static_cast<std::size_t>(pairs * cpu::tile_keys), 5);
                auto values = random_numbers(static_cast<std::size_t>(cpu::tile_keys * stride), 6);
                for (std::int64_t d = 0; d < stride; ++d) values[static_cast<std::size_t>(d)] = std::nanf(""); // key 0
                const auto keep = random_numbers(static_cast<std::size_t>(pairs), 7);
                auto out = random_numbers(static_cast<std::size_t>(lanes * width), 8);
                const auto before = out;
                const auto weights = side_by_side(p, pairs, lanes);
                auto kept = keep;
                kept.resize(static_cast<std::size_t>(lanes));
                kernels.add({weights.data(), lanes, values.data(), stride, 1, 30, kept.data(), out.data(), width},
                            pairs);
                double worst = 0.0;
                for (std::int64_t i = 0; i < pairs; ++i)
                    for (std::int64_t d = 0; d < width; ++d) {
                        const auto at = static_cast<std::size_t>(i * width + d);
                        double wanted =
                            static_cast<double>(before[at]) * static_cast<double>(keep[static_cast<std::size_t>(i)]);
                        for (std::int64_t t = 1; t < 30; ++t)
                            wanted += static_cast<double>(p[static_cast<std::size_t>(i * cpu::tile_keys + t)]) *
                                      static_cast<double>(values[static_cast<std::size_t>(t * stride + d)]);
                        worst = std::fmax(worst, std::isnan(out[at]) ? 1.0 : std::fabs(out[at] - wanted));
                    }
                CAPTURE(cpu::name_of(set));
                CHECK(worst <= 3e-6);
            }
        }
    }
}
