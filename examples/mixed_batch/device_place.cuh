// Where a rank computes: a GPU, as place.hpp wants it. Ranks talk there through a Communicator; World joins them on the
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/universal_vector.h>

#include <ctxpar/cuda.cuh>

#include "common/device_groups.hpp"
#include "options.hpp"

namespace demo {

// Memory of a device that owns itself: converts to the workspace it is.
class device_workspace {
public:
    explicit device_workspace(std::size_t bytes) : memory_(bytes) {}
    operator ctxpar::workspace() { return {thrust::raw_pointer_cast(memory_.data()), memory_.size()}; }

private:
    thrust::device_vector<std::byte> memory_;
};

template <class Communicator, class World>
struct device_place {
    using world_type = World;
    using communicator = Communicator;
    using backend = ctxpar::cuda_backend;
    using lent_memory = device_workspace;
    template <class T>
    using memory = thrust::device_vector<T>;
    template <class T>
    using numbers = thrust::universal_vector<T>;
    static constexpr cudaStream_t stream = nullptr;

    device_groups<Communicator> groups;
    std::optional<Communicator> tp;

    device_place(World& world, const options& given) : groups(on_its_device(world), given.ranks(), given.id_file) {
        tp = groups.all.split(given.ranks().group(ctxpar::group_kind::tp, world.rank()));
    }

    // No longer than the communicator waits; freeing memory would wait for ever for a rank that does not come.
    void finish() { tp->wait(stream); }

    template <class Memory>
    static auto* pointer(Memory& memory) {
        return thrust::raw_pointer_cast(memory.data());
    }
    template <class T>
    static memory<T> moved(const std::vector<T>& of_host) {
        return of_host;
    }
    template <class T>
    std::vector<T> on_host(const memory<T>& of_device) {
        finish();
        std::vector<T> copy(of_device.size());
        thrust::copy(of_device.begin(), of_device.end(), copy.begin());
        return copy;
    }
    template <class T>
    std::vector<T> on_host(const T* of_device, std::int64_t count) {
        finish();
        std::vector<T> copy(static_cast<std::size_t>(count));
        ctxpar::cuda::check(cudaMemcpy(copy.data(), of_device, copy.size() * sizeof(T), cudaMemcpyDefault),
                            "cudaMemcpy");
        return copy;
    }

private:
    static World& on_its_device(World& world) {
        use_device_of(world);
        return world;
    }
};

} // namespace demo
