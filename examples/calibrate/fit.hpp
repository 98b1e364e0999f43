// Lines through measured points that a few bad points do not move.
#pragma once

#include <vector>

namespace demo {

double median(std::vector<double> values);

struct point {
    double x = 0;
    double us = 0;
};

// us = fixed + x * slope; neither is below 0.
struct line {
    double fixed = 0;
    double slope = 0;
};

// The slope is the median of those between any two points of which one x is at least twice the other, the fixed part
// the median of what is left of each point of the smaller half.
line fit_line(std::vector<point> points);

inline constexpr double free_rate = 1e9; // in place of an infinite one, per us

inline double rate_of(const line& fitted) {
    return fitted.slope > 1 / free_rate ? 1 / fitted.slope : free_rate;
}

} // namespace demo
