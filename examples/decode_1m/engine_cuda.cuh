// The engine of one attention policy, whose caches lie on GPUs.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/device_groups.hpp"
#include "device_rank.cuh"
#include "engine_cuda.hpp"

namespace demo {

// Ranks of one kind of attention and one kind of communicator; World joins them on the host.
template <class Attention, class Communicator, class World = ctxpar::local_communicator>
class cuda_engine final : public engine_over<World> {
public:
    cuda_engine(const problem& all, const kv_data& data)
        : all_(all), data_(data), blocks_(scattered_blocks(all.requests * all.blocks_per_request())),
          caches_(static_cast<std::size_t>(all.ranks().world_size())) {}

    void fill(World& world, const std::vector<std::string>& merges, progress& bar) override {
        use_device_of(world);
        device_rank<Attention, Communicator, World> own = here(world);
        for (const std::string& merge : merges) (void)own.make_decoder(merge);
        caches_[static_cast<std::size_t>(world.rank())].allocate(all_);
        auto decoder = own.make_decoder(merges.front());
        own.fill(decoder, bar);
    }

    void decode(World& world, record& to) override {
        use_device_of(world);
        here(world).decode(to);
    }

    std::size_t pool_bytes() const override {
        std::size_t bytes = 0;
        for (const auto& cache : caches_) bytes += cache.bytes();
        return bytes;
    }

    // What the devices copy: bytes read, all devices together.
    double read_bandwidth(std::int64_t) const override { return copy_bandwidth() * used_devices(); }
    std::int64_t reading_threads() const override { return 0; }

private:
    // By the ranks of this process.
    int used_devices() const {
        const auto ranks =
            std::count_if(caches_.begin(), caches_.end(), [](const auto& cache) { return cache.bytes() > 0; });
        return std::min(device_count(), static_cast<int>(ranks));
    }
    device_rank<Attention, Communicator, World> here(World& world) {
        return {all_, data_, caches_[static_cast<std::size_t>(world.rank())], blocks_, world};
    }

    const problem& all_;
    const kv_data& data_;
    std::vector<std::int32_t> blocks_;
    std::vector<device_cache<Attention>> caches_;
};

template <class Attention>
std::unique_ptr<engine> make_cuda_engine_of(const problem& all, const kv_data& data) {
    if (all.through_nccl) return std::make_unique<cuda_engine<Attention, ctxpar::nccl_communicator>>(all, data);
    return std::make_unique<cuda_engine<Attention, ctxpar::local_cuda_communicator>>(all, data);
}

} // namespace demo
