// Grouped-query attention as a policy: what is a type and what is a value, and what a user's own policy must have.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/gqa.hpp>

using namespace ctxpar;

namespace {

// All that a user-written attention policy needs.
struct narrow_attention {
    using element = float;
    using kv_element = bf16;
    static constexpr attention_kind kind = attention_kind::gqa;
    static constexpr bool values_in_keys = false;
    std::int64_t query_width() const { return 24; }
    std::int64_t value_width() const { return 8; }
    float default_scale() const { return 0.5F; }
};

struct without_scale {
    using element = float;
    using kv_element = bf16;
    static constexpr attention_kind kind = attention_kind::gqa;
    static constexpr bool values_in_keys = false;
    std::int64_t query_width() const { return 24; }
    std::int64_t value_width() const { return 8; }
};

struct integer_cache : narrow_attention {
    using kv_element = int;
};

} // namespace

TEST_CASE("Widths that are types take no room; dynamic ones hold their values") {
    CHECK(std::is_empty_v<gqa<bf16, 128>>);
    CHECK(std::is_empty_v<gqa<f16, 192, 128, fp8_e4m3>>);
    CHECK(gqa<bf16, 128>().query_width() == 128);
    CHECK(gqa<bf16, 128>().value_width() == 128);
    CHECK(gqa<bf16, 192, 128>().query_width() == 192);
    CHECK(gqa<bf16, 192, 128>().value_width() == 128);
    CHECK(gqa<bf16, dynamic>(80).query_width() == 80);
    CHECK(gqa<bf16, dynamic>(80).value_width() == 80);
    CHECK(gqa<bf16, dynamic>(96, 64).query_width() == 96);
    CHECK(gqa<bf16, dynamic>(96, 64).value_width() == 64);
    CHECK(gqa<bf16, dynamic>().query_width() == 0); // refused where it is used
    CHECK(std::is_trivially_copyable_v<gqa<bf16, dynamic>>);
    constexpr gqa<float, dynamic> at_compile_time(40, 8);
    static_assert(at_compile_time.query_width() == 40 && at_compile_time.value_width() == 8);
}

TEST_CASE("The cache may have a type of its own, and keys are no values") {
    CHECK(std::is_same_v<gqa<bf16, 128>::kv_element, bf16>);
    CHECK(std::is_same_v<gqa<bf16, 128, 128, fp8_e5m2>::kv_element, fp8_e5m2>);
    CHECK(std::is_same_v<gqa<bf16, 128, 128, fp8_e5m2>::element, bf16>);
    CHECK(gqa<bf16, 128>::kind == attention_kind::gqa);
    CHECK_FALSE(gqa<bf16, 128>::values_in_keys);
}

TEST_CASE("The default scale is one over the root of the query width") {
    for (const std::int64_t width : {1, 5, 64, 80, 128, 576})
        CHECK(std::fabs(gqa<bf16, dynamic>(width, 16).default_scale() * std::sqrt(static_cast<double>(width)) - 1) <=
              2e-7);
    CHECK(gqa<bf16, 64, 256>().default_scale() == 0.125F);
}

TEST_CASE("A user-written policy stands in for gqa; an incomplete one does not") {
    CHECK(attention_policy<narrow_attention>);
    CHECK_FALSE(attention_policy<without_scale>);
    CHECK_FALSE(attention_policy<integer_cache>);
    CHECK_FALSE(attention_policy<int>);
}
