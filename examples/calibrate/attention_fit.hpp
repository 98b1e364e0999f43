// From the times of attention calls to the numbers of the cost model.
#pragma once

#include <vector>

#include <ctxpar/plan/cost.hpp>

#include "fit.hpp"
#include "work.hpp"

namespace demo {

struct attention_point {
    double requests = 0;
    double numbers = 0; // of queries and outputs
    double bytes = 0;   // of keys and values
    double flops = 0;
    double us = 0;
};

attention_point attention_point_of(const model_dims& model, const requests& all, double us);

// Sets what an attention call costs, so that errors in percent are small.
void fit_attention(const std::vector<attention_point>& points, ctxpar::machine_costs& costs);

} // namespace demo
