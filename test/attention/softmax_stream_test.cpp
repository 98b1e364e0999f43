// Softmax states that are built score by score, split anywhere and merged, against a softmax in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <support/plain_merge.hpp>

#include <ctxpar/attention/softmax_state.hpp>

using namespace ctxpar;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// A state with the weighted values of one column.
template <lse_base Base>
struct column {
    softmax_state<Base> state;
    float sum = 0;

    void take(float score, float value) {
        sum *= state.raise(score);
        const float weight = state.add(score);
        if (weight > 0 || std::isnan(weight)) sum += weight * value;
    }
    void merge(const column& other) {
        const auto factor = state.merge(other.state);
        sum = factor.own * sum + factor.other * other.sum;
    }
    float lse() const { return state.finish().value; }
    float out() const { return lse() == -inf ? 0.0F : sum / state.sum; }
};

using stream = std::vector<std::pair<float, float>>; // scores and values

template <lse_base Base>
column<Base> gathered(const stream& scores, std::size_t first, std::size_t last) {
    column<Base> all;
    for (std::size_t i = first; i < last; ++i) all.take(scores[i].first, scores[i].second);
    return all;
}

template <lse_base Base>
plain::merged plainly(const stream& scores) {
    std::vector<plain::part> parts; // a key is a part of one key
    for (const auto& [score, value] : scores) parts.push_back({{value}, score, false});
    return plain::merge(parts, 1, Base == lse_base::natural ? plain::base::e : plain::base::two);
}

template <lse_base Base>
bool agrees(const column<Base>& state, const plain::merged& expected) {
    return plain::near_lse(state.lse(), expected.lse) && plain::near(state.out(), expected.out[0], 2e-6);
}

enum class shape { random, rising, falling, equal, one_huge, all_nothing, some_nothing };

// Values are at most 1 in size, so that an error of O is one of its weights.
stream make_stream(std::mt19937& random, shape kind, std::size_t count, float offset) {
    std::normal_distribution<float> normal(0, 3);
    std::uniform_real_distribution<float> value(-1, 1);
    stream scores;
    for (std::size_t i = 0; i < count; ++i) {
        float score = offset + (kind == shape::equal ? 0.0F : normal(random));
        if (kind == shape::all_nothing || (kind == shape::some_nothing && random() % 2 == 0)) score = -inf;
        scores.emplace_back(score, value(random));
    }
    if (kind == shape::one_huge && count > 0) scores[random() % count].first = offset + 200;
    if (kind == shape::rising) std::sort(scores.begin(), scores.end());
    if (kind == shape::falling) std::sort(scores.rbegin(), scores.rend());
    return scores;
}

template <class Body>
void for_each_stream(Body body) {
    std::mt19937 random(2);
    for (const shape kind : {shape::random, shape::rising, shape::falling, shape::equal, shape::one_huge,
                             shape::all_nothing, shape::some_nothing})
        for (const std::size_t count : {0U, 1U, 2U, 7U, 100U})
            for (const float offset : {0.0F, 1e4F, -1e4F}) body(make_stream(random, kind, count, offset), random);
}

} // namespace

TEST_CASE_TEMPLATE("A softmax built score by score is the softmax of all scores", Tag, natural_lse, binary_lse) {
    for_each_stream([](const stream& scores, std::mt19937&) {
        const auto state = gathered<Tag::base>(scores, 0, scores.size());
        CHECK(agrees(state, plainly<Tag::base>(scores)));
    });
}

TEST_CASE_TEMPLATE("States of any split of the keys merge to the whole, in any order and grouping", Tag, natural_lse,
                   binary_lse) {
    constexpr lse_base base = Tag::base;
    for_each_stream([](const stream& scores, std::mt19937& random) {
        std::size_t cut[2] = {random() % (scores.size() + 1), random() % (scores.size() + 1)};
        if (cut[0] > cut[1]) std::swap(cut[0], cut[1]);
        const column<base> part[3] = {gathered<base>(scores, 0, cut[0]), gathered<base>(scores, cut[0], cut[1]),
                                      gathered<base>(scores, cut[1], scores.size())};
        const plain::merged whole = plainly<base>(scores);
        int order[3] = {0, 1, 2};
        do {
            column<base> left = part[order[0]]; // (a b) c
            left.merge(part[order[1]]);
            left.merge(part[order[2]]);
            column<base> tail = part[order[1]]; // a (b c)
            tail.merge(part[order[2]]);
            column<base> right = part[order[0]];
            right.merge(tail);
            CHECK(agrees(left, whole));
            CHECK(agrees(right, whole));
        } while (std::next_permutation(order, order + 3));
    });
}

TEST_CASE_TEMPLATE("Merging with the empty state changes no bit, from either side", Tag, natural_lse, binary_lse) {
    using state_type = softmax_state<Tag::base>;
    const auto bits = [](const state_type& state) {
        return std::pair(std::bit_cast<std::uint32_t>(state.max), std::bit_cast<std::uint32_t>(state.sum));
    };
    CHECK(state_type::identity().finish().value == -inf);
    for (const float max : {-inf, -1e4F, -0.7F, 0.0F, 3.1F, 1e4F}) {
        const state_type state{max, max == -inf ? 0.0F : 2.7F};
        state_type right = state;
        const auto kept = right.merge(state_type::identity());
        CHECK(bits(right) == bits(state));
        CHECK(kept.own == 1.0F);
        CHECK(kept.other == 0.0F);
        state_type left = state_type::identity();
        const auto taken = left.merge(state);
        CHECK(bits(left) == bits(state));
        if (max != -inf) CHECK(taken.other == 1.0F);
    }
}

TEST_CASE("raise() rescales only where the score is larger") {
    softmax_state<lse_base::natural> state{1.0F, 2.0F};
    CHECK(state.raise(0.5F) == 1.0F);
    CHECK(state.raise(1.0F) == 1.0F);
    CHECK(state.sum == 2.0F);
    CHECK(plain::near(state.raise(3.0F), std::exp(-2.0), 1e-7));
    CHECK(state.max == 3.0F);
    CHECK(plain::near(state.sum, 2 * std::exp(-2.0), 1e-7));
    CHECK(state.add(-inf) == 0.0F);
    CHECK(state.add(3.0F) == 1.0F);
    softmax_state<lse_base::binary> binary;
    CHECK(binary.raise(-5.0F) == 0.0F); // what an empty state gathered is nothing
    CHECK(binary.raise(-3.0F) == 0.25F);
}

TEST_CASE("A broken score stays visible through later scores and merges") {
    using column_type = column<lse_base::natural>;
    const stream sound = {{0.5F, 1.0F}, {2.0F, -1.0F}};
    for (const float broken : {std::numeric_limits<float>::quiet_NaN(), inf}) {
        for (std::size_t at = 0; at <= sound.size(); ++at) {
            stream scores = sound;
            scores.insert(scores.begin() + static_cast<std::ptrdiff_t>(at), {broken, 1.0F});
            const auto state = gathered<lse_base::natural>(scores, 0, scores.size());
            CHECK(std::isnan(state.lse()));
            CHECK(std::isnan(state.out()));
        }
        column_type bad;
        bad.take(broken, 1.0F);
        for (const stream& beside : {sound, stream{}}) {
            column_type left = gathered<lse_base::natural>(beside, 0, beside.size());
            column_type right = bad;
            right.merge(left);
            left.merge(bad);
            CHECK(std::isnan(left.lse()));
            CHECK(std::isnan(right.lse()));
            CHECK(std::isnan(left.out()));
            CHECK(std::isnan(right.out()));
        }
    }
}
