// A cache of one DCP size, and all configurations that run over it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/blocks.hpp"
#include "common/progress.hpp"
#include "engine.hpp"

namespace demo {

// All processes call it. The records are complete in the one that speaks. Kind says where ranks compute:
//
//   rank<Communicator>             a rank, joined to the others on the host by a Communicator
//   pool                           its cache
//   prepare(comm, all, dcp, pool)  in the thread of the rank, before anything is made of it
template <class Kind, class World>
std::vector<record> run_configurations(World& ranks, const problem& all, const prompt_data& data,
                                       const std::vector<configuration>& runs) {
    using rank_type = typename Kind::template rank<typename World::communicator>;
    const std::int64_t dcp = runs.front().dcp;
    const std::int64_t world = all.ranks(dcp).world_size();
    const std::vector<std::int32_t> blocks = scattered_blocks(all.blocks(dcp));
    std::vector<typename Kind::pool> pools(static_cast<std::size_t>(world));

    std::vector<record> records(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
        records[i].run = runs[i];
        records[i].ranks.resize(static_cast<std::size_t>(world));
    }
    const auto on_every_rank = [&](const auto& use) {
        ranks.run(world, [&](typename World::communicator& comm) {
            typename Kind::pool& own = pools[static_cast<std::size_t>(comm.rank())];
            Kind::prepare(comm, all, dcp, own);
            rank_type rank(all, data, dcp, blocks, own, comm);
            use(rank, comm.rank());
        });
    };
    // What a bar counts is of this process; it shows where the process speaks.
    const auto shown = [&](std::int64_t each) { return ranks.speaks() ? each * ranks.own_ranks(world) : 0; };
    const std::string name = "dcp " + std::to_string(dcp) + ": ";
    const auto start = std::chrono::steady_clock::now();
    {
        progress bar(name + "fill", shown(all.computed()));
        on_every_rank([&](rank_type& rank, int) { rank.fill(bar); });
    }
    const double filled = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    on_every_rank([&](rank_type& rank, int place) {
        const ctxpar::path_choice choice = rank.automatic_choice();
        if (place != 0) return;
        for (record& each : records) {
            each.automatic = choice;
            each.kv_bytes = rank.pool_bytes();
        }
    });
    for (record& each : records) {
        each.fill_seconds = filled;
        progress bar(name + each.run.name(), shown(all.pairs() / world));
        on_every_rank([&](rank_type& rank, int) { rank.attend(each, bar); });
        ranks.gather(all, each);
    }
    return records;
}

} // namespace demo
