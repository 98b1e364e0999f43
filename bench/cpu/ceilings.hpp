// What this machine can do at best, measured in the process that is measured: every benchmark is compared with it.
#pragma once

#include <string>
#include <vector>

namespace bench {

// Of a number of threads, each on a CPU of its own.
struct ceiling {
    int threads = 1;
    double read_bytes = 0.0; // a second, added up as 64-bit words from memory that no cache holds
    double copy_bytes = 0.0; // a second, read and written by memcpy
    double flops = 0.0;      // a second, by `compute` of the ceilings
};

struct ceilings {
    std::string compute;      // "amx bf16", "avx512 fp32 fma", "avx2 fp32 fma" or "fp32"
    std::vector<ceiling> all; // 1 thread, 2 threads, all CPUs; ascending

    // The one for as many threads, or the next larger one that was measured.
    const ceiling& of(int threads) const;
};

// A second or two for each number of threads. `small` runs the same code on little memory, for tests; such numbers mean
// nothing.
ceilings measure_ceilings(bool small);

// Why a run with these ceilings can not be trusted; empty where it can. Two threads read and multiply at least 1.8
// times as fast as one on a machine that nobody else uses.
std::string doubt(const ceilings& measured);

// The larger of each number.
ceilings best_of(const ceilings& a, const ceilings& b);

} // namespace bench
