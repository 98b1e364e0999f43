// What is to be prefilled: the sizes that the command line gives, checked and completed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/mesh.hpp>
#include <ctxpar/layout/zigzag.hpp>

#include "options.hpp"

namespace demo {

enum class fault { none, context_short, chunks_swapped, pad_kept };

// One way to run the same prefill.
struct configuration {
    std::int64_t dcp = 1;
    ctxpar::prefill_path path = ctxpar::prefill_path::automatic;

    const char* name() const;
};

struct problem {
    std::int64_t tokens = 0;
    std::int64_t chunk = 0; // rows of a step; those of the last one are attended
    std::int64_t pcp = 0;
    std::int64_t q_heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t interleave = 0;
    std::int64_t block_size = 0;
    std::int64_t workspace_rows = 0; // of the gather of context
    std::int64_t threads_per_rank = 1;
    ctxpar::cpu::isa instructions = ctxpar::cpu::isa::portable;
    float softmax_scale = 0.0F;
    bool on_gpus = false;      // the caches lie on GPUs
    bool through_nccl = false; // and ranks talk through NCCL
    std::string id_file;       // by which NCCL's unique id gets to all ranks; empty: by the host's communicator
    std::uint64_t seed = 0;
    fault injected = fault::none;
    std::vector<configuration> configurations;

    std::int64_t computed() const { return tokens - chunk; }
    std::int64_t group() const { return q_heads / kv_heads; } // query heads of a KV head
    std::int64_t largest_dcp() const;
    // The law of ownership and the ranks with one DCP size.
    ctxpar::ownership law(std::int64_t dcp) const { return ctxpar::make_ownership(dcp, interleave); }
    ctxpar::mesh ranks(std::int64_t dcp) const;
    // Blocks of a rank's cache.
    std::int64_t blocks(std::int64_t dcp) const;
    // Bytes of a rank's cache, by arithmetic.
    std::int64_t pool_bytes(std::int64_t dcp) const { return blocks(dcp) * block_size * kv_heads * 2 * head_dim * 2; }
    // (row, key) pairs of the rows that are attended.
    std::int64_t pairs() const { return chunk * computed() + chunk * (chunk + 1) / 2; }
    ctxpar::zigzag_law split() const { return ctxpar::make_zigzag(pcp); }
};

// config_error with the library's sentence, or ours, for what can not be prefilled.
problem make_problem(const options& given);

} // namespace demo
