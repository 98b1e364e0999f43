// Deployments with prefills, drawn at random.
//
// CTXPAR_SEED=number chooses the deployments of the long test; a failure names the one that failed.
#include <cstdlib>

#include "../support/random_prefill.hpp"
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// A score of 10 is a sum of products whose roundings may add up to more than the two units in the last place that an
// LSE of 10 is allowed; more than one in 20,000 LSEs, or one that is off by twice as much, is a fault.
void check_random(std::uint64_t first, std::uint64_t count) {
    std::int64_t num_lses = 0, too_far = 0;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const prefill_deployment d = random_prefill(seed);
        if (!is_drawn(d)) continue;
        const prefill_data data = plant(d);
        const prefill_result got = run(d, data);
        const distance far = distance_of(d, data, got);
        INFO(describe(d));
        CHECK(got.problem() == "");
        CHECK(far.out <= 1.0);
        CHECK(far.lse <= 2.0);
        num_lses += far.num_lses;
        too_far += far.lses_too_far;
    }
    MESSAGE(too_far, " of ", num_lses, " LSEs are further off than allowed");
    CHECK(static_cast<double>(too_far) <= 1.0 + 5e-5 * static_cast<double>(num_lses));
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
