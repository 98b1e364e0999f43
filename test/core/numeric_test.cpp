// Small floating point formats against their definition in double arithmetic, and rounding against a search over all
// values a format has.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/numeric.hpp>

namespace {

using ctxpar::bf16;
using ctxpar::f16;
using ctxpar::fp8_e4m3;
using ctxpar::fp8_e5m2;

// The formats as their specifications state them.
struct format {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity;
    bool saturates;
    double largest;
    double smallest; // subnormal
};

template <class T>
format format_of();
template <>
format format_of<bf16>() {
    return {8, 7, true, false, 0x1.fep127, 0x1p-133};
}
template <>
format format_of<f16>() {
    return {5, 10, true, false, 65504, 0x1p-24};
}
template <>
format format_of<fp8_e4m3>() {
    return {4, 3, false, true, 448, 0x1p-9};
}
template <>
format format_of<fp8_e5m2>() {
    return {5, 2, true, true, 57344, 0x1p-16};
}

// The value of a pattern by the definition of the format; NaN and infinities as double has them.
double value_of(const format& f, unsigned bits) {
    const int sign_place = f.exponent_bits + f.mantissa_bits;
    const double sign = (bits >> sign_place) & 1u ? -1 : 1;
    const int exponent = static_cast<int>(bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
    const int mantissa = static_cast<int>(bits) & ((1 << f.mantissa_bits) - 1);
    const int top = (1 << f.exponent_bits) - 1;
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    if (exponent == top && f.has_infinity)
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    if (exponent == top && mantissa == (1 << f.mantissa_bits) - 1) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

template <class T>
constexpr unsigned patterns = 1u << (8 * sizeof(T));

template <class T>
T pattern(unsigned bits) {
    return T::from_bits(static_cast<decltype(T::bits)>(bits));
}

// The rounding rule by double arithmetic: the multiple of the last place that is nearest, ties to even.
double rounded(const format& f, float value) {
    if (std::isnan(value)) return std::nan("");
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const double size = std::fabs(static_cast<double>(value));
    double result = size;
    if (std::isfinite(value) && size > 0) {
        const int place = std::max(std::ilogb(size), 1 - bias) - f.mantissa_bits;
        result = std::ldexp(std::nearbyint(std::ldexp(size, -place)), place);
    }
    if (result > f.largest) result = f.saturates ? f.largest : std::numeric_limits<double>::infinity();
    return std::copysign(result, static_cast<double>(value));
}

bool same(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return a == b && std::signbit(a) == std::signbit(b);
}

// A stored number is the right one: rounded() of the value, and for NaN a NaN of the same sign.
template <class T>
bool stores(float value) {
    const T stored{value};
    if (!same(value_of(format_of<T>(), stored.bits), rounded(format_of<T>(), value))) return false;
    return ((stored.bits & T::sign_mask) != 0) == std::signbit(value);
}

// All numbers >= 0 that the format has, ascending.
template <class T>
std::vector<double> numbers() {
    std::vector<double> all;
    for (unsigned bits = 0; bits < patterns<T> / 2; ++bits)
        if (std::isfinite(value_of(format_of<T>(), bits))) all.push_back(value_of(format_of<T>(), bits));
    return all;
}

std::uint64_t next_random(std::uint64_t& state) { // splitmix64
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

constexpr float infinity = std::numeric_limits<float>::infinity();

} // namespace

#define FORMATS bf16, f16, fp8_e4m3, fp8_e5m2

TEST_CASE_TEMPLATE("every pattern has the value its format defines", T, FORMATS) {
    unsigned wrong = 0;
    for (unsigned bits = 0; bits < patterns<T>; ++bits)
        wrong += !same(static_cast<float>(pattern<T>(bits)), value_of(format_of<T>(), bits));
    CHECK(wrong == 0);
    CHECK(static_cast<float>(pattern<T>(T::largest_bits)) == format_of<T>().largest);
    CHECK(static_cast<float>(pattern<T>(1)) == format_of<T>().smallest);
}

TEST_CASE_TEMPLATE("every number survives the way through float and back, and NaN stays a NaN of its sign", T,
                   FORMATS) {
    unsigned wrong = 0;
    for (unsigned bits = 0; bits < patterns<T>; ++bits) {
        const float value = static_cast<float>(pattern<T>(bits));
        const unsigned back = T{value}.bits;
        if (std::isnan(value)) {
            wrong += !std::isnan(value_of(format_of<T>(), back)) || (back & T::sign_mask) != (bits & T::sign_mask);
        } else if (std::isinf(value) && format_of<T>().saturates) {
            wrong += back != (T::largest_bits | (bits & T::sign_mask));
        } else {
            wrong += back != bits;
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("rounding takes the nearest of all numbers, and of two the one with an even pattern", T, FORMATS) {
    const std::vector<double> all = numbers<T>();
    unsigned wrong = 0;
    for (unsigned i = 0; i + 1 < all.size(); ++i) {
        const float middle = static_cast<float>(all[i] + (all[i + 1] - all[i]) / 2);
        REQUIRE(static_cast<double>(middle) == all[i] + (all[i + 1] - all[i]) / 2); // float holds every middle exactly
        for (const float sign : {1.0F, -1.0F}) {
            const unsigned sign_bit = sign < 0 ? T::sign_mask : 0u;
            wrong += T{sign * middle}.bits != (sign_bit | (i % 2 == 0 ? i : i + 1));
            wrong += T{sign * std::nextafter(middle, 0.0F)}.bits != (sign_bit | i);
            wrong += T{sign * std::nextafter(middle, infinity)}.bits != (sign_bit | (i + 1));
            wrong += !stores<T>(sign * middle); // the rule by arithmetic says the same
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("what is too large becomes infinity, or the largest number where the format saturates", T, FORMATS) {
    const format f = format_of<T>();
    const float largest = static_cast<float>(f.largest);
    const float unit = static_cast<float>(std::ldexp(1.0, std::ilogb(f.largest) - f.mantissa_bits));
    const float beyond = f.saturates ? largest : infinity;
    const auto through = [](float value) { return static_cast<float>(T{value}); };
    for (const float sign : {1.0F, -1.0F}) {
        CHECK(through(sign * largest) == sign * largest);
        CHECK(through(sign * std::nextafter(largest + unit / 2, 0.0F)) == sign * largest);
        CHECK(through(sign * (largest + unit / 2)) == sign * beyond); // a tie goes to the even pattern, which is beyond
        CHECK(through(sign * (largest + unit / 2 + unit / 4)) == sign * beyond);
        CHECK(through(sign * std::numeric_limits<float>::max()) == sign * beyond);
        CHECK(through(sign * infinity) == sign * beyond);
    }
}

TEST_CASE_TEMPLATE("zero keeps its sign and what is under half of the smallest number becomes zero", T, FORMATS) {
    CHECK(T{0.0F}.bits == 0);
    CHECK(T{-0.0F}.bits == T::sign_mask);
    CHECK(T{}.bits == 0);
    const float smallest = static_cast<float>(format_of<T>().smallest);
    CHECK(T{smallest}.bits == 1);
    CHECK(T{smallest / 2}.bits == 0);
    CHECK(T{-smallest / 2}.bits == T::sign_mask);
    CHECK(T{std::nextafter(smallest / 2, 1.0F)}.bits == 1);
    CHECK(T{smallest * 1.5F}.bits == 2);
    CHECK(T{std::numeric_limits<float>::denorm_min()}.bits == 0);
    CHECK(T{-std::numeric_limits<float>::denorm_min()}.bits == T::sign_mask);
}

TEST_CASE_TEMPLATE("no NaN of any payload turns into a number or an infinity", T, FORMATS) {
    unsigned wrong = 0;
    for (unsigned place = 0; place < 23; ++place)
        for (const unsigned payload : {1u << place, (1u << place) | 1u, 0x7fffffu >> place})
            for (const unsigned sign : {0u, 0x80000000u})
                wrong += !stores<T>(std::bit_cast<float>(sign | 0x7f800000u | payload));
    CHECK(wrong == 0);
    CHECK(std::isnan(static_cast<float>(T{std::numeric_limits<float>::quiet_NaN()})));
    CHECK(std::isnan(static_cast<float>(pattern<T>(T::nan_bits))));
}

TEST_CASE_TEMPLATE("millions of random floats are rounded as the rule by double arithmetic says", T, FORMATS) {
    const format f = format_of<T>();
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const int lowest = std::max(0, 127 - bias - f.mantissa_bits - 3); // float exponent fields around the format's range
    const int highest = std::min(254, 127 + bias + 3);
    std::uint64_t state = 42;
    unsigned wrong = 0;
    for (int i = 0; i < 1'250'000; ++i) {
        const std::uint64_t random = next_random(state);
        const auto any = static_cast<std::uint32_t>(random);
        const auto exponent = static_cast<std::uint32_t>(lowest) + static_cast<std::uint32_t>(random >> 32) %
                                                                       static_cast<std::uint32_t>(highest - lowest + 1);
        wrong += !stores<T>(std::bit_cast<float>(any));
        wrong += !stores<T>(std::bit_cast<float>((any & 0x807fffffu) | (exponent << 23)));
    }
    CHECK(wrong == 0);
}

TEST_CASE("patterns known from the specifications") {
    CHECK(bf16{1.0F}.bits == 0x3f80);
    CHECK(bf16{-3.140625F}.bits == 0xc049);
    CHECK(f16{1.0F}.bits == 0x3c00);
    CHECK(f16{65504.0F}.bits == 0x7bff);
    CHECK(f16{0.333251953125F}.bits == 0x3555);
    CHECK(fp8_e4m3{1.0F}.bits == 0x38);
    CHECK(fp8_e4m3{448.0F}.bits == 0x7e);
    CHECK(fp8_e4m3{-448.0F}.bits == 0xfe);
    CHECK(fp8_e4m3{std::nanf("")}.bits == 0x7f);
    CHECK(fp8_e5m2{1.0F}.bits == 0x3c);
    CHECK(fp8_e5m2{57344.0F}.bits == 0x7b);
    CHECK(static_cast<float>(pattern<fp8_e5m2>(0x7c)) == infinity);
    CHECK(static_cast<float>(pattern<bf16>(0xff80)) == -infinity);
}

// Conversions are usable in constant expressions and never implicit.
static_assert(static_cast<float>(bf16{1.00390625F}) == 1.0F && static_cast<float>(fp8_e4m3{1000.0F}) == 448.0F);
static_assert(!std::is_convertible_v<float, bf16> && !std::is_convertible_v<bf16, float>);
static_assert(ctxpar::scalar_type_of<const f16> == ctxpar::scalar_type::f16);
static_assert(!ctxpar::element_type<double> && !ctxpar::element_type<std::uint16_t>);

TEST_CASE("every element type has a name of its own") {
    using ctxpar::scalar_type;
    CHECK(std::string(ctxpar::name_of(ctxpar::scalar_type_of<float>)) == "f32");
    CHECK(std::string(ctxpar::name_of(ctxpar::scalar_type_of<bf16>)) == "bf16");
    CHECK(std::string(ctxpar::name_of(ctxpar::scalar_type_of<f16>)) == "f16");
    CHECK(std::string(ctxpar::name_of(ctxpar::scalar_type_of<fp8_e4m3>)) == "fp8_e4m3");
    CHECK(std::string(ctxpar::name_of(ctxpar::scalar_type_of<const fp8_e5m2>)) == "fp8_e5m2");
    CHECK(std::string(ctxpar::name_of(scalar_type::bytes)) == "bytes");
}
