// The speed at which this machine reads memory, to compare a decode step with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace demo {

// Bytes a second that `threads` threads read from the pools, each byte once; the best of a few runs.
double read_bandwidth(const std::vector<std::span<const std::byte>>& pools, std::int64_t threads);

} // namespace demo
