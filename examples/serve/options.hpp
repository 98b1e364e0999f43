// What serve is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/calibration.hpp"
#include "trace.hpp"

namespace serve {

struct options {
    trace_options trace;
    std::int64_t ranks = 2;
    std::vector<std::int64_t> sizes; // of dynamic CP, each dividing the next and the ranks; empty: of 1 to all ranks
    std::int64_t interleave = 16;
    std::int64_t block_size = 16;
    std::int64_t chunk = 512;
    double load = 0.5;            // of the ranks, where the trace has no rate of its own
    std::int64_t pool_tokens = 0; // of each rank; 0: so many that two of the longest requests fit
    std::string calibration;      // a file
    std::int64_t simulated_ranks = 8;
    std::int64_t simulated_requests = 400;
    std::int64_t simulated_longest = 262144;
    std::int64_t rounds = 1; // of the measured part, of which the median counts
    bool measure = true;
    bool simulate = true;
    bool require_best = false; // exit status 1 where dynamic is not as good as it should be
    std::string charts;        // a folder for SVG files
    std::string inject;        // "skip_move": a fault that must be found

    std::int64_t blocks(std::int64_t longest) const;
};

// Ends the program for wrong usage.
options parse_options(int argc, char** argv);

} // namespace serve
