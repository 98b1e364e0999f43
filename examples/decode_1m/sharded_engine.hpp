// The engine of one attention policy: a cache for every rank, and the calls of each.
#pragma once

#include <algorithm>
#include <span>
#include <thread>

#include "ceiling.hpp"
#include "step.hpp"

namespace demo {

template <class Attention, class Communicator = ctxpar::local_communicator>
class sharded_engine final : public engine_over<Communicator> {
public:
    sharded_engine(const problem& all, const kv_data& data, const Attention& attention)
        : all_(all), data_(data), attention_(attention),
          blocks_(scattered_blocks(all.requests * all.blocks_per_request())),
          caches_(static_cast<std::size_t>(all.ranks().world_size())) {}

    void fill(Communicator& world, const std::vector<std::string>& merges, progress& bar) override {
        decode_rank<Attention, Communicator> own = here(world);
        for (const std::string& merge : merges) (void)own.make_decoder(merge);
        caches_[static_cast<std::size_t>(world.rank())].allocate(all_);
        auto decoder = own.make_decoder(merges.front());
        own.fill(decoder, bar);
    }

    void decode(Communicator& world, record& to) override { here(world).decode(to); }

    std::size_t pool_bytes() const override {
        std::size_t bytes = 0;
        for (const auto& pool : pools()) bytes += pool.size();
        return bytes;
    }
    double read_bandwidth(std::int64_t threads) const override { return demo::read_bandwidth(pools(), threads); }
    std::int64_t reading_threads() const override {
        const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
        const auto own_ranks =
            std::count_if(caches_.begin(), caches_.end(), [](const auto& cache) { return !cache.pools().empty(); });
        return std::min<std::int64_t>(cores, own_ranks * all_.threads_per_rank);
    }

private:
    std::vector<std::span<const std::byte>> pools() const {
        std::vector<std::span<const std::byte>> all;
        for (const auto& cache : caches_)
            for (const pool& each : cache.pools()) all.emplace_back(each.data(), each.bytes());
        return all;
    }

    decode_rank<Attention, Communicator> here(Communicator& world) {
        return {all_, data_, attention_, caches_[static_cast<std::size_t>(world.rank())], blocks_, world};
    }

    const problem& all_;
    const kv_data& data_;
    Attention attention_;
    std::vector<std::int32_t> blocks_;
    std::vector<rank_cache<Attention>> caches_;
};

} // namespace demo
