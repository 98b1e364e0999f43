// Ranks that are threads of this process and compute on an emulated device: the kind of ranks (test/support/
// local_ranks.hpp) over which the exactness suites run with cuda_backend.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include <ctxpar/cuda.cuh>

#include "../support/deployment.hpp"
#include "device.hpp"

namespace ctxpar_test {

// Returns when the work that was given to the stream is done.
inline void finish_stream(cudaStream_t stream) {
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// Moves bytes between ranks on the host, once their streams have come so far: the plainest communicator that takes a
// stream of a device. It has no shortcuts through its peers' memory, so every part of a merge is a call.
class host_side_communicator {
public:
    using stream_type = cudaStream_t;
    explicit host_side_communicator(local_communicator of) : of_(std::move(of)) {}

    int rank() const { return of_.rank(); }
    int size() const { return of_.size(); }
    void all_gather(const void* send, void* recv, std::size_t bytes, cudaStream_t stream, collective_note note = {}) {
        finish_stream(stream);
        of_.all_gather(send, recv, bytes, {}, note);
    }
    void all_to_all(const void* send, void* recv, std::size_t bytes, cudaStream_t stream, collective_note note = {}) {
        finish_stream(stream);
        of_.all_to_all(send, recv, bytes, {}, note);
    }
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, cudaStream_t stream, collective_note note = {}) {
        finish_stream(stream);
        of_.all_to_all(send, send_bytes, recv, recv_bytes, {}, note);
    }
    void agree(std::uint64_t digest, const char* name, cudaStream_t) { of_.agree(digest, name, {}); }
    void check() { of_.check(); }
    void wait(cudaStream_t stream) {
        finish_stream(stream);
        of_.wait({});
    }
    std::uint64_t bytes_sent() const { return of_.bytes_sent(); }
    check_level checks() const { return of_.checks(); }

    std::optional<host_side_communicator> split(int color, int key) {
        std::optional<local_communicator> part = of_.split(color, key);
        if (!part) return std::nullopt;
        return host_side_communicator(std::move(*part));
    }

private:
    local_communicator of_;
};

static_assert(communicator<host_side_communicator>);

struct device_ranks {
    using backend = cuda_backend;
    using communicator = host_side_communicator;
    using stream_type = cudaStream_t;
#if defined(__SANITIZE_ADDRESS__) // slower still
    static constexpr std::uint64_t share = 30;
    static constexpr std::uint64_t prefill_share = 90;
#else
    static constexpr std::uint64_t share = 10;
    static constexpr std::uint64_t prefill_share = 30;
#endif

    class stream {
    public:
        stream() {
            cuda::check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        }
        stream(const stream&) = delete;
        stream& operator=(const stream&) = delete;
        ~stream() { // where a test has failed, with work that needs memory which is about to go
            if (cudaStreamSynchronize(handle_) != cudaSuccess) return;
            cudaStreamDestroy(handle_);
        }
        cudaStream_t get() const { return handle_; }

    private:
        cudaStream_t handle_ = nullptr;
    };

    static auto backends(const deployment&) {
        return [](int) { return cuda_backend(); };
    }

    // The orders in which streams, blocks and threads of kernels go on are others for every seed, and for every number
    // of threads, which says no more than that here.
    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        const std::uint64_t seed = d.seed * 64 + static_cast<std::uint64_t>(d.threads);
        simt::device_options device_options;
        device_options.seed = seed;
        const simt::device device(device_options);
        local_options options;
        options.checks = d.checks;
        run_local_ranks(static_cast<int>(d.world()), options, [&](local_communicator& world) {
            const std::uint64_t own = seed * 64 + static_cast<std::uint64_t>(world.rank());
            cuda::emulated_order() = {static_cast<simt::thread_order>(own % 3), own};
            host_side_communicator mine(std::move(world));
            fn(mine);
        });
    }

    static std::optional<host_side_communicator> split(host_side_communicator& world, int color, int key) {
        return world.split(color, key);
    }

    static void finish(cudaStream_t stream) {
        finish_stream(stream);
    }
};

} // namespace ctxpar_test
