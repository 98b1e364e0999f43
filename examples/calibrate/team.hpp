// Ranks that measure together: each runs the same program, and all see the same times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "fit.hpp"

namespace demo {

// Rank is host_rank or device_rank.
template <class Rank>
class team {
public:
    explicit team(Rank& own) : own_(own), all_(static_cast<std::size_t>(own.size())) {}

    Rank& own() { return own_; }
    int rank() const { return own_.rank(); }
    int size() const { return own_.size(); }

    // The largest of what the ranks have. All ranks call it.
    double largest(double own) {
        own_.tell(own, all_.data());
        return *std::max_element(all_.begin(), all_.end());
    }

    // Of what the ranks have. All ranks call it.
    double sum(double own) {
        own_.tell(own, all_.data());
        return std::accumulate(all_.begin(), all_.end(), 0.0);
    }

    // How long fn(), and the work it gives to a device, takes the slowest rank, all of which begin together.
    template <class Fn>
    double time(const Fn& fn) {
        (void)largest(0);
        own_.begin();
        fn();
        return largest(own_.end_us());
    }

    // The median of several times, of each of some alternatives that take turns; the first round is not counted.
    template <class Fn>
    std::vector<double> medians(std::size_t alternatives, int rounds, const Fn& fn) {
        std::vector<std::vector<double>> times(alternatives);
        for (int round = 0; round <= rounds; ++round)
            for (std::size_t i = 0; i < alternatives; ++i) {
                const double us = fn(i);
                if (round > 0) times[i].push_back(us);
            }
        std::vector<double> result;
        for (const std::vector<double>& each : times) result.push_back(median(each));
        return result;
    }

private:
    Rank& own_;
    std::vector<double> all_;
};

} // namespace demo
