// The same scheduler on a virtual clock: nothing is computed, a step takes what the cost model says of its slowest
// rank.
#pragma once

#include <cstdint>

#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/cp_size.hpp>

#include "schedule.hpp"

namespace serve {

// The toy transformer on replicas of a machine.
struct simulated {
    ctxpar::machine_costs costs;
    ctxpar::model_shape model;
    std::int64_t layers = 1;
    std::int64_t interleave = 16;
    double row_us = 0; // of a row in one layer, without its attention
};

// Microseconds that a rank takes for a row of a prefill behind so many tokens.
double row_us(const simulated& machine, std::int64_t tokens);

// Microseconds of a step.
double step_us(const simulated& machine, const step& taken);

// Serves the whole trace of a scheduler; outputs are all 0.
void run_simulated(scheduler& steps, const simulated& machine, std::int64_t ranks);

} // namespace serve
