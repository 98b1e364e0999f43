// What is to be decoded: the sizes that the command line gives, checked and completed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/mesh.hpp>

#include "options.hpp"

namespace demo {

enum class fault { none, mean_merge, wrong_base, drop_newest, double_newest, drop_shard, swap_group };

struct problem {
    ctxpar::attention_kind kind = ctxpar::attention_kind::gqa;
    ctxpar::topology sizes;
    std::int64_t q_heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t query_width = 0; // of queries and keys
    std::int64_t value_width = 0; // of values and outputs
    ctxpar::scalar_type kv_type = ctxpar::scalar_type::bf16;
    float k_scale = 1.0F; // of a quantised cache: value = stored * scale
    float v_scale = 1.0F;
    float softmax_scale = 0.0F;
    ctxpar::ownership law;
    std::int64_t tokens = 0; // of a request in the last step
    std::int64_t block_size = 0;
    std::int64_t layers = 0;
    std::int64_t requests = 0;
    std::int64_t query_rows = 0;
    std::int64_t steps = 0;
    std::int64_t threads_per_rank = 1;
    bool on_gpus = false;      // the caches lie on GPUs
    bool through_nccl = false; // and ranks talk through NCCL
    std::string id_file;       // by which NCCL's unique id gets to all ranks; empty: by the host's communicator
    std::uint64_t seed = 0;
    fault injected = fault::none;
    ctxpar::output_placement placement = ctxpar::output_placement::own_heads;

    bool is_mla() const { return kind == ctxpar::attention_kind::mla; }
    ctxpar::mesh ranks() const { return {sizes, {kind, q_heads, kv_heads}}; }

    // Tokens of a request before the first step. Requests differ in length, each by a little more than a round.
    std::int64_t filled(std::int64_t request) const;
    // Tokens of a request in a step, that step's own included.
    std::int64_t length(std::int64_t request, std::int64_t step) const {
        return filled(request) + (step + 1) * query_rows;
    }
    // Tokens of a request that need room, and the blocks they take on every rank.
    std::int64_t room() const { return tokens + (injected == fault::double_newest ? 1 : 0); }
    std::int64_t blocks_per_request() const;
    // Bytes of one cached token on one rank and in one layer.
    std::int64_t token_bytes() const;
    // Bytes of a rank's pools, all layers and requests, by arithmetic.
    double pool_bytes_per_rank() const;
};

// config_error with the library's sentence, or ours, for what can not be decoded.
problem make_problem(const options& given);

} // namespace demo
