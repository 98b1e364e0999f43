// The arithmetic rate of one core: the instructions that a kernel has at best, on random numbers, and nothing else.
#pragma once

#include <cstdint>
#include <string>

namespace bench {

// What was found here: bf16 products of tiles where the processor and the kernel have AMX, else fp32 multiply-adds.
std::string compute_name();

// Does `rounds` rounds on the calling thread and returns the floating-point operations that were done.
double compute(std::int64_t rounds);

// A round of a few microseconds takes about this many seconds; for choosing how many to do.
inline constexpr double round_seconds = 2e-6;

} // namespace bench
