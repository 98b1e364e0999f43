#include "engine_cuda.hpp"

#include <thrust/fill.h>

#include "device_rank.cuh"

namespace demo {
namespace {

template <class Communicator>
std::vector<record> run(const problem& all, const prompt_data& data, const std::vector<configuration>& runs) {
    const std::int64_t dcp = runs.front().dcp;
    const auto world = static_cast<int>(all.ranks(dcp).world_size());
    const std::vector<std::int32_t> blocks = scattered_blocks(all.blocks(dcp));
    std::vector<thrust::device_vector<ctxpar::bf16>> pools(static_cast<std::size_t>(world));

    std::vector<record> records(runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
        records[i].run = runs[i];
        records[i].ranks.resize(static_cast<std::size_t>(world));
        records[i].kv_bytes = static_cast<std::size_t>(all.pool_bytes(dcp));
    }
    const auto on_every_rank = [&](const auto& use) {
        const ctxpar::local_options patient{std::chrono::minutes(30)};
        ctxpar::run_local_ranks(world, patient, [&](ctxpar::local_communicator& comm) {
            use_device_of(comm);
            auto& pool = pools[static_cast<std::size_t>(comm.rank())];
            // NaN, so that nothing is found that was not written.
            if (pool.empty())
                pool.resize(static_cast<std::size_t>(all.pool_bytes(dcp)) / sizeof(ctxpar::bf16),
                            ctxpar::bf16::from_bits(0xffff));
            device_prefill_rank<Communicator> rank(all, data, dcp, blocks, pool, comm);
            use(rank, comm.rank());
        });
    };
    using rank_type = device_prefill_rank<Communicator>;
    const auto start = std::chrono::steady_clock::now();
    {
        progress bar("dcp " + std::to_string(dcp) + ": fill", all.computed() * world);
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
        on_every_rank([&](rank_type& rank, int) { rank.attend(each); });
    }
    return records;
}

} // namespace

void check_cuda(const problem& all) {
    ctxpar::require(device_count() > 0, "backend", "there is no GPU here; --backend cpu needs none");
    ctxpar::require(all.head_dim == 128, "backend", "on GPUs this example has heads of 128 elements, not ",
                    all.head_dim);
    ctxpar::require(all.injected == fault::none, "backend", "faults are injected with --backend cpu");
}

std::vector<record> run_cuda_configurations(const problem& all, const prompt_data& data,
                                            const std::vector<configuration>& runs) {
    if (all.through_nccl) return run<ctxpar::nccl_communicator>(all, data, runs);
    return run<ctxpar::local_cuda_communicator>(all, data, runs);
}

} // namespace demo
