// The tile kernels of every instruction set do the same arithmetic: scores, online softmax weights, weighted values.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <ctxpar/backend/cpu/tiles.hpp>

using namespace ctxpar;

namespace {

std::vector<cpu::isa> present() {
    std::vector<cpu::isa> sets{cpu::isa::portable};
    if (cpu::best_isa() != cpu::isa::portable) sets.push_back(cpu::isa::avx2);
    if (cpu::best_isa() == cpu::isa::avx512) sets.push_back(cpu::isa::avx512);
    return sets;
}

std::vector<float> random_numbers(std::size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> number(-1.0F, 1.0F);
    std::vector<float> values(count);
    for (float& value : values) value = number(generator);
    return values;
}

} // namespace

TEST_CASE("scores are dot products, for any number of pairs") {
    for (const cpu::isa set : present()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        for (const std::int64_t pairs : {1, 2, 3, 4, 5, 8, 31, 32}) {
            for (const std::int64_t width : {16, 48, 576}) {
                const auto q = random_numbers(static_cast<std::size_t>(pairs * width), 1);
                const auto keys = random_numbers(static_cast<std::size_t>(cpu::tile_keys * width), 2);
                std::vector<float> scores(static_cast<std::size_t>(pairs * cpu::tile_keys), std::nanf(""));
                kernels.score(q.data(), keys.data(), width, pairs, scores.data());
                double worst = 0.0;
                for (std::int64_t p = 0; p < pairs; ++p)
                    for (std::int64_t t = 0; t < cpu::tile_keys; ++t) {
                        double dot = 0.0;
                        for (std::int64_t d = 0; d < width; ++d)
                            dot += static_cast<double>(q[static_cast<std::size_t>(p * width + d)]) *
                                   static_cast<double>(keys[static_cast<std::size_t>(t * width + d)]);
                        const float got = scores[static_cast<std::size_t>(p * cpu::tile_keys + t)];
                        worst = std::fmax(worst, std::isnan(got) ? 1.0 : std::fabs(got - dot));
                    }
                CAPTURE(cpu::name_of(set));
                CAPTURE(pairs);
                CHECK(worst <= 1e-6 * std::sqrt(static_cast<double>(width)));
            }
        }
    }
}

TEST_CASE("weights of visible keys add up to the state, hidden keys have none") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const cpu::isa set : present()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        std::mt19937 generator(3);
        for (int round = 0; round < 200; ++round) {
            const std::uint32_t mask = round == 0 ? 0U : (round == 1 ? ~0U : static_cast<std::uint32_t>(generator()));
            auto p = random_numbers(cpu::tile_keys, static_cast<unsigned>(round));
            cpu::tile_factors factors{};
            for (int t = 0; t < cpu::tile_keys; ++t) {
                factors.key[t] = 8.0F;
                factors.value[t] = 0.5F;
                if ((mask >> t & 1U) == 0) p[static_cast<std::size_t>(t)] = std::nanf(""); // must not matter
            }
            const std::vector<float> raw = p;
            cpu::running_softmax state{1.5F, 2.0F}; // something was seen before
            const float keep = kernels.weigh(p.data(), mask, factors, state);

            double largest = 1.5;
            for (int t = 0; t < cpu::tile_keys; ++t)
                if ((mask >> t & 1U) != 0)
                    largest = std::fmax(largest, 8.0 * static_cast<double>(raw[static_cast<std::size_t>(t)]));
            double sum = 2.0 * std::exp(1.5 - largest);
            CAPTURE(cpu::name_of(set));
            CHECK(keep == doctest::Approx(std::exp(1.5 - largest)).epsilon(1e-6));
            for (int t = 0; t < cpu::tile_keys; ++t) {
                const auto at = static_cast<std::size_t>(t);
                if ((mask >> t & 1U) == 0) {
                    CHECK(p[at] == 0.0F);
                    continue;
                }
                const double weight = std::exp(8.0 * static_cast<double>(raw[at]) - largest);
                sum += weight;
                CHECK(p[at] == doctest::Approx(0.5 * weight).epsilon(2e-6));
            }
            CHECK(state.max == doctest::Approx(largest).epsilon(1e-6));
            CHECK(state.sum == doctest::Approx(sum).epsilon(2e-6));
        }
        // All scores -inf, and a NaN score: no weight, and a visible NaN.
        std::vector<float> p(cpu::tile_keys, -infinity);
        cpu::tile_factors ones{};
        for (float& factor : ones.key) factor = 1.0F;
        for (float& factor : ones.value) factor = 1.0F;
        cpu::running_softmax state;
        kernels.weigh(p.data(), ~0U, ones, state);
        CHECK(state.sum == 0.0F);
        CHECK(is_minus_infinity(state.max));
        p.assign(cpu::tile_keys, 0.0F);
        p[7] = std::nanf("");
        kernels.weigh(p.data(), ~0U, ones, state);
        CHECK(std::isnan(state.sum));
    }
}

TEST_CASE("values are added by weight over the keys in range, on what is kept") {
    for (const cpu::isa set : present()) {
        const cpu::tile_kernels kernels = cpu::kernels_of(set);
        for (const std::int64_t pairs : {1, 3, 4, 6, 32}) {
            for (const std::int64_t width : {16, 32, 80, 512}) {
                const std::int64_t stride = width + 64; // values may lie in wider rows
                const auto p = random_numbers(static_cast<std::size_t>(pairs * cpu::tile_keys), 5);
                auto values = random_numbers(static_cast<std::size_t>(cpu::tile_keys * stride), 6);
                for (std::int64_t d = 0; d < stride; ++d) values[static_cast<std::size_t>(d)] = std::nanf(""); // key 0
                const auto keep = random_numbers(static_cast<std::size_t>(pairs), 7);
                auto out = random_numbers(static_cast<std::size_t>(pairs * width), 8);
                const auto before = out;
                kernels.add({p.data(), values.data(), stride, 1, 30, keep.data(), out.data(), width}, pairs);
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
