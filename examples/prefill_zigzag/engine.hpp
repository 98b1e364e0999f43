// What the example does as an engine would, on every rank: a cache, the fill, and one attended step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/prefill/step.hpp>

#include "data.hpp"
#include "problem.hpp"

namespace demo {

// What one rank's attended step left behind.
struct rank_record {
    double begin = 0.0; // seconds
    double end = 0.0;
    std::uint64_t sent = 0;                // bytes, as the communicators counted
    std::vector<float> outputs;            // [chunk][heads][head_dim] restored to the order of the prompt
    std::vector<ctxpar::natural_lse> lses; // [chunk][heads]
};

// What one configuration left behind. Ranks write their own elements; rank 0 the others.
struct record {
    configuration run;
    std::vector<rank_record> ranks;
    ctxpar::path_choice choice;           // of the step that ran
    ctxpar::path_choice automatic;        // what would have been chosen
    std::uint64_t planned = 0;            // bytes a rank sends, as the schedule says
    std::vector<std::string> collectives; // of the schedule
    std::size_t workspace_bytes = 0;
    std::size_t kv_bytes = 0; // of a rank's cache, as its allocator counted
    double fill_seconds = 0.0;
    double seconds() const; // from the first rank's start to the last one's end
};

} // namespace demo
