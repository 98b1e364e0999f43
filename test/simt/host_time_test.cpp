// What a step costs the host, printed; a test fails only where it is grossly over what is wished, since the machine may
// do other things too. bench/host_time measures the same, optimised.
#include <doctest/doctest.h>

#include <cstdio>

#include "host_time.hpp"

TEST_CASE("a layer and a plan take the host some microseconds") {
    const host_time::times took = host_time::measured();
    std::printf(
        "host time: append and decode %.1f us a layer, plan of %d requests %.1f us, from device lengths %.1f us\n",
        took.layer, static_cast<int>(host_time::one_rank::requests), took.plan, took.device_plan);
    CHECK(took.layer > 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which take longer
    CHECK(took.layer <= 5 * host_time::most_layer_us);
    CHECK(took.plan <= 5 * host_time::most_plan_us);
    CHECK(took.device_plan <= 5 * host_time::most_plan_us);
#endif
}
