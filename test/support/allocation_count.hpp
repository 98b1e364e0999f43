// How much has been allocated, in test executables one of whose files includes counted_allocations.hpp.
#pragma once

#include <atomic>
#include <cstdint>

namespace ctxpar_test {

// Counts for this thread while it says so.
inline thread_local bool is_counting = false;
inline std::atomic<std::int64_t> num_allocations{0};

} // namespace ctxpar_test
