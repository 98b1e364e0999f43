// When two ways to add up a cost agree: to all but the last digits of a double.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

namespace ctxpar_test {

inline bool near(double got, double wanted) {
    const bool holds = std::fabs(got - wanted) <= 1e-11 * std::fabs(wanted);
    if (!holds) MESSAGE("got ", got, ", wanted ", wanted);
    return holds;
}

} // namespace ctxpar_test
