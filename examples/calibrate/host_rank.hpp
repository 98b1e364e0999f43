// A rank whose memory is the host's, as layers and measurements want it; device_rank.cuh has the same for a GPU.
//
//   kind of a rank     what its layers are made of: backend, communicator, and memory that the backend works on
//     memory<T>        owns numbers; moved(vector) brings them there, copied(pointer, count) gets a copy for the host
//     room(bytes)      a workspace that owns itself
//     project(...)     the projection of weights.hpp
//   rank
//     comm(), stream() the ranks that share, and where their work is given
//     tell(own, all)   what every rank has, to all of them, on the host
//     split(color, key)
//     begin(), end_us() the time of what was done, or given to the stream, in between
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/workspace.hpp>

#include "place.hpp"
#include "weights.hpp"

namespace demo {

template <ctxpar::communicator C>
struct host_kind {
    using communicator = C;
    using backend = ctxpar::cpu_backend;
    using stream_type = ctxpar::host_stream;
    using pool = number_pool;
    using workspace = ctxpar::host_workspace;
    using activation = float; // of a projection
    template <class T>
    using memory = std::vector<T>;
    static constexpr bool on_device = false;

    template <class T>
    static memory<T> moved(std::vector<T> numbers, stream_type) {
        return numbers;
    }
    template <class T>
    static std::vector<T> copied(const T* from, std::int64_t count, stream_type) {
        return {from, from + count};
    }
    template <class T>
    static void write(const std::vector<T>& from, T* to, stream_type) {
        std::memcpy(static_cast<void*>(to), from.data(), from.size() * sizeof(T));
    }
    static workspace room(std::size_t bytes, stream_type) { return workspace(bytes); }
    static void project(const projection& all, const ctxpar::bf16* weights, const float* rows, float* out,
                        stream_type) {
        project_on_host(all, weights, rows, out);
    }
};

template <ctxpar::communicator C>
class host_rank {
public:
    using kind = host_kind<C>;

    explicit host_rank(C& world) : comm_(&world) {}

    int rank() const { return comm_->rank(); }
    int size() const { return comm_->size(); }
    C& comm() { return *comm_; }
    static ctxpar::host_stream stream() { return {}; }

    void tell(const double& own, double* all) { comm_->all_gather(&own, all, sizeof(own), {}, {"a measured time"}); }
    std::unique_ptr<host_rank> split(int color, int key) {
        return std::unique_ptr<host_rank>(new host_rank(comm_->split(color, key)));
    }

    void begin() { begin_ = now_us(); }
    double end_us() const { return now_us() - begin_; }

private:
    explicit host_rank(std::optional<C> part) : part_(std::move(part)), comm_(&*part_) {}

    std::optional<C> part_; // where it is one of several
    C* comm_;
    double begin_ = 0;
};

} // namespace demo
