// The comparison of what the ranks decoded with the reference.
#pragma once

#include "engine.hpp"
#include "reference.hpp"

namespace demo {

struct errors {
    double max_abs = 0.0;     // of any element
    double relative_l2 = 0.0; // of all checked outputs of a step and layer; the worst step and layer
    double worst_head = 0.0;  // relative L2 of the worst single output vector; for information
    bool nan = false;
};

// Every output of a checked head on every rank that holds it, in every step and layer.
errors compare(const problem& all, const reference& right, const record& got);

// What fp32 output with fp32 probabilities owes, in relative L2.
double error_bound(const problem& all);

} // namespace demo
