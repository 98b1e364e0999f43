// Deployments with prefills, drawn at random.
//
// CTXPAR_SEED=number chooses the deployments of the long test; a failure names the one that failed.
#include <cstdlib>

#include "../support/random_prefill.hpp"
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

void check_random(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const prefill_deployment d = random_prefill(seed);
        if (!is_drawn(d)) continue;
        const prefill_data data = plant(d);
        const prefill_result got = run(d, data);
        const distance far = distance_of(d, data, got);
        INFO(describe(d));
        CHECK(got.problem() == "");
        CHECK(far.out <= 1.0);
        CHECK(far.lse_of_scores <= 1.0);
    }
}

} // namespace

TEST_CASE("random deployments with prefills give the unsharded attention") {
    check_random(1, 150);
}

TEST_CASE("a thousand random deployments with prefills give the unsharded attention [long]") {
    const char* text = std::getenv("CTXPAR_SEED");
    const std::uint64_t seed = text == nullptr ? 20260 : std::strtoull(text, nullptr, 10);
    MESSAGE("CTXPAR_SEED=", seed);
    check_random(seed * 100'000, 1'000);
}
