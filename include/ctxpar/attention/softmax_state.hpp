// The softmax state: what has been seen of a softmax, and the one exact way to put two or more of them together.
//
// A set of keys with scores s_j gives LSE = log sum_j exp(s_j) and O = sum_j exp(s_j) v_j / exp(LSE). For disjoint
// sets i the whole is (with M = max_i LSE_i, a_i = exp(LSE_i - M)):
//
//   O = sum_i a_i O_i / sum_i a_i          LSE = M + log sum_i a_i
//
// This is associative and commutative with identity (O, LSE) = (0, -inf), whatever the sets are: splits inside a
// kernel, chunks of a workspace, ranks of a group, a shared prefix. In base 2 exp and log are exp2 and log2.
//
// Rules for one row and head (a part is one (O_i, LSE_i)):
//   1. A part of length 0, or with LSE -inf, has weight 0 and its payload is never read (NaN * 0 is NaN).
//   2. If no part has weight: O = 0, LSE = -inf.
//   3. NaN or +inf as the LSE of a part whose length is not 0 makes O and LSE NaN: a broken kernel stays visible.
//   4. Otherwise the weighted mean above, the largest LSE subtracted first, in fp32, in the order of the parts.
//   5. A sink is a logit that joins the denominator once and carries no value; -inf is no sink, NaN or +inf gives NaN.
//
// The tests for NaN and infinities look at bits, so that a program built with -ffast-math keeps these rules.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ctxpar/core/bits.hpp>
#include <ctxpar/core/config.hpp>
#include <ctxpar/core/lse.hpp>

namespace ctxpar::inline v0_1 {

CTXPAR_HD constexpr bool is_minus_infinity(float value) {
    return bits_as<std::uint32_t>(value) == 0xff800000U;
}

// NaN of either sign, or +inf.
CTXPAR_HD constexpr bool is_nan_or_plus_infinity(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    return bits == 0x7f800000U || (bits & 0x7fffffffU) > 0x7f800000U;
}

// exp and log in the base of an LSE.
template <lse_base Base>
CTXPAR_HD inline float exp_in(float exponent) {
    if constexpr (Base == lse_base::natural) {
        return std::exp(exponent);
    } else {
        return std::exp2(exponent);
    }
}
template <lse_base Base>
CTXPAR_HD inline float log_in(float value) {
    if constexpr (Base == lse_base::natural) {
        return std::log(value);
    } else {
        return std::log2(value);
    }
}

// The weights of N parts and of an optional sink, for one (row, head). Use: see() every part, then add() every part in
// the same order, then weight() of each part and result(). A part counts as empty by its length, by rule 1.
template <lse_base Base>
class merge_weights {
public:
    // First pass: the largest LSE.
    CTXPAR_HD void see(lse<Base> part, bool empty = false) {
        if (empty || is_minus_infinity(part.value)) return;
        if (is_nan_or_plus_infinity(part.value)) broken_ = true;
        if (!any_ || part.value > max_) max_ = part.value;
        any_ = true;
    }
    CTXPAR_HD void see_sink(float logit) { see(lse<Base>{logit}); }

    // Second pass: the denominator, in the order of the calls.
    CTXPAR_HD void add(lse<Base> part, bool empty = false) {
        if (has_weight(part, empty)) sum_ += exp_in<Base>(part.value - max_);
    }
    CTXPAR_HD void add_sink(float logit) { add(lse<Base>{logit}); }

    // Whether the payload of this part may be read at all.
    CTXPAR_HD bool has_weight(lse<Base> part, bool empty = false) const {
        return !empty && !is_minus_infinity(part.value);
    }

    // The share of this part in the mean: 0 for an empty one, NaN for all others where some LSE is broken.
    CTXPAR_HD float weight(lse<Base> part, bool empty = false) const {
        if (!has_weight(part, empty)) return 0.0F;
        return broken_ ? float_nan : exp_in<Base>(part.value - max_) / sum_;
    }

    // Whether some live part or the sink had a NaN or +inf LSE: the whole result is then NaN.
    CTXPAR_HD bool broken() const { return broken_; }

