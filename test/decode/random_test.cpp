// Deployments drawn at random, and contexts as long as the bounds speak of.
//
// CTXPAR_SEED=number chooses the deployments of the long test; a failure names the one that failed.
#include <cstdlib>

#include "../support/random_deployment.hpp"
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

std::uint64_t seed_of_environment() {
    const char* text = std::getenv("CTXPAR_SEED");
    return text == nullptr ? 20260 : std::strtoull(text, nullptr, 10);
}

void check_random(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const deployment d = random_deployment(seed);
        if (!is_drawn(d) || (suite_ranks::share > 1 && d.longest() > 1'000)) continue; // slow ranks, short contexts
        const distance far = distance_of(d);
        INFO(describe(d));
        CHECK(far.out <= 1.0);
        CHECK(far.lse_of_scores <= 1.0);
    }
}

void check_random_of_environment(std::uint64_t part) {
    const std::uint64_t seed = seed_of_environment();
    MESSAGE("CTXPAR_SEED=", seed);
    check_random(seed * 100'000 + part * 1'000, 1'000);
}

// 131,072 tokens on one rank and over four.
void check_long_context(deployment d) {
    d.requests = {{131'072, 1}, {77, 1}};
    d.interleave = 16;
    d.block_size = 64;
    d.threads = 2;
    d.max_splits = 8;
    for (const std::int64_t n : {1, 4}) {
        d.sizes = {n, 1, n, 1, 1, 1};
        check_exact(d);
    }
}

deployment wide() {
    deployment d;
    d.q_heads = 4;
    d.key_width = d.value_width = 64;
    return d;
}

} // namespace

TEST_CASE("random deployments give the unsharded attention") {
    check_random(1, 150);
}

TEST_CASE("a thousand random deployments give the unsharded attention [long]") {
    check_random_of_environment(0);
}

TEST_CASE("another thousand random deployments give the unsharded attention [long]") {
    check_random_of_environment(1);
}

TEST_CASE("a third thousand random deployments give the unsharded attention [long]") {
    check_random_of_environment(2);
}

TEST_CASE("131072 tokens of bf16 are within the bound [long]") {
    check_long_context(wide());
}

TEST_CASE("131072 tokens of fp32 are within the bound [long]") {
    deployment d = wide();
    d.element = d.kv_element = scalar_type::f32;
    check_long_context(d);
}

TEST_CASE("131072 tokens of fp8 are within the bound [long]") {
    for (const scalar_type type : {scalar_type::e4m3, scalar_type::e5m2}) {
        deployment d = wide();
        d.kv_element = type;
        d.scales = scale_choice::token;
        check_long_context(d);
    }
}

TEST_CASE("131072 tokens of latent rows are within the bound [long]") {
    deployment d = wide();
    d.is_mla = true;
    d.value_width = 128;
    d.key_width = 192;
    check_long_context(d);
}
