// The groups of one rank whose cache lies on a GPU. Ranks are threads of this process: those that share a GPU, or have
// one each, talk through the process (local_cuda_communicator), those that have one each also through NCCL.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/comm/local_cuda.hpp>
#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace demo {

inline int device_count() {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    return found == cudaSuccess ? devices : 0;
}

// Makes a GPU that of the calling thread, a rank of `world`; ranks take turns where there are fewer GPUs.
inline void use_device_of(const ctxpar::local_communicator& world) {
    ctxpar::cuda::check(cudaSetDevice(world.rank() % device_count()), "cudaSetDevice");
}

// What rank 0 made, on every rank.
template <class T>
T from_first(ctxpar::local_communicator& world, const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(static_cast<std::size_t>(world.size()), mine);
    world.all_gather(&all[static_cast<std::size_t>(world.rank())], all.data(), sizeof(T), {}, {"made by rank 0"});
    return all.front();
}

// All ranks, over their devices. Called by all of them, with the device of each current.
template <class Communicator>
class device_world;

template <>
class device_world<ctxpar::local_cuda_communicator> {
public:
    explicit device_world(ctxpar::local_communicator& world) {
        std::unique_ptr<ctxpar::local_cuda_group> made;
        if (world.rank() == 0)
            made = std::make_unique<ctxpar::local_cuda_group>(world.size(),
                                                              ctxpar::local_options{std::chrono::minutes(30)});
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
    explicit device_world(ctxpar::local_communicator& world) {
        ctxpar::require(device_count() >= world.size(), "devices", "NCCL wants a GPU for each of ", world.size(),
                        " ranks, and there are ", device_count(), "; --comm local lets ranks share one");
        ncclUniqueId id{};
        if (world.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        ncclComm_t handle = nullptr;
        check(ncclCommInitRank(&handle, world.size(), from_first(world, id), world.rank()), "ncclCommInitRank");
        handles_.emplace_back(handle);
        comm_.emplace(handle, patient);
    }
    std::optional<ctxpar::nccl_communicator> split(const ctxpar::rank_group& group) {
        const ncclComm_t part = comm_->split(static_cast<int>(group.color), static_cast<int>(group.key));
        handles_.emplace_back(part);
        return std::optional<ctxpar::nccl_communicator>(std::in_place, part, patient);
    }

private:
    static constexpr ctxpar::nccl_options patient{std::chrono::minutes(30)};
    static void check(ncclResult_t result, const char* call) {
        ctxpar::require(result == ncclSuccess, "nccl", call, " failed: ", ncclGetErrorString(result));
    }
    struct destroy {
        void operator()(ncclComm_t handle) const { (void)ncclCommDestroy(handle); }
    };
    std::vector<std::unique_ptr<std::remove_pointer_t<ncclComm_t>, destroy>> handles_;
    std::optional<ctxpar::nccl_communicator> comm_;
};

// The groups that decode and prefill need, split from all ranks as the mesh says.
template <class Communicator>
struct device_groups {
    device_world<Communicator> all;
    std::optional<Communicator> kv, query, heads, rows;

    device_groups(ctxpar::local_communicator& world, const ctxpar::mesh& ranks) : all(world) {
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
