// What the benchmarks of this directory share: how they are registered, what they report, and what makes a run fail.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>

#include "ceilings.hpp"

namespace bench {

// What a run is told and knows before its benchmarks are made.
struct plan_of_run {
    bool smoke = false; // tiny, each once: the results are compared, times mean nothing
    int cpus = 1;
    double memory = 0.0; // bytes that caches may take
    ceilings best;       // measured before the first benchmark

    std::int64_t tokens(std::int64_t wanted) const { return smoke && wanted > 1021 ? 1021 : wanted; }
};

// A benchmark that has everything ready: `run` is timed.
class prepared {
public:
    virtual ~prepared() = default;
    // Compares the result with the reference; a sentence where it is wrong, empty where it is right.
    virtual std::string verify() = 0;
    // The iteration to be timed.
    virtual void run(std::int64_t iteration) = 0;
    // Counters and label, after the last iteration; `seconds` are known to the library by then.
    virtual void report(benchmark::State& state) = 0;
};

// Registers a benchmark unless it has been, or its memory is not there, which is said. Google Benchmark calls a
// benchmark several times to find how many iterations it wants: it is prepared and verified once.
void add(const plan_of_run& run, const std::string& name, double memory_bytes,
         const std::function<std::unique_ptr<prepared>()>& prepare);

// Whether any result was wrong so far.
bool any_wrong();

// Bytes or operations of one iteration, as a rate and as a share of a ceiling. The names of the shares are of_read,
// of_copy and of_compute.
void rate(benchmark::State& state, const char* name, double of_one, const char* share, double ceiling);

// "key:value" parts of a benchmark's name.
inline std::string part(const char* key, std::int64_t value) {
    return std::string("/") + key + ":" + std::to_string(value);
}

// Each in a file of its own, so that they are compiled apart.
void add_decode_gqa(const plan_of_run& run);
void add_decode_mla(const plan_of_run& run);
void add_prefill(const plan_of_run& run);
void add_merge(const plan_of_run& run);
void add_collectives(const plan_of_run& run);

} // namespace bench
