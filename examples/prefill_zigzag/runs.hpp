// A cache of one DCP size, and all configurations that run over it.
#pragma once

#include <chrono>
#include <vector>

#include "common/blocks.hpp"
#include "step.hpp"

namespace demo {

// All processes call it. The records are complete in the one that speaks.
template <class World>
std::vector<record> run_configurations(World& ranks, const problem& all, const prompt_data& data,
                                       const std::vector<configuration>& runs) {
    using rank_type = prefill_rank<typename World::communicator>;
    const std::int64_t dcp = runs.front().dcp;
    const std::int64_t world = all.ranks(dcp).world_size();
    const std::vector<std::int32_t> blocks = scattered_blocks(all.blocks(dcp));
    std::vector<pool> pools(static_cast<std::size_t>(world));
    for (std::int64_t rank = 0; rank < world; ++rank)
        if (ranks.owns(rank))
            pools[static_cast<std::size_t>(rank)] = pool(static_cast<std::size_t>(all.pool_bytes(dcp)));

    std::vector<record> records(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
        records[i].run = runs[i];
        records[i].ranks.resize(static_cast<std::size_t>(world));
        records[i].kv_bytes = pools.front().bytes();
    }
    const auto on_every_rank = [&](const auto& use) {
        ranks.run(world, [&](typename World::communicator& comm) {
            rank_type rank(all, data, dcp, blocks, pools[static_cast<std::size_t>(comm.rank())], comm);
            use(rank, comm.rank());
        });
    };
    // What a bar counts is of this process; it shows where the process speaks.
    const auto shown = [&](std::int64_t each) { return ranks.speaks() ? each * ranks.own_ranks(world) : 0; };
    const auto start = std::chrono::steady_clock::now();
    {
        progress bar(fmt::format("dcp {}: fill", dcp), shown(all.computed()));
        on_every_rank([&](rank_type& rank, int) { rank.fill(bar); });
    }
    const double filled = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    on_every_rank([&](rank_type& rank, int place) {
        const ctxpar::path_choice choice = rank.automatic_choice();
        if (place != 0) return;
        for (record& each : records) each.automatic = choice;
    });
    for (record& each : records) {
        each.fill_seconds = filled;
        progress bar(fmt::format("dcp {}: {}", dcp, each.run.name()), shown(all.pairs() / world));
        on_every_rank([&](rank_type& rank, int) { rank.attend(each, bar); });
        ranks.gather(all, each);
    }
    return records;
}

} // namespace demo