    // The merged LSE, the sink included.
    CTXPAR_HD lse<Base> result() const {
        if (broken_) return {float_nan};
        if (!any_) return {};
        return {max_ + log_in<Base>(sum_)};
    }

private:
    float max_ = 0.0F;
    float sum_ = 0.0F;
    bool any_ = false;
    bool broken_ = false;
};

// A merged state that grows part by part, without limit: an LSE that is rounded at every step would walk away from the
// true one, so its rounding error is kept beside it. The value is high + low.
template <lse_base Base>
struct growing_lse {
    float high = -float_infinity;
    float low = 0.0F;

    // The factors for the outputs so far and for those of the part; an output with factor 0 must not be read, and NaN
    // makes all outputs NaN. The same rules as for merge_weights.
    struct factors {
        float own;
        float part;
    };

    // Takes one more part in.
    CTXPAR_HD factors add(lse<Base> part, bool empty = false) {
        if (empty || is_minus_infinity(part.value)) return {1.0F, 0.0F};
        if (is_nan_or_plus_infinity(part.value) || is_nan_or_plus_infinity(high)) {
            high = float_nan;
            return {float_nan, float_nan};
        }
        if (is_minus_infinity(high)) {
            high = part.value;
            return {0.0F, 1.0F};
        }
        constexpr float unit = Base == lse_base::natural ? 1.0F : log2_e; // of one nat, in this base
        const float tiny = low / unit;                                    // exp(low) - 1
        const float own = exp_in<Base>(high < part.value ? high - part.value : 0.0F) * (1.0F + tiny);
        const float other = exp_in<Base>(part.value < high ? part.value - high : 0.0F);
        const float largest = high < part.value ? part.value : high;
        const float more = high < part.value ? own : other + tiny; // the sum over the largest, less 1
        grow(largest, std::log1p(more) * unit);
        return {own / (own + other), other / (own + other)};
    }

    CTXPAR_HD lse<Base> result() const { return {is_minus_infinity(high) ? high : high + low}; }

private:
    // high + low = a + b, to the last bit.
    CTXPAR_HD void grow(float a, float b) {
        high = a + b;
        const float seen = high - a;
        low = (a - (high - seen)) + (b - seen);
    }
};

// A softmax that is being built: the largest score and sum_j exp(s_j - max). The caller keeps the weighted values, and
// multiplies them by what raise() and absorb() tell.
template <lse_base Base>
struct softmax_state {
    float max = -float_infinity;
    float sum = 0.0F;

    // The empty state; merging with it changes nothing.
    CTXPAR_HD static constexpr softmax_state identity() { return {}; }

    // Makes `score` the reference if it is larger; returns the factor for what was gathered so far.
    CTXPAR_HD float raise(float score) {
        if (!(score > max)) return 1.0F;
        const float factor = is_minus_infinity(max) ? 0.0F : exp_in<Base>(max - score);
        max = score;
        sum *= factor;
        return factor;
    }

    // Adds one score, at most `max`; returns the weight of its value.
    CTXPAR_HD float add(float score) {
        if (is_minus_infinity(score)) return 0.0F;
        const float weight = exp_in<Base>(score - max);
        sum += weight;
        return weight;
    }

    // The factors for this state's values and for the other's when the two become one.
    struct factors {
        float own;
        float other;
    };

    // Merges `other` into this state.
    CTXPAR_HD factors merge(const softmax_state& other) {
        if (is_minus_infinity(other.max) && !(other.sum != other.sum)) return {1.0F, 0.0F};
        const float own = raise(other.max);
        const float theirs = other.max == max ? 1.0F : exp_in<Base>(other.max - max);
        sum += other.sum * theirs;
        return {own, theirs};
    }

    // log sum_j exp(s_j). The values gathered so far, divided by `sum`, are O; the empty state has O = 0.
    CTXPAR_HD lse<Base> finish() const {
        if (is_minus_infinity(max) && sum == 0.0F) return {};
        return {max + log_in<Base>(sum)};
    }
};

static_assert(std::is_trivially_copyable_v<softmax_state<lse_base::natural>>);

} // namespace ctxpar::inline v0_1
