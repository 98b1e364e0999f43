// A rank whose memory is a GPU's; see host_rank.hpp. Ranks talk there through C; World joins them on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/core/workspace.hpp>

#include "common/device_groups.hpp"
#include "place.hpp"
#include "weights.cuh"

namespace demo {

// Memory of the current device that owns itself. Copies are work of the stream, for which the host waits.
template <class T>
class device_memory {
public:
    device_memory() = default;
    explicit device_memory(std::size_t count) : count_(count) {
        void* made = nullptr;
        if (count > 0) ctxpar::cuda::check(cudaMalloc(&made, count * sizeof(T)), "cudaMalloc");
        data_.reset(static_cast<T*>(made));
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    std::size_t size() const { return count_; }

private:
    struct release {
        void operator()(T* memory) const { (void)cudaFree(memory); }
    };
    std::unique_ptr<T, release> data_;
    std::size_t count_ = 0;
};

inline void copy_and_wait(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    ctxpar::cuda::check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
    ctxpar::cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

class device_workspace {
public:
    explicit device_workspace(std::size_t bytes) : memory_(bytes) {}
    operator ctxpar::workspace() { return {memory_.data(), memory_.size()}; }

private:
    device_memory<std::byte> memory_;
};

// As a number_pool, and larger than a device's cache.
class device_pool : private device_memory<std::byte>, public memory_in_turn {
public:
    device_pool(std::size_t bytes, cudaStream_t stream)
        : device_memory<std::byte>(bytes), memory_in_turn(device_memory<std::byte>::data(), bytes) {
        std::vector<std::byte> numbers(bytes);
        fill_with_numbers(numbers.data(), bytes);
        copy_and_wait(memory_in_turn::data(), numbers.data(), bytes, cudaMemcpyHostToDevice, stream);
    }
    using memory_in_turn::data;
};

template <ctxpar::communicator C>
struct device_kind {
    using communicator = C;
    using backend = ctxpar::cuda_backend;
    using stream_type = cudaStream_t;
    using pool = device_pool;
    using workspace = device_workspace;
    using activation = ctxpar::bf16;
    template <class T>
    using memory = device_memory<T>;
    static constexpr bool on_device = true;

    template <class T>
    static memory<T> moved(const std::vector<T>& numbers, stream_type stream) {
        memory<T> there(numbers.size());
        write(numbers, there.data(), stream);
        return there;
    }
    template <class T>
    static std::vector<T> copied(const T* from, std::int64_t count, stream_type stream) {
        std::vector<T> numbers(static_cast<std::size_t>(count));
        copy_and_wait(numbers.data(), from, numbers.size() * sizeof(T), cudaMemcpyDeviceToHost, stream);
        return numbers;
    }
    template <class T>
    static void write(const std::vector<T>& from, T* to, stream_type stream) {
        if (!from.empty()) copy_and_wait(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    }
    static workspace room(std::size_t bytes, stream_type) { return workspace(bytes); }
    static void project(const projection& all, const ctxpar::bf16* weights, const ctxpar::bf16* rows, float* out,
                        stream_type stream) {
        project_on_device({all, weights, rows, out}, stream);
    }
};

// A stream, and two points in its work between which the device tells the time.
class timed_stream {
public:
    timed_stream() {
        ctxpar::cuda::check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        ctxpar::cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
        ctxpar::cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
    }
    timed_stream(const timed_stream&) = delete;
    timed_stream& operator=(const timed_stream&) = delete;
    ~timed_stream() {
        (void)cudaEventDestroy(begin_);
        (void)cudaEventDestroy(end_);
        (void)cudaStreamDestroy(handle_);
    }
    cudaStream_t get() const { return handle_; }

    void begin() { ctxpar::cuda::check(cudaEventRecord(begin_, handle_), "cudaEventRecord"); }
    // Waits as the communicator does, no longer than its timeout.
    template <class C>
    double end_us(C& comm) {
        ctxpar::cuda::check(cudaEventRecord(end_, handle_), "cudaEventRecord");
        comm.wait(handle_);
        float ms = 0;
        ctxpar::cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
        return 1e3 * static_cast<double>(ms);
    }

private:
    cudaStream_t handle_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

template <ctxpar::communicator C, ctxpar::communicator World>
class device_rank {
public:
    using kind = device_kind<C>;

    // All ranks together; makes a GPU that of the calling thread. config_error as of device_world.
    explicit device_rank(World& world) : host_(&world), owned_(make_world(world)), all_(owned_.get()) {
        comm_ = part_of(0, world.rank());
        stream_ = std::make_shared<timed_stream>();
    }

    int rank() const { return host_->rank(); }
    int size() const { return host_->size(); }
    C& comm() { return *comm_; }
    cudaStream_t stream() const { return stream_->get(); }

    void tell(const double& own, double* all) { host_->all_gather(&own, all, sizeof(own), {}, {"a measured time"}); }
    std::unique_ptr<device_rank> split(int color, int key) {
        return std::unique_ptr<device_rank>(new device_rank(*this, color, key));
    }

    void begin() { stream_->begin(); }
    double end_us() { return stream_->end_us(*comm_); }

private:
    using device_world_type = device_world<C>;

    device_rank(device_rank& from, int color, int key)
        : host_part_(from.host_->split(color, key)), host_(&*host_part_), all_(from.all_), stream_(from.stream_) {
        comm_ = part_of(color, key);
    }
    std::optional<C> part_of(int color, int key) {
        ctxpar::rank_group group;
        group.color = color;
        group.key = key;
        return all_->split(group);
    }
    static std::unique_ptr<device_world_type> make_world(World& world) {
        use_device_of(world);
        return std::make_unique<device_world_type>(world, std::string(), ctxpar::check_level::off);
    }

    std::optional<World> host_part_; // where it is one of several
    World* host_;
    std::unique_ptr<device_world_type> owned_; // of the rank that all others were split from
    device_world_type* all_;
    std::optional<C> comm_;
    std::shared_ptr<timed_stream> stream_;
};

} // namespace demo
