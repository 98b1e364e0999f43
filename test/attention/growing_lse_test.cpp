// A state that grows part by part: however many parts, its LSE and its weights stay those of all at once.
#include <ctxpar/attention/softmax_state.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace ctxpar;

namespace {

template <lse_base Base>
double power(double exponent) {
    return Base == lse_base::natural ? std::exp(exponent) : std::exp2(exponent);
}
template <lse_base Base>
double logarithm(double value) {
    return Base == lse_base::natural ? std::log(value) : std::log2(value);
}

struct grown {
    double lse = 0, due_lse = 0;
    double out = 0, due_out = 0;
};

// Parts with LSEs around `level` and outputs in [0, 1), one after another and at once in double.
template <lse_base Base>
grown grow(int parts, float level, float spread, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> unit;
    growing_lse<Base> state;
    float out = 0.0F;
    double weights = 0, sum = 0;
    for (int i = 0; i < parts; ++i) {
        const float lse_value = level + spread * (2.0F * unit(random) - 1.0F);
        const float value = unit(random);
        const auto factor = state.add(lse<Base>{lse_value});
        out = (factor.own == 0.0F ? 0.0F : factor.own * out) + factor.part * value;
        weights += power<Base>(double{lse_value} - double{level});
        sum += power<Base>(double{lse_value} - double{level}) * double{value};
    }
    return {double{state.result().value}, double{level} + logarithm<Base>(weights), double{out}, sum / weights};
}

// Two units in the last place of an LSE, or 2e-6.
double bound_of(double lse_value) {
    return std::max(2e-6, 2.0 * std::ldexp(1.0, std::ilogb(lse_value == 0 ? 1.0 : lse_value) - 23));
}

template <lse_base Base>
void check_growth() {
    for (const int parts : {1, 2, 15, 32, 252, 4000}) {
        for (const float level : {-3.0F, 0.1F, 7.7F, 30.0F, -800.0F}) {
            for (const float spread : {0.0F, 1.0F, 6.0F}) {
                const grown got = grow<Base>(parts, level, spread, static_cast<std::uint32_t>(parts));
                INFO(parts, " parts around ", level, " by ", spread);
                CHECK(std::fabs(got.lse - got.due_lse) <= bound_of(got.due_lse));
                CHECK(std::fabs(got.out - got.due_out) <= (parts > 1000 ? 5e-6 : 2e-6));
            }
        }
    }
}

} // namespace

TEST_CASE("an LSE does not walk away, however many parts it grows by") {
    check_growth<lse_base::natural>();
    check_growth<lse_base::binary>();
}

TEST_CASE("an LSE that is rounded at every step would") {
    float plain = -float_infinity;
    double all = 0;
    for (int i = 0; i < 4000; ++i) {
        const float part = 9.3F + 0.001F * static_cast<float>(i % 13);
        const float largest = std::max(plain, part);
        plain = largest + std::log(std::exp(plain - largest) + std::exp(part - largest));
        all += std::exp(double{part});
    }
    CHECK(std::fabs(double{plain} - std::log(all)) > bound_of(std::log(all)));
}

TEST_CASE("empty parts change nothing, the first one is taken as it is") {
    growing_lse<lse_base::natural> state;
    auto factor = state.add({float_nan}, true);
    CHECK((factor.own == 1.0F && factor.part == 0.0F));
    factor = state.add({-float_infinity});
    CHECK((factor.own == 1.0F && factor.part == 0.0F));
    CHECK(is_minus_infinity(state.result().value));
    factor = state.add({4.25F});
    CHECK((factor.own == 0.0F && factor.part == 1.0F));
    CHECK(state.result().value == 4.25F);
    factor = state.add({-float_infinity});
    CHECK((factor.own == 1.0F && factor.part == 0.0F));
    CHECK(state.result().value == 4.25F);
}

TEST_CASE("a broken LSE stays visible, whatever comes after it") {
    for (const float broken : {float_nan, float_infinity}) {
        growing_lse<lse_base::natural> state;
        state.add({1.0F});
        auto factor = state.add({broken});
        CHECK((factor.own != factor.own && factor.part != factor.part));
        factor = state.add({2.0F});
        CHECK(factor.own != factor.own);
        CHECK(state.result().value != state.result().value);
    }
    growing_lse<lse_base::natural> first;
    const auto factor = first.add({float_infinity});
    CHECK(factor.part != factor.part);
    CHECK(first.result().value != first.result().value);
}

TEST_CASE("two parts grow as a merge of two would have them") {
    const float lses[] = {1.0F, 2.0F};
    growing_lse<lse_base::natural> state;
    state.add({lses[0]});
    const auto factor = state.add({lses[1]});
    merge_weights<lse_base::natural> weights;
    for (const float each : lses) weights.see({each});
    for (const float each : lses) weights.add({each});
    CHECK(factor.own == doctest::Approx(weights.weight({lses[0]})).epsilon(1e-6));
    CHECK(factor.part == doctest::Approx(weights.weight({lses[1]})).epsilon(1e-6));
    CHECK(state.result().value == doctest::Approx(weights.result().value).epsilon(1e-6));
}
