// Ranks that measure together: each runs the same program, and all see the same times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <ctxpar/comm/communicator.hpp>

#include "fit.hpp"
#include "place.hpp"

namespace demo {

template <ctxpar::communicator C>
class team {
public:
    explicit team(C& world) : world_(world), all_(static_cast<std::size_t>(world.size())) {}

    C& world() { return world_; }
    int rank() const { return world_.rank(); }
    int size() const { return world_.size(); }

    // The largest of what the ranks have. All ranks call it.
    double largest(double own) {
        world_.all_gather(&own, all_.data(), sizeof(own), {}, {"a measured time"});
        return *std::max_element(all_.begin(), all_.end());
    }

    // Of what the ranks have. All ranks call it.
    double sum(double own) {
        world_.all_gather(&own, all_.data(), sizeof(own), {}, {"a measured time"});
        return std::accumulate(all_.begin(), all_.end(), 0.0);
    }

    // How long fn() takes the slowest rank, all of which begin together.
    template <class Fn>
    double time(const Fn& fn) {
        (void)largest(0);
        const double begin = now_us();
        fn();
        return largest(now_us() - begin);
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
    C& world_;
    std::vector<double> all_;
};

} // namespace demo
