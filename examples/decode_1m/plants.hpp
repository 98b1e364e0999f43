// Which heads and tokens are planted; see data.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace demo {

// A token whose key points along the query of a head.
struct plant {
    std::int64_t position = 0;
    std::int64_t head = 0;     // query head of the model
    std::int64_t new_row = -1; // step * query_rows + row for a token of a step; -1: in the cache before the first
    double log_share = 0.0;    // log of its weight over the weight of all random keys
};

// At least one head of every KV head and of every range of heads that some rank holds, ascending.
std::vector<std::int64_t> sampled_heads(const problem& all);

// The planted tokens of a request in one KV head, by position. `heads` are the sampled heads.
//
// Of the sampled heads that share a KV head one half meet the first token, a token on each side of a round of ownership
// and of a block, each with about an eighth of the weight; the others meet one token that has most of it, which sets
// the shards' LSEs nats apart. New tokens go to these heads in turn. (With one sampled head a KV head, KV heads take
// turns.)
std::vector<plant> plants_of(const problem& all, std::int64_t request, std::int64_t kv_head,
                             const std::vector<std::int64_t>& heads);

} // namespace demo
