// The splits of a prefill's rows over PCP ranks, and how even they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct split_facts {
    std::string name;
    std::vector<std::int64_t> tokens; // of each rank
    std::vector<std::int64_t> work;   // (row, key) pairs of each rank under a causal mask
    std::int64_t rows = 0;            // of every rank, pads included

    // The largest work over the mean: how many times longer than need be everyone waits.
    double imbalance() const;
};

// Equal slices one after another, and the library's three splits.
std::vector<split_facts> compare_splits(std::int64_t pcp, std::int64_t rows, std::int64_t computed);

} // namespace demo
