// The reference: unsharded causal attention in double precision, by code that shares nothing with the library.
#pragma once

#include <cstdint>
#include <vector>

#include "data.hpp"
#include "problem.hpp"

namespace demo {

struct reference {
    std::vector<std::int64_t> rows;   // new rows that were computed, ascending from 0
    std::vector<double> outputs;      // [rows][heads][head_dim]
    std::vector<double> lses;         // [rows][heads] natural
    double least_planted_share = 1.0; // every planted token has at least this share of the weight of some head
    double shard_lse_spread = 0.0;    // largest difference, in nats, between the LSEs of two shards, largest DCP
    double seconds = 0.0;
};

// All rows, or where that would take long the first, the middle and the last one of every head and tail.
std::vector<std::int64_t> rows_to_check(const problem& all);

reference make_reference(const problem& all, const prompt_data& data);

} // namespace demo
