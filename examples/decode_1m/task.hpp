// The tokens of one (layer, request, KV head), made from the seed and rounded as the cache's type does, by arithmetic.
#pragma once

#include <cstdint>

#include "common/softmaxes.hpp"
#include "data.hpp"
#include "problem.hpp"

namespace demo {

struct task final : token_source {
    const problem& all;
    const kv_data& data;
    std::int64_t layer = 0;
    std::int64_t request = 0;
    std::int64_t kv_head = 0;

    task(const problem& of, const kv_data& from, std::int64_t in_layer, std::int64_t in_request, std::int64_t in_head)
        : all(of), data(from), layer(in_layer), request(in_request), kv_head(in_head) {}

    void token(std::int64_t position, double* key, double* value) const override;
    std::int64_t shard(std::int64_t position) const override { return position / all.law.interleave % all.law.ranks; }
};

} // namespace demo
