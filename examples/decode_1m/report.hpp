// What the example prints: a table for a person and one JSON line a merge for a program.
#pragma once

#include <string>
#include <vector>

#include "check.hpp"
#include "engine.hpp"
#include "problem.hpp"
#include "reference.hpp"

namespace demo {

// All that was measured apart from the steps.
struct facts {
    std::size_t kv_bytes_per_rank = 0; // of the rank with most, as its allocator counted
    double fill_seconds = 0.0;
    double ceiling = 0.0;             // bytes a second that can be read
    std::int64_t reading_threads = 1; // at once, by the ceiling's and the ranks' threads
    std::size_t pool_bytes = 0;       // of all ranks
};

// What one merge reached.
struct verdict {
    std::string merge;
    std::vector<double> seconds; // of each step
    double median_seconds = 0.0;
    double read_rate = 0.0;       // KV bytes that all ranks read, a second
    double flop_rate = 0.0;       // multiplications and additions of the attention, a second
    std::uint64_t bytes_sent = 0; // of a rank, in a step
    std::uint64_t bytes_planned = 0;
    std::int64_t collectives = 0;
    std::int64_t launches = 0;
    errors worst;
    bool pass = false;
};

verdict judge(const problem& all, const reference& right, const record& got);

// What is decoded and on what; printed before the long work.
void print_problem(const problem& all);
void print_fill(const problem& all, const facts& known);
void print_reference(const problem& all, const reference& right);
void print_verdicts(const problem& all, const facts& known, const std::vector<verdict>& verdicts);
void print_json(const problem& all, const facts& known, const reference& right, const verdict& one);

} // namespace demo
