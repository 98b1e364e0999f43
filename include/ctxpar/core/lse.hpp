// Log-sum-exp values that carry their base in their type.
//
//   natural   log   sum_j exp(s_j)
//   binary    log2  sum_j 2^(s_j * log2 e)   = natural * log2 e
//
// Mixing the two silently gives wrong softmax weights, so no conversion is implicit: use to_natural and to_binary. An
// empty set of keys has LSE -inf in either base; no finite number stands for it.
#pragma once

#include <type_traits>

#include <ctxpar/core/bits.hpp>
#include <ctxpar/core/config.hpp>

namespace ctxpar::inline v0_1 {

enum class lse_base { natural, binary };

inline constexpr float log2_e = 1.4426950408889634F;
inline constexpr float ln_2 = 0.6931471805599453F;

// One fp32 LSE. Same size and layout as a float, so an array of them is an engine's LSE buffer.
template <lse_base Base>
struct lse {
    static constexpr lse_base base = Base;
    float value = -float_infinity;
};

using natural_lse = lse<lse_base::natural>;
using binary_lse = lse<lse_base::binary>;

static_assert(sizeof(natural_lse) == sizeof(float) && std::is_trivially_copyable_v<natural_lse>);

CTXPAR_HD constexpr natural_lse to_natural(natural_lse value) {
    return value;
}
CTXPAR_HD constexpr natural_lse to_natural(binary_lse value) {
    return {value.value * ln_2};
}
CTXPAR_HD constexpr binary_lse to_binary(binary_lse value) {
    return value;
}
CTXPAR_HD constexpr binary_lse to_binary(natural_lse value) {
    return {value.value * log2_e};
}

// `value` in base To.
template <lse_base To, lse_base From>
CTXPAR_HD constexpr lse<To> lse_cast(lse<From> value) {
    if constexpr (To == lse_base::natural) {
        return to_natural(value);
    } else {
        return to_binary(value);
    }
}

} // namespace ctxpar::inline v0_1
