// What stands for a model: queries, keys and values follow from a token, its position and the layer, and the next token
// from the last row of the last layer. Numbers are exact in bf16.
//
// They are random. At a few hundred tokens of context that suffices: one key too many or too few changes a row by
// percents, where the bound of the comparison is 2e-6.
#pragma once

#include <cstdint>
#include <vector>

#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/mesh.hpp>

#include "options.hpp"

namespace demo {

// A token where it stands.
struct placed_token {
    std::int64_t id = 0;
    std::int64_t position = 0;
};

class model {
public:
    explicit model(const options& given) : seed_(given.seed) {}

    // Fill `to` with head_dim numbers.
    void query(std::int64_t layer, placed_token token, std::int64_t head, float* to) const;
    void key(std::int64_t layer, placed_token token, std::int64_t kv_head, float* to) const;
    void value(std::int64_t layer, placed_token token, std::int64_t kv_head, float* to) const;

    // The token that follows a row of all heads, [q_heads][head_dim].
    template <class T>
    static std::int64_t sample(const T* row) {
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < options::q_heads * options::head_dim; ++i)
            if (row[i] > row[best]) best = i;
        return best;
    }

private:
    std::uint64_t seed_;
};

// The rows of one rank in one layer, as its shard of the model's weights would give them.
struct rank_rows {
    // A token with id < 0 is a filling row; what it holds does not matter.
    rank_rows(const model& weights, std::int64_t layer, const std::vector<placed_token>& tokens,
              ctxpar::head_range q_heads, ctxpar::head_range kv_heads);

    std::vector<ctxpar::bf16> q, k, v; // [rows][heads of the rank][head_dim]
};

} // namespace demo
