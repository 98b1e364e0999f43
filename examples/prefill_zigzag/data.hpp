// The queries, keys and values of the prompt, made from a seed: ranks make the rows they are given, by position, and
// the reference makes all of them again.
//
// Numbers are t * 2^e with |t| <= 255, exact in bf16; almost all are drawn from a bell curve. With nothing but random
// keys attention is close to a plain mean, and looks right with a key too few or in the wrong place. So every new
// token's key points along its own query in one head of every KV head, and takes a tenth of its row's weight; and
// tokens of the context on both sides of a block and of a round of ownership, the first and the last one, point along
// what all queries of a head have in common. One half of the heads meets those, the others one token with most of the
// weight, which sets the LSEs of shards nats apart.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "problem.hpp"

namespace demo {

// A key that points along the query of a head.
struct plant {
    std::int64_t head = 0;  // query head of the model
    double log_share = 0.0; // log of its weight over that of all random keys
};

class prompt_data {
public:
    explicit prompt_data(const problem& all);

    // Fill `to` with head_dim numbers.
    void key(std::int64_t position, std::int64_t kv_head, float* to) const;
    void value(std::int64_t position, std::int64_t kv_head, float* to) const;
    void query(std::int64_t position, std::int64_t head, float* to) const;

    // Planted tokens of the context in one KV head, by position.
    const std::map<std::int64_t, plant>& plants(std::int64_t kv_head) const {
        return plants_[static_cast<std::size_t>(kv_head)];
    }
    // The head whose query a new token's key points along.
    plant new_plant(std::int64_t position, std::int64_t kv_head) const;

private:
    bool is_heavy(std::int64_t kv_head, std::int64_t in_group) const { return (kv_head + in_group) % 2 == 1; }
    void plant_head(std::int64_t kv_head, std::int64_t in_group);
    void planted_key(const plant& chosen, std::int64_t position, float* to) const;

    problem all_;
    float query_unit_ = 0.0F;
    std::vector<std::map<std::int64_t, plant>> plants_; // of the context
};

} // namespace demo
