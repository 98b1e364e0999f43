// Whether serving gave what it should: the tokens of one rank that computes every request alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.hpp"
#include "schedule.hpp"
#include "trace.hpp"

namespace serve {

// What every output of a request should be, and how sure the model was.
using expected = std::vector<choice>;

struct comparison {
    std::int64_t outputs = 0;
    std::int64_t unsure = 0;  // whose first two logits are within 1e-4 of each other: they may differ
    std::int64_t differ = 0;  // among the others
    std::int64_t missing = 0; // requests that were not served whole
    bool pass() const { return differ == 0 && missing == 0 && unsure * 1000 < outputs; }
};

inline constexpr double least_margin = 1e-4;

// Compares results with the unsharded run. What was computed for an earlier comparison of the same outputs is taken
// from `known` ([requests], empty where nothing is). `threads` requests are computed at a time.
comparison compare(const model<float>& weights, const std::vector<asked>& trace, const std::vector<served>& results,
                   std::vector<std::pair<std::vector<std::int32_t>, expected>>& known, std::int64_t threads);

// The same for one request in double precision, with attention as its formula says, sharing nothing with the library:
// O(tokens^2).
expected in_double(const model<double>& weights, const std::vector<std::int32_t>& prompt,
                   const std::vector<std::int32_t>& outputs);

} // namespace serve
