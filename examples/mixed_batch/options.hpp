// The command line of mixed_batch, and the model it serves.
#pragma once

#include <cstdint>
#include <string>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace demo {

struct options {
    ctxpar::topology sizes;
    std::int64_t interleave = 8;
    std::int64_t chunk = 128; // tokens of one prompt in a step, at most
    ctxpar::prefill_path path = ctxpar::prefill_path::automatic;
    std::uint64_t seed = 1;
    std::string backend = "cpu";
    std::string comm = "local";
    std::string id_file;         // by which NCCL's unique id gets to all ranks; empty: by the host's communicator
    bool computed_short = false; // the injected fault

    std::int64_t kv_heads = 1;
    static constexpr std::int64_t q_heads = 8;
    static constexpr std::int64_t head_dim = 64;
    static constexpr std::int64_t layers = 2;
    static constexpr std::int64_t block_size = 16;
    static constexpr std::int64_t max_requests = 3; // at the same time
    static constexpr std::int64_t longest = 640;    // tokens of a request

    ctxpar::mesh ranks() const { return {sizes, {ctxpar::attention_kind::gqa, q_heads, kv_heads}}; }
    bool on_gpus() const { return backend == "cuda"; }
    // config_error "comm" for ranks that can not talk like that.
    void check() const;
    // Blocks that a request takes of every rank's pool.
    std::int64_t blocks() const;
};

// Ends the program with status 2 where the command line is not legal, with 0 for --help.
options parse_options(int argc, char** argv);

} // namespace demo
