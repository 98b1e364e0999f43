// The comparison of what the ranks computed with the reference.
#pragma once

#include "engine.hpp"
#include "problem.hpp"
#include "reference.hpp"

namespace demo {

struct verdict {
    double max_abs = 0.0;      // of any element
    double relative_l2 = 0.0;  // of all checked rows and heads together
    double worst_vector = 0.0; // relative L2 of the worst single output vector; for information
    double lse_error = 0.0;    // largest difference
    double lse_worst = 0.0;    // largest difference over what this LSE owes
    bool ranks_agree = true;   // all ranks restored the same bits
    bool bytes_agree = true;   // all ranks sent what the schedule says
    double flop_rate = 0.0;    // multiplications and additions of the attention, a second
    bool pass = false;
};

verdict judge(const problem& all, const reference& right, const record& got);

// What fp32 output with fp32 probabilities owes, in relative L2.
double error_bound(const problem& all);

} // namespace demo
