#include "engine.hpp"

#include <algorithm>
#include <chrono>

#include <ctxpar/comm/local.hpp>

#include "common/blocks.hpp"
#include "common/memory.hpp"
#include "common/text.hpp"
#include "engine_cuda.hpp"
#include "rank.hpp"

namespace demo {
namespace {

// Ranks wait for each other, and threads may outnumber cores by far.
const ctxpar::local_options patient{std::chrono::minutes(30)};

} // namespace

double record::seconds() const {
    double begin = ranks.front().begin;
    double end = ranks.front().end;
    for (const rank_record& each : ranks) {
        begin = std::min(begin, each.begin);
        end = std::max(end, each.end);
    }
    return end - begin;
}

std::vector<record> run_configurations(const problem& all, const prompt_data& data,
                                       const std::vector<configuration>& runs) {
    if (all.on_gpus) return run_cuda_configurations(all, data, runs);
    const std::int64_t dcp = runs.front().dcp;
    const auto world = static_cast<int>(all.ranks(dcp).world_size());
    const std::vector<std::int32_t> blocks = scattered_blocks(all.blocks(dcp));
    std::vector<pool> pools;
    for (int rank = 0; rank < world; ++rank) pools.emplace_back(static_cast<std::size_t>(all.pool_bytes(dcp)));

    std::vector<record> records(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
        records[i].run = runs[i];
        records[i].ranks.resize(static_cast<std::size_t>(world));
        records[i].kv_bytes = pools.front().bytes();
    }
    const auto on_every_rank = [&](const auto& use) {
        ctxpar::run_local_ranks(world, patient, [&](ctxpar::local_communicator& comm) {
            prefill_rank rank(all, data, dcp, blocks, pools[static_cast<std::size_t>(comm.rank())], comm);
            use(rank, comm.rank());
        });
    };
    const auto start = std::chrono::steady_clock::now();
    {
        progress bar(fmt::format("dcp {}: fill", dcp), all.computed() * world);
        on_every_rank([&](prefill_rank& rank, int) { rank.fill(bar); });
    }
    const double filled = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    on_every_rank([&](prefill_rank& rank, int place) {
        const ctxpar::path_choice choice = rank.automatic_choice();
        if (place != 0) return;
        for (record& each : records) each.automatic = choice;
    });
    for (record& each : records) {
        each.fill_seconds = filled;
        progress bar(fmt::format("dcp {}: {}", dcp, each.run.name()), all.pairs());
        on_every_rank([&](prefill_rank& rank, int) { rank.attend(each, bar); });
    }
    return records;
}

} // namespace demo
