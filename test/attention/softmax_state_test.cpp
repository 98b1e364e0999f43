// The exact merge of partial softmax states, and the state of a softmax that is being built, against double.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <support/plain_merge.hpp>

#include <ctxpar/attention/softmax_state.hpp>

using namespace ctxpar;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

template <lse_base Base>
constexpr plain::base plain_base = Base == lse_base::natural ? plain::base::e : plain::base::two;

struct part {
    float lse = -inf;
    bool empty = false;
};

// The LSE and the weights of parts by the library.
template <lse_base Base>
std::pair<float, std::vector<float>> merge(const std::vector<part>& parts, std::optional<double> sink = std::nullopt) {
    merge_weights<Base> weights;
    for (const part& p : parts) weights.see({p.lse}, p.empty);
    if (sink) weights.see_sink(static_cast<float>(*sink));
    for (const part& p : parts) weights.add({p.lse}, p.empty);
    if (sink) weights.add_sink(static_cast<float>(*sink));
    std::vector<float> list;
    for (const part& p : parts) list.push_back(weights.weight({p.lse}, p.empty));
    return {weights.result().value, list};
}

// Weights by the definition: part i's is what the merge makes of payload 1 in part i and 0 elsewhere.
template <lse_base Base>
plain::merged merge_plainly(const std::vector<part>& parts, std::optional<double> sink = std::nullopt) {
    std::vector<plain::part> list;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        list.push_back({std::vector<double>(parts.size(), 0.0), parts[i].lse, parts[i].empty});
        list.back().out[i] = 1;
    }
    return plain::merge(list, parts.size(), plain_base<Base>, sink);
}

// Whether the library agrees with the definition: the LSE to its bound, weights to 1e-6 of the whole, and small ones to
// 1e-5 of themselves, since the difference of two fp32 LSEs is rounded.
template <lse_base Base>
bool agrees(const std::vector<part>& parts, std::optional<double> sink = std::nullopt) {
    const auto [lse, weights] = merge<Base>(parts, sink);
    const plain::merged expected = merge_plainly<Base>(parts, sink);
    bool same = plain::near_lse(lse, expected.lse);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool weightless = parts[i].empty || parts[i].lse == -inf;
        same = same && plain::near(weights[i], weightless ? 0.0 : expected.out[i],
                                   std::min(1e-6, 1e-5 * expected.out[i] + 1e-30));
    }
    return same;
}

template <lse_base Base>
std::vector<part> random_parts(std::mt19937& random, std::size_t count, float spread, float offset) {
    std::normal_distribution<float> normal;
    std::vector<part> parts(count);
    for (part& p : parts) {
        p.lse = offset + spread * normal(random);
        if (random() % 5 == 0) p.lse = -inf;
        if (random() % 5 == 0) p.empty = true;
        if (p.empty && random() % 2 == 0) p.lse = random() % 2 == 0 ? inf : quiet_nan;
    }
    return parts;
}

} // namespace

