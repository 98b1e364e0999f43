// What is measured: a model, and the requests of one decode step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/cp_size.hpp>

namespace demo {

// One layer's attention, bf16 in the cache, fp32 partials and outputs.
struct model_dims {
    bool latent = false;       // MLA: 512 values and 64 rope numbers of a token, which all heads share
    std::int64_t heads = 32;   // query heads
    std::int64_t kv_heads = 8; // of GQA; 1 for MLA

    std::int64_t query_width() const { return latent ? 576 : 128; }
    std::int64_t value_width() const { return latent ? 512 : 128; }
    std::int64_t token_bytes() const { return 2 * (latent ? 576 : kv_heads * 256); }
    const char* attention() const { return latent ? "mla" : "gqa"; }
    ctxpar::model_shape shape() const;
};

inline constexpr std::int64_t cache_interleave = 16; // tokens, and those of a block

using requests = std::vector<ctxpar::request_load>; // keys: the request's length, the step's own rows included

// Requests over replicas, each whole on one: the largest first, to the replica with the least keys so far.
std::vector<requests> spread_requests(const requests& all, std::int64_t replicas);

// What a layer is predicted to take, in us: with replicas that share nothing, and with all ranks sharing the KV.
double predicted_apart_us(const ctxpar::machine_costs& costs, const model_dims& model, const requests& all,
                          std::int64_t ranks);
double predicted_shared_us(const ctxpar::machine_costs& costs, const model_dims& model, const requests& all,
                           std::int64_t ranks, ctxpar::merge_kind merge);

} // namespace demo
