// A decode step measured in every way in which the ranks can serve it, and compared with one rank alone first.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "costs.hpp"

namespace demo {

inline constexpr std::array merge_kinds = {ctxpar::merge_kind::a2a, ctxpar::merge_kind::ag_rs,
                                           ctxpar::merge_kind::ag_ar};

// The ways: replicas apart, then the ranks together with each merge in that order.
inline constexpr std::size_t num_ways = 1 + merge_kinds.size();
const char* name_of_way(std::size_t way);

struct way_times {
    std::array<double, num_ways> measured_us{};  // of a layer
    std::array<double, num_ways> predicted_us{}; // the same
    double error = 0;                            // largest relative L2 against one rank alone, on any rank
    std::int64_t layers = 0;                     // of a step that was timed
};

std::size_t least(const std::array<double, num_ways>& us);
void predict(const ctxpar::machine_costs& costs, const model_dims& model, const requests& all, std::int64_t ranks,
             way_times& to);

// The relative L2 distance of outputs.
double distance(const std::vector<float>& got, const std::vector<float>& wanted);

// config_error "result" on all ranks where a result is not that of one rank alone.
inline constexpr double most_error = 5e-6;

template <class Rank>
way_times measure_ways(team<Rank>& ranks, const model_dims& model, const requests& all, typename Rank::kind::pool& pool,
                       const effort& how, const ctxpar::machine_costs& costs) {
    using communicator = typename Rank::kind::communicator;
    const auto stream = ranks.own().stream();
    way_times found;
    predict(costs, model, all, ranks.size(), found);
    std::array<std::unique_ptr<rank_layers>, num_ways> ways;
    {
        const auto whole = make_layers<communicator>(model, all, merge_kinds[0], pool, nullptr, stream);
        first_step(*whole, pool);
        for (std::size_t way = 1; way < num_ways; ++way) {
            ways[way] = make_layers(model, all, merge_kinds[way - 1], pool, &ranks.own().comm(), stream);
            first_step(*ways[way], pool);
            found.error = std::max(found.error, ranks.largest(distance(ways[way]->output(), whole->output())));
        }
    }
    ctxpar::require(found.error <= most_error, "result", "the ranks together are off by ",
                    std::to_string(found.error * 1e6), " millionths of one rank's result; at most 5 are legal");
    const requests own = spread_requests(all, ranks.size())[static_cast<std::size_t>(ranks.rank())];
    if (!own.empty()) ways[0] = make_layers<communicator>(model, own, merge_kinds[0], pool, nullptr, stream);

    const double guess = *std::max_element(found.predicted_us.begin(), found.predicted_us.end());
    found.layers = how.tiny ? 2 : std::clamp<std::int64_t>(static_cast<std::int64_t>(how.sample_us * 2 / guess), 2, 32);
    const auto step = [&](std::size_t way) {
        return ranks.time([&] {
            if (ways[way]) demo::step(*ways[way], found.layers, pool);
        }) / static_cast<double>(found.layers);
    };
    const int rounds = how.tiny                                             ? 1
                       : guess * static_cast<double>(found.layers) > 30'000 ? how.rounds
                                                                            : 2 * how.rounds + 1;
    const std::vector<double> us = ranks.medians(num_ways, rounds, step);
    std::copy(us.begin(), us.end(), found.measured_us.begin());
    return found;
}

} // namespace demo
