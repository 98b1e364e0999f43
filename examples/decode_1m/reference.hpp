// The reference: unsharded attention in double precision, by code that shares nothing with the library. It makes keys
// and values again from the seed and rounds them as the cache's type does, by arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "data.hpp"
#include "problem.hpp"

namespace demo {

struct reference {
    std::vector<std::int64_t> heads;  // of the model, those that were computed; ascending
    std::int64_t rows = 0;            // of a layer: request-major, then step, then row of the step
    std::int64_t width = 0;           // of an output
    std::vector<double> outputs;      // [layers][rows][heads][width]
    double least_planted_share = 0.0; // every planted token has at least this share of some head's weight
    double shard_lse_spread = 0.0;    // largest difference, in nats, between the LSEs of two shards of one head
    double seconds = 0.0;

    const double* at(std::int64_t layer, std::int64_t row, std::int64_t head_index) const {
        const auto heads_held = static_cast<std::int64_t>(heads.size());
        return outputs.data() + ((layer * rows + row) * heads_held + head_index) * width;
    }
};

// The heads to compare: all of them, or where that would take long the planted ones.
std::vector<std::int64_t> heads_to_check(const problem& all, const kv_data& data);

reference make_reference(const problem& all, const kv_data& data, const std::vector<std::int64_t>& heads);

} // namespace demo
