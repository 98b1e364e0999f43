// Which deployments of a suite are run. Ranks whose machine is emulated are slow: of the deployments of a test case the
// first one is run over them, and of the others a share, drawn at random.
//
// CTXPAR_DRAW=number draws others; CTXPAR_SHARE=number runs one in so many, all of them with 1.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include <suite_ranks.hpp>

#include "prefill_deployment.hpp"

namespace ctxpar_test {

namespace detail {

inline std::uint64_t number_of_environment(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Whether the running test case has not asked before.
inline bool is_first_of_case() {
    static const void* last = nullptr;
    const void* const now = doctest::getContextOptions()->currentTest;
    return std::exchange(last, now) != now;
}

inline bool is_drawn(const std::string& description, std::uint64_t share) {
    static const std::uint64_t seed = number_of_environment("CTXPAR_DRAW", 20260);
    if (is_first_of_case() || share <= 1) return true;
    return random_numbers(seed + std::hash<std::string>{}(description)).next() % share == 0;
}

} // namespace detail

// Whether there can be as many ranks as the deployment has.
template <class Ranks = suite_ranks>
bool can_run(const deployment& d) {
    if constexpr (requires { Ranks::takes(d.world()); }) return Ranks::takes(d.world());
    return true;
}

inline bool is_drawn(const deployment& d) {
    if (!can_run(d)) return false;
    static const std::uint64_t share = detail::number_of_environment("CTXPAR_SHARE", suite_ranks::share);
    return detail::is_drawn(describe(d), share);
}
inline bool is_drawn(const prefill_deployment& d) {
    if (!can_run(d)) return false;
    static const std::uint64_t share = detail::number_of_environment("CTXPAR_SHARE", suite_ranks::prefill_share);
    return detail::is_drawn(describe(d), share);
}

} // namespace ctxpar_test
