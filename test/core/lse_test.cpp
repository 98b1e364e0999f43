// LSE values: two bases that never mix by accident.
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/lse.hpp>

using ctxpar::binary_lse;
using ctxpar::lse_base;
using ctxpar::natural_lse;

// No conversion between the bases, or from and to plain numbers, is implicit.
static_assert(!std::is_convertible_v<natural_lse, binary_lse> && !std::is_convertible_v<binary_lse, natural_lse>);
static_assert(!std::is_constructible_v<natural_lse, binary_lse> && !std::is_assignable_v<natural_lse&, binary_lse>);
static_assert(!std::is_convertible_v<natural_lse, float> && !std::is_convertible_v<float, natural_lse>);
static_assert(natural_lse::base == lse_base::natural && binary_lse::base == lse_base::binary);
static_assert(ctxpar::to_natural(natural_lse{3.0F}).value == 3.0F && ctxpar::to_binary(binary_lse{3.0F}).value == 3.0F);
static_assert(std::is_same_v<decltype(ctxpar::lse_cast<lse_base::binary>(natural_lse{})), binary_lse>);
static_assert(std::is_same_v<decltype(ctxpar::lse_cast<lse_base::natural>(natural_lse{})), natural_lse>);

TEST_CASE("an empty set of keys has LSE minus infinity in either base") {
    const float minus_infinity = -std::numeric_limits<float>::infinity();
    CHECK(natural_lse{}.value == minus_infinity);
    CHECK(binary_lse{}.value == minus_infinity);
    CHECK(ctxpar::to_natural(binary_lse{}).value == minus_infinity);
    CHECK(ctxpar::to_binary(natural_lse{}).value == minus_infinity);
}

TEST_CASE("both bases name the same sum") {
    for (const double scores : {1.0, 2.0, 10.0, 1e-6, 1e30, 12345.678}) {
        const natural_lse natural{static_cast<float>(std::log(scores))};
        const binary_lse binary{static_cast<float>(std::log2(scores))};
        CHECK(ctxpar::to_natural(binary).value == doctest::Approx(natural.value).epsilon(3e-7));
        CHECK(ctxpar::to_binary(natural).value == doctest::Approx(binary.value).epsilon(3e-7));
        CHECK(ctxpar::lse_cast<lse_base::natural>(binary).value == ctxpar::to_natural(binary).value);
        CHECK(ctxpar::lse_cast<lse_base::binary>(natural).value == ctxpar::to_binary(natural).value);
        CHECK(ctxpar::lse_cast<lse_base::natural>(natural).value == natural.value);
    }
    CHECK(ctxpar::to_natural(binary_lse{3.0F}).value == doctest::Approx(2.079442).epsilon(1e-6));
    CHECK(ctxpar::to_binary(natural_lse{0.693147F}).value == doctest::Approx(1.0).epsilon(1e-6));
    CHECK(ctxpar::log2_e == static_cast<float>(1 / std::log(2.0)));
    CHECK(ctxpar::ln_2 == static_cast<float>(std::log(2.0)));
}

TEST_CASE("NaN and infinity stay visible through a conversion") {
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(std::isnan(ctxpar::to_binary(natural_lse{std::nanf("")}).value));
    CHECK(std::isnan(ctxpar::to_natural(binary_lse{std::nanf("")}).value));
    CHECK(ctxpar::to_natural(binary_lse{infinity}).value == infinity);
    CHECK(ctxpar::to_binary(natural_lse{infinity}).value == infinity);
}

TEST_CASE("an array of LSEs has the layout of an array of floats") {
    static_assert(sizeof(natural_lse[6]) == sizeof(float[6]) && alignof(natural_lse) == alignof(float));
    static_assert(std::is_standard_layout_v<natural_lse> && std::is_standard_layout_v<binary_lse>);
    std::vector<natural_lse> values(3);
    values[2].value = 5.0F;
    CHECK(*reinterpret_cast<const float*>(&values[2]) == 5.0F);
}
