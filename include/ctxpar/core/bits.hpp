// Floats as bits, and the floats that are no numbers, on host and device: the standard library's functions for these
// are host functions to a CUDA compiler.
#pragma once

#include <limits>
#include <type_traits>

#include <ctxpar/core/config.hpp>

namespace ctxpar::inline v0_1 {

// The object representation of `value` as a To of the same size.
template <class To, class From>
CTXPAR_HD constexpr To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<To> && std::is_trivially_copyable_v<From>,
                  "ctxpar::bits_as needs two trivially copyable types of one size");
    return __builtin_bit_cast(To, value);
}

inline constexpr float float_infinity = std::numeric_limits<float>::infinity();
inline constexpr float float_nan = std::numeric_limits<float>::quiet_NaN();

} // namespace ctxpar::inline v0_1
