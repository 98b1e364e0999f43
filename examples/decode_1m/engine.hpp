// What the example does as an engine would: pools, block tables, and decode steps on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ctxpar/comm/local.hpp>

#include "common/progress.hpp"
#include "data.hpp"
#include "problem.hpp"

namespace demo {

// What the steps of one merge left behind. Ranks write their own elements.
struct record {
    record(const problem& all, std::string merge_name);

    std::string merge;
    std::int64_t world = 0;                  // ranks
    std::vector<std::vector<float>> outputs; // [steps][layers][world] of [rows][heads of the rank][width]
    std::vector<double> begin, end;          // [steps][world] seconds
    std::vector<std::uint64_t> sent;         // [world] bytes, as the communicators counted
    std::uint64_t planned = 0;               // bytes of a rank, as exchange() says
    std::int64_t collectives = 0;            // of a layer
    std::int64_t launches = 0;               // of a layer, the append included

    std::vector<float>& output(const problem& all, std::int64_t step, std::int64_t layer, std::int64_t rank) {
        return outputs[static_cast<std::size_t>((step * all.layers + layer) * world + rank)];
    }
    const std::vector<float>& output(const problem& all, std::int64_t step, std::int64_t layer,
                                     std::int64_t rank) const {
        return outputs[static_cast<std::size_t>((step * all.layers + layer) * world + rank)];
    }
    // From the first rank's start to the last one's end.
    double step_seconds(std::int64_t step) const;
};

// The ranks of one or more processes; those of this process are its own.
template <ctxpar::communicator Communicator>
class engine_over {
public:
    virtual ~engine_over() = default;

    // Called by all ranks: allocates the rank's pools and writes its tokens, all but those of the
    // steps. config_error before that where the library refuses the shape or one of the merges.
    virtual void fill(Communicator& world, const std::vector<std::string>& merges, progress& bar) = 0;

    // Called by all ranks: the decode steps with one merge.
    virtual void decode(Communicator& world, record& to) = 0;

    // Of the pools of all layers and of this process's ranks.
    virtual std::size_t pool_bytes() const = 0;
    // Bytes a second that `threads` threads, or GPUs, read of them at best.
    virtual double read_bandwidth(std::int64_t threads) const = 0;
    // Threads of this process that read at once, after fill; 0 where GPUs do.
    virtual std::int64_t reading_threads() const = 0;
};

using engine = engine_over<ctxpar::local_communicator>; // ranks are threads of this process

std::unique_ptr<engine> make_engine(const problem& all, const kv_data& data);

// One for each kind of attention, so that they are compiled apart.
std::unique_ptr<engine> make_gqa_engine(const problem& all, const kv_data& data);
std::unique_ptr<engine> make_mla_engine(const problem& all, const kv_data& data);

} // namespace demo
