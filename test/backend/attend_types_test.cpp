// Attention on the CPU over every type of cache, with the scales that quantised ones have, against double that reads
// the same cache and the same queries.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <support/instruction_sets.hpp>

#include <ctxpar/backend/cpu.hpp>

#include "attend_case.hpp"

using namespace ctxpar;
using plain::attend_request;
using plain::attend_sizes;
using plain::course;
using plain::interval;
using plain::scaled;

namespace {

template <class O, class Q, class Kv>
void check_case(const plain::attend_case<Q, Kv>& given) {
    const std::vector<plain::merged> expected = given.expect_all();
    for (const cpu::isa set : ctxpar_test::instruction_sets()) {
        CAPTURE(std::string(name_of(set)));
        const auto error = plain::error_of(expected, given.template run<O>({1, set}, 2));
        CHECK(error.out <= plain::attend_bound<O>());
        CHECK(error.lse <= 1.0);
        CHECK(error.empty_right);
    }
}

// Both kinds of page, grouped heads and latent rows, every kind of scale.
template <class Q, class Kv, class O>
void check_types() {
    CAPTURE(std::string(name_of(scalar_type_of<Q>)));
    CAPTURE(std::string(name_of(scalar_type_of<Kv>)));
    const std::vector<attend_request> requests = {{150, {interval(0, 148), interval(0, 149), interval(3, 150)}},
                                                  {0, {interval(0, 0)}},
                                                  {5000, {interval(30, 5000)}}};
    attend_sizes grouped;
    grouped.kv_heads = 2;
    grouped.group = 3;
    grouped.query_width = 40;
    grouped.value_width = 24;
    attend_sizes latent;
    latent.group = 5;
    latent.query_width = 42;
    latent.value_width = 33;
    latent.latent = true;
    attend_sizes streamed = grouped; // rows are read where they lie
    streamed.query_width = 96;
    streamed.value_width = 64;
    attend_sizes streamed_latent = latent;
    streamed_latent.query_width = 96;
    streamed_latent.value_width = 64;
    for (const scaled kind : {scaled::not_at_all, scaled::tensor, scaled::head, scaled::token}) {
        CAPTURE(static_cast<int>(kind));
        grouped.order = streamed.order = kind == scaled::head ? page_order::hnd : page_order::nhd;
        check_case<O>(plain::attend_case<Q, Kv>(grouped, requests, course::random, 70, kind));
        check_case<O>(plain::attend_case<Q, Kv>(latent, requests, course::rising, 71, kind));
        check_case<O>(plain::attend_case<Q, Kv>(streamed, requests, course::random, 70, kind));
        check_case<O>(plain::attend_case<Q, Kv>(streamed_latent, requests, course::rising, 71, kind));
    }
}

} // namespace

TEST_CASE("A cache of f32 and of bf16 is read exactly") {
    check_types<float, float, float>();
    check_types<bf16, bf16, float>();
    check_types<bf16, bf16, bf16>();
    check_types<float, bf16, f16>();
}

TEST_CASE("A cache of f16 is read exactly") {
    check_types<f16, f16, float>();
    check_types<f16, f16, f16>();
}

TEST_CASE("A cache of 8-bit numbers is read exactly, whatever its scales") {
    check_types<bf16, fp8_e4m3, float>();
    check_types<bf16, fp8_e4m3, bf16>();
    check_types<f16, fp8_e5m2, float>();
}

TEST_CASE("NaN of every type is visible in the row that sees it") {
    const auto nan_bits = [](auto& number) {
        number = std::remove_reference_t<decltype(number)>::from_bits(number.nan_bits);
    };
    const auto check = [&](auto tag) {
        using type = decltype(tag);
        plain::attend_case<bf16, type> given({}, {{40, {interval(0, 20), interval(30, 40)}}}, course::random, 72);
        nan_bits(given.key(0, 35, 0)[2]);
        const auto got = given.template run<float>();
        CHECK_FALSE(std::isnan(got.lse[0].value));
        CHECK(std::isnan(got.lse[1].value));
        CHECK(std::isnan(got.out[16]));
    };
    check(bf16());
    check(f16());
    check(fp8_e4m3());
    check(fp8_e5m2());
}
