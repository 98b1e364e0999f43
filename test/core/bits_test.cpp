#include <ctxpar/core/bits.hpp>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include <doctest/doctest.h>

using namespace ctxpar;

static_assert(bits_as<std::uint32_t>(1.0F) == 0x3f800000U && bits_as<float>(0x40000000U) == 2.0F);
static_assert(bits_as<std::uint32_t>(float_infinity) == 0x7f800000U);

TEST_CASE("bits_as keeps every bit, those of NaN too") {
    for (const std::uint32_t bits : {0U, 1U, 0x80000000U, 0x7fc00001U, 0xff800000U, 0x7f812345U, 0x3eaaaaabU}) {
        const auto value = bits_as<float>(bits);
        std::uint32_t copied = 0;
        std::memcpy(&copied, &value, sizeof(copied));
        CHECK(copied == bits);
        CHECK(bits_as<std::uint32_t>(value) == bits);
    }
    CHECK(bits_as<std::uint64_t>(-2.0) == 0xc000000000000000ULL);
}

TEST_CASE("the constants are what they say") {
    CHECK(float_infinity > 3.4e38F);
    CHECK_FALSE(float_nan == float_nan);
}
