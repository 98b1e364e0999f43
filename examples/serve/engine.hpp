// One rank of the engine: its pools, and what it computes in a step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ctxpar/comm/local.hpp>

#include "model.hpp"
#include "schedule.hpp"

namespace serve {

struct engine_options {
    std::int64_t ranks = 2;
    std::int64_t block_size = 16;
    std::int64_t interleave = 16;
    std::int64_t pool_blocks = 1;
    std::int64_t max_requests = 64;
    std::int64_t chunk = 512;
    std::int64_t move_chunk = 4096;
    std::int64_t longest = 1;
    std::int64_t threads = 1;
    bool spoil_moves = false; // an injected fault: moves of KV are left out
};

// A group of every size that divides the ranks is made at once, and a prefiller for each: what is made for a size is
// used whenever ranks join.
class engine {
public:
    // Collective over the world.
    engine(ctxpar::local_communicator& world, const engine_options& given, const model<float>& weights);
    ~engine();

    // All ranks of the step call it. For the batches whose place begins at this rank, the tokens that follow.
    std::vector<std::vector<std::int32_t>> run(const step& todo);

private:
    struct parts;
    std::unique_ptr<parts> parts_;
};

// The tokens that follow `prompt`, and how sure the model is of each, when one rank without a group computes all of
// prompt and outputs in chunks: what serving must have given.
std::vector<choice> unsharded(const model<float>& weights, const std::vector<std::int32_t>& prompt,
                              const std::vector<std::int32_t>& outputs, std::int64_t threads);

// What one core does for the toy transformer: microseconds of a row in a layer outside its attention, and operations of
// the attention of many rows a microsecond. Measured within a second.
struct core_speed {
    double row_us = 0;
    double flops_per_us = 0;
};
core_speed measure_core(const model<float>& weights);

} // namespace serve
