// The groups of one rank whose cache lies on a GPU. Ranks that are threads of this process may share GPUs, and talk
// through the process (local_cuda_communicator); those that have one each, be they threads or processes, through NCCL.
// A World is the communicator that joins all ranks on the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/comm/local_cuda.hpp>
#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/layout/mesh.hpp>

#include "unique_id.hpp"

namespace demo {

inline int device_count() {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    return found == cudaSuccess ? devices : 0;
}

// What every rank has, on every rank.
template <class World, class T>
std::vector<T> from_all(World& world, const T& mine, const char* what) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(world.size()), mine);
    world.all_gather(&all[static_cast<std::size_t>(world.rank())], all.data(), sizeof(T), {}, {what});
    return all;
}

// What rank 0 made, on every rank.
template <class World, class T>
T from_first(World& world, const T& mine) {
    return from_all(world, mine, "made by rank 0").front();
}

inline std::string host_name() {
    char name[256] = {};
    ctxpar::require(gethostname(name, sizeof(name) - 1) == 0, "host", "this host does not tell its name");
    return name;
}

// "host GPU 0000:17:00.0", the device that is current on each rank.
template <class World>
std::vector<std::string> device_names(World& world) {
    struct name_text {
        char text[320];
    };
    int device = 0;
    char bus[32] = {};
    ctxpar::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    ctxpar::cuda::check(cudaDeviceGetPCIBusId(bus, sizeof(bus), device), "cudaDeviceGetPCIBusId");
    name_text own{};
    (host_name() + " GPU " + bus).copy(own.text, sizeof(own.text) - 1);
    std::vector<std::string> names;
    for (const name_text& each : from_all(world, own, "names of devices")) names.emplace_back(each.text);
    return names;
}

// Makes a GPU that of the calling thread, a rank of `world`; the ranks of a host take turns where it has fewer GPUs.
template <class World>
void use_device_of(World& world) {
    struct name_text {
        char text[256];
    };
    name_text own{};
    host_name().copy(own.text, sizeof(own.text) - 1);
    const std::vector<name_text> hosts = from_all(world, own, "names of hosts");
    int before = 0; // ranks of this host
    for (int rank = 0; rank < world.rank(); ++rank)
        if (std::strcmp(hosts[static_cast<std::size_t>(rank)].text, own.text) == 0) ++before;
    ctxpar::require(device_count() > 0, "backend", host_name(), " has no GPU; --backend cpu needs none");
    ctxpar::cuda::check(cudaSetDevice(before % device_count()), "cudaSetDevice");
}

// All ranks, over their devices. Called by all of them, with the device of each current. NCCL's unique id goes from
// rank 0 to the others by `world`, or, where there is a path, by a file.
template <class Communicator>
class device_world;

template <>
class device_world<ctxpar::local_cuda_communicator> {
public:
    device_world(ctxpar::local_communicator& world, const std::string&,
                 ctxpar::check_level checks = ctxpar::check_level::basic) {
        std::unique_ptr<ctxpar::local_cuda_group> made;
        if (world.rank() == 0)
            made = std::make_unique<ctxpar::local_cuda_group>(world.size(),
                                                              ctxpar::local_options{std::chrono::minutes(30), checks});
        comm_.emplace(from_first(world, made.get())->rank(world.rank()));
        (void)from_first(world, 0); // all have theirs: the group may go
    }
    std::optional<ctxpar::local_cuda_communicator> split(const ctxpar::rank_group& group) {
        return comm_->split(static_cast<int>(group.color), static_cast<int>(group.key));
    }

private:
    std::optional<ctxpar::local_cuda_communicator> comm_;
};

template <>
class device_world<ctxpar::nccl_communicator> {
public:
    template <class World>
    device_world(World& world, const std::string& id_file, ctxpar::check_level checks = ctxpar::check_level::basic)
        : how_{std::chrono::minutes(30), checks} {
        require_distinct_devices(device_names(world));
        ncclUniqueId id{};
        if (world.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        if (id_file.empty()) {
            id = from_first(world, id);
        } else {
            exchange_id({id_file, world.rank(), world.size()}, std::as_writable_bytes(std::span(&id, 1)));
        }
        ncclComm_t handle = nullptr;
        check(ncclCommInitRank(&handle, world.size(), id, world.rank()), "ncclCommInitRank");
        handles_.emplace_back(handle);
        comm_.emplace(handle, how_);
    }
    std::optional<ctxpar::nccl_communicator> split(const ctxpar::rank_group& group) {
        const ncclComm_t part = comm_->split(static_cast<int>(group.color), static_cast<int>(group.key));
        handles_.emplace_back(part);
        return std::optional<ctxpar::nccl_communicator>(std::in_place, part, how_);
    }

private:
    static void check(ncclResult_t result, const char* call) {
        ctxpar::require(result == ncclSuccess, "nccl", call, " failed: ", ncclGetErrorString(result));
    }
    struct destroy {
        void operator()(ncclComm_t handle) const { (void)ncclCommDestroy(handle); }
    };
    ctxpar::nccl_options how_;
    std::vector<std::unique_ptr<std::remove_pointer_t<ncclComm_t>, destroy>> handles_;
    std::optional<ctxpar::nccl_communicator> comm_;
};

// The groups that decode and prefill need, split from all ranks as the mesh says.
template <class Communicator>
struct device_groups {
    device_world<Communicator> all;
    std::optional<Communicator> kv, query, heads, rows;

    template <class World>
    device_groups(World& world, const ctxpar::mesh& ranks, const std::string& id_file = {}) : all(world, id_file) {
        const ctxpar::decode_groups wanted = ranks.groups_of(world.rank());
        kv = all.split(wanted.kv);
        query = all.split(wanted.query);
        heads = all.split(wanted.heads);
        rows = all.split(wanted.rows);
    }
    ctxpar::groups<Communicator> view() { return {&*kv, &*query, &*heads, &*rows}; }
    std::uint64_t bytes_sent() const {
        return kv->bytes_sent() + query->bytes_sent() + heads->bytes_sent() + rows->bytes_sent();
    }
};

} // namespace demo
