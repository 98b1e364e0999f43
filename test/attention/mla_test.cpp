// Multi-head latent attention as a policy.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/mla.hpp>

using namespace ctxpar;

TEST_CASE("A query is latent and rope wide, a value is the latent") {
    const mla<bf16, 512, 64> deepseek;
    CHECK(deepseek.latent() == 512);
    CHECK(deepseek.rope() == 64);
    CHECK(deepseek.query_width() == 576);
    CHECK(deepseek.value_width() == 512);
    CHECK(mla<bf16, 512, 64>::values_in_keys);
    CHECK(mla<bf16, 512, 64>::kind == attention_kind::mla);
    CHECK(attention_policy<mla<bf16, 512, 64, fp8_e4m3>>);
    CHECK(std::is_same_v<mla<bf16, 512, 64, fp8_e4m3>::kv_element, fp8_e4m3>);
    CHECK(std::is_same_v<mla<bf16, 512, 64>::kv_element, bf16>);
}

TEST_CASE("Widths that are types take no room; dynamic ones hold their values") {
    CHECK(std::is_empty_v<mla<bf16, 512, 64>>);
    const mla<f16, dynamic, dynamic> made(40, 8);
    CHECK(made.latent() == 40);
    CHECK(made.rope() == 8);
    CHECK(made.query_width() == 48);
    CHECK(made.value_width() == 40);
    CHECK(std::is_trivially_copyable_v<mla<f16, dynamic, dynamic>>);
}

TEST_CASE("The default scale is that of the width before absorption") {
    const auto close = [](float scale, double width) { return std::fabs(scale * std::sqrt(width) - 1) <= 2e-7; };
    CHECK(close(mla<bf16, 512, 64>().default_scale(), 192));
    CHECK(close(mla<bf16, 256, 32, bf16, 64>().default_scale(), 96));
    CHECK(close(mla<bf16, dynamic, dynamic>(40, 8).default_scale(), 136));
}