TEST_CASE_TEMPLATE("The weights and the LSE of parts are those of the definition", Tag, natural_lse, binary_lse) {
    constexpr lse_base base = Tag::base;
    std::mt19937 random(1);
    int wrong = 0;
    for (const std::size_t count : {1U, 2U, 3U, 4U, 8U, 64U}) {
        for (const float spread : {0.0F, 1.0F, 5.0F, 40.0F}) {
            for (const float offset : {0.0F, -30.0F, 1e4F, -1e4F, -60000.0F}) {
                for (int round = 0; round < 20; ++round) {
                    const auto parts = random_parts<base>(random, count, spread, offset);
                    wrong += agrees<base>(parts) ? 0 : 1;
                    wrong += agrees<base>(parts, offset + spread) ? 0 : 1;
                    wrong += agrees<base>(parts, -inf) ? 0 : 1;
                }
            }
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("Every example of the merge law comes out", Tag, natural_lse, binary_lse) {
    constexpr lse_base base = Tag::base;
    for (const plain::example& one : plain::examples()) {
        if (one.b != plain_base<base>) continue;
        CAPTURE(one.name);
        std::vector<part> parts;
        for (std::size_t i = 0; i < one.lse.size(); ++i)
            parts.push_back({static_cast<float>(one.lse[i]), one.empty(i)});
        const auto [lse, weights] = merge<base>(parts, one.sink);
        CHECK(plain::near_lse(lse, one.merged_lse));
        for (std::size_t d = 0; d < one.width(); ++d) {
            float sum = 0;
            for (std::size_t i = 0; i < parts.size(); ++i)
                if (!(parts[i].empty || parts[i].lse == -inf)) sum += weights[i] * static_cast<float>(one.out[i][d]);
            CHECK(plain::near(sum, one.merged_out[d], 2e-6 * std::fabs(one.merged_out[d])));
        }
        // The example and the reference of the other tests say the same.
        const plain::merged expected = plain::merge(one.parts(), one.width(), one.b, one.sink);
        CHECK(plain::near(expected.lse, one.merged_lse, 1e-6 + 1e-8 * std::fabs(one.merged_lse)));
        for (std::size_t d = 0; d < one.width(); ++d)
            CHECK(plain::near(expected.out[d], one.merged_out[d], 2e-6 * std::fabs(one.merged_out[d])));
    }
}

TEST_CASE("The order of the parts changes nothing beyond rounding") {
    const std::vector<part> parts = {{0.3F}, {-1.7F}, {-inf}, {2.25F}, {inf, true}};
    std::vector<std::size_t> order = {0, 1, 2, 3, 4};
    const auto [lse, weights] = merge<lse_base::natural>(parts, 0.5F);
    do {
        std::vector<part> shuffled;
        for (const std::size_t i : order) shuffled.push_back(parts[i]);
        const auto [other_lse, other_weights] = merge<lse_base::natural>(shuffled, 0.5F);
        CHECK(std::fabs(other_lse - lse) <= 1e-6F);
        for (std::size_t i = 0; i < order.size(); ++i) CHECK(std::fabs(other_weights[i] - weights[order[i]]) <= 1e-6F);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("A single part with weight has weight 1 and keeps the bits of its LSE, whatever stands beside it") {
    for (const float lse : {0.1F, -3.7F, 1e4F, -1e4F, 1e-30F}) {
        for (const std::vector<part>& parts :
             {std::vector<part>{{lse}}, {{lse}, {-inf}, {quiet_nan, true}}, {{inf, true}, {-inf}, {lse}}}) {
            const auto [merged, weights] = merge<lse_base::natural>(parts);
            CHECK(std::bit_cast<std::uint32_t>(merged) == std::bit_cast<std::uint32_t>(lse));
            CHECK(*std::max_element(weights.begin(), weights.end()) == 1.0F);
            CHECK(std::accumulate(weights.begin(), weights.end(), 0.0F) == 1.0F);
        }
    }
}

TEST_CASE("NaN and infinities are told by their bits") {
    for (const float value : {0.0F, -0.0F, 1.0F, -3e38F, 3e38F, 1e-45F}) {
        CHECK_FALSE(is_minus_infinity(value));
        CHECK_FALSE(is_nan_or_plus_infinity(value));
    }
    CHECK(is_minus_infinity(-inf));
    CHECK_FALSE(is_minus_infinity(inf));
    CHECK_FALSE(is_nan_or_plus_infinity(-inf));
    for (const std::uint32_t bits : {0x7f800000U, 0x7f800001U, 0x7fffffffU, 0x7fc00000U, 0xff800001U, 0xffffffffU}) {
        CHECK(is_nan_or_plus_infinity(std::bit_cast<float>(bits)));
        CHECK_FALSE(is_minus_infinity(std::bit_cast<float>(bits)));
    }
}

TEST_CASE("Merging the LSEs of two bases needs a conversion, and the converted one merges to the same") {
    const std::vector<part> parts = {{0.3F}, {-1.7F}, {2.25F}};
    std::vector<part> converted;
    for (const part& p : parts) converted.push_back({to_binary(natural_lse{p.lse}).value});
    const auto [natural, weights] = merge<lse_base::natural>(parts);
    const auto [binary, binary_weights] = merge<lse_base::binary>(converted);
    CHECK(std::fabs(to_natural(binary_lse{binary}).value - natural) <= 1e-6F);
    for (std::size_t i = 0; i < parts.size(); ++i) CHECK(std::fabs(weights[i] - binary_weights[i]) <= 1e-6F);
    // Base-2 numbers that are taken for natural ones give other weights: old against new keys of equal scores.
    const auto right = merge<lse_base::binary>({{std::log2(3072.0F)}, {std::log2(64.0F)}}).second;
    const auto wrong = merge<lse_base::natural>({{std::log2(3072.0F)}, {std::log2(64.0F)}}).second;
    CHECK(plain::near(right[1], 0.020408163, 1e-7));
    CHECK(plain::near(wrong[1], 0.003739852, 1e-7));
}

TEST_CASE("A later merge goes on where an earlier one ended") {
    // (0, ln 2) and (10, ln 8), then (4, ln 10); in base 2: (0, 1) and (10, 3), then (4, log2 10).
    const auto step = [](auto state, float value, float lse) {
        using type = decltype(state.second);
        const auto [merged, weights] = merge<type::base>({{state.second.value}, {lse}});
        return std::pair(weights[0] * state.first + weights[1] * value, type{merged});
    };
    const auto natural =
        step(step(std::pair(0.0F, natural_lse{std::log(2.0F)}), 10, std::log(8.0F)), 4, std::log(10.0F));
    CHECK(plain::near(natural.first, 6, 6e-6));
    CHECK(plain::near(natural.second.value, 2.995732, 2e-6));
    const auto binary = step(step(std::pair(0.0F, binary_lse{1}), 10, 3), 4, std::log2(10.0F));
    CHECK(plain::near(binary.first, 6, 6e-6));
    CHECK(plain::near(binary.second.value, 4.321928, 2e-6));
}
