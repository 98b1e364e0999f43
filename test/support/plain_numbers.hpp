// The numbers that storage types stand for, in double, from the definition of their formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <ctxpar/core/numeric.hpp>

namespace plain {

struct format {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity;
};

template <class T>
constexpr format format_of() {
    if constexpr (std::is_same_v<T, ctxpar::bf16>) {
        return {8, 7, true};
    } else if constexpr (std::is_same_v<T, ctxpar::f16>) {
        return {5, 10, true};
    } else if constexpr (std::is_same_v<T, ctxpar::fp8_e4m3>) {
        return {4, 3, false};
    } else if constexpr (std::is_same_v<T, ctxpar::fp8_e5m2>) {
        return {5, 2, true};
    } else {
        return {8, 23, true};
    }
}

// The number of a bit pattern.
template <class T>
double number_of_bits(int bits) {
    constexpr format f = format_of<T>();
    const double sign = (bits >> (f.exponent_bits + f.mantissa_bits) & 1) != 0 ? -1 : 1;
    const int exponent = bits >> f.mantissa_bits & ((1 << f.exponent_bits) - 1);
    const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
    const int top = (1 << f.exponent_bits) - 1;
    const int bias = top / 2;
    if (exponent == top && f.has_infinity)
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    if (exponent == top && mantissa == (1 << f.mantissa_bits) - 1) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

inline double number(float value) {
    return value;
}
template <class T>
double number(T value) {
    static const std::vector<double> all = [] {
        std::vector<double> numbers;
        for (int bits = 0; bits < 1 << (8 * sizeof(T)); ++bits) numbers.push_back(number_of_bits<T>(bits));
        return numbers;
    }();
    return all[value.bits];
}

// The largest number of a type, and how far rounding to nearest may move `value`.
template <class T>
double largest() {
    constexpr format f = format_of<T>();
    const int top = (1 << f.exponent_bits) - 1;
    const double mantissa =
        f.has_infinity ? 2 - std::ldexp(1, -f.mantissa_bits) : 2 - std::ldexp(1, 1 - f.mantissa_bits);
    return std::ldexp(mantissa, (f.has_infinity ? top - 1 : top) - top / 2);
}
template <class T>
double half_ulp(double value) {
    constexpr format f = format_of<T>();
    const int lowest = 2 - (1 << (f.exponent_bits - 1)); // exponent of the smallest normal number
    const int exponent = value == 0 ? lowest : std::max(std::ilogb(value), lowest);
    return std::ldexp(1, exponent - f.mantissa_bits - 1);
}

} // namespace plain
