// Where a rank computes: its groups, and memory that kernels of its backend read and write. Here, on a CPU.
//
//   memory<T>      of a rank, like a vector; numbers<T> is what the host can read as well
//   lent_memory    a workspace that owns itself
//   pointer(m)     of memory, as the library takes it
//   moved(v)       a vector of the host, in memory
//   finish()       returns when the work that was given to the stream is done
//   on_host(m)     finishes, and gives what is in memory in a vector of the host
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/core/workspace.hpp>

#include "common/groups.hpp"
#include "options.hpp"

namespace demo {

template <ctxpar::communicator World>
struct host_place {
    using world_type = World;
    using communicator = World;
    using backend = ctxpar::cpu_backend;
    using lent_memory = ctxpar::host_workspace;
    template <class T>
    using memory = std::vector<T>;
    template <class T>
    using numbers = std::vector<T>;
    static constexpr ctxpar::host_stream stream{};

    rank_groups<World> groups;
    std::optional<World> tp;

    host_place(World& world, const options& given) : groups(world, given.ranks()) {
        const ctxpar::rank_group own = given.ranks().group(ctxpar::group_kind::tp, world.rank());
        tp = world.split(static_cast<int>(own.color), static_cast<int>(own.key));
    }

    static void finish() {}

    template <class T>
    static T* pointer(std::vector<T>& memory) {
        return memory.data();
    }
    template <class T>
    static const T* pointer(const std::vector<T>& memory) {
        return memory.data();
    }
    template <class T>
    static const std::vector<T>& moved(const std::vector<T>& of_host) {
        return of_host;
    }
    template <class T>
    static const std::vector<T>& on_host(const std::vector<T>& memory) {
        return memory;
    }
    template <class T>
    static std::vector<T> on_host(const T* memory, std::int64_t count) {
        return {memory, memory + count};
    }
};

} // namespace demo
