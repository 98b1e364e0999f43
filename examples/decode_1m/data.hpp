// The queries, keys and values of the example, made from a seed: every rank makes its own tokens, and the reference
// makes all of them again.
//
// Numbers are t * 2^e with |t| <= 255, so that they are exact in bf16 and f16; almost all are drawn from a bell curve.
// With nothing but random keys a decode over a million tokens is close to a plain mean, and would look right with the
// wrong weights or without its newest token. So some tokens are planted: their keys point along a query and take a
// chosen share of its weight. Even dimensions of a query stay the same in all steps, the odd ones are new in every row;
// a new token is planted along the odd ones and matters to its own row only.
#pragma once

#include <cstdint>
#include <vector>

#include "plants.hpp"
#include "problem.hpp"

namespace demo {

class kv_data {
public:
    explicit kv_data(const problem& all);

    // Fills `to` with the key, the value (GQA) or the query of a token: query_width or value_width numbers. Of MLA the
    // key is the whole row, whose first value_width numbers are the value.
    void key(std::int64_t layer, std::int64_t request, std::int64_t position, std::int64_t kv_head, float* to) const;
    void value(std::int64_t layer, std::int64_t request, std::int64_t position, std::int64_t kv_head, float* to) const;
    void query(std::int64_t layer, std::int64_t request, std::int64_t new_row, std::int64_t head, float* to) const;

    // The planted tokens of a request in one KV head, by position.
    const std::vector<plant>& plants(std::int64_t request, std::int64_t kv_head) const {
        return plants_[static_cast<std::size_t>(request * all_.kv_heads + kv_head)];
    }

    // The heads that get planted tokens.
    const std::vector<std::int64_t>& sampled_heads() const { return sampled_; }

private:
    void planted_key(std::int64_t layer, std::int64_t request, const plant& chosen, float* to) const;
    const plant* plant_at(std::int64_t request, std::int64_t kv_head, std::int64_t position) const;

    problem all_;
    float query_unit_ = 0.0F;
    std::vector<std::int64_t> sampled_;
    std::vector<std::vector<plant>> plants_;
};

} // namespace demo
