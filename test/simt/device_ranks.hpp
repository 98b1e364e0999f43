// Ranks that are threads of this process and compute on emulated devices: the kind of ranks (test/support/
// local_ranks.hpp) over which the exactness suites run with cuda_backend. How they exchange parts, the deployment
// decides.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ctxpar/cuda.cuh>

#include "../support/deployment.hpp"
#include "device.hpp"
#include "device_suite_communicator.hpp"

namespace ctxpar_test {

// Returns when the work that was given to the stream is done.
inline void finish_stream(cudaStream_t stream) {
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// A stream that is destroyed.
class device_stream {
public:
    device_stream() {
        cuda::check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    device_stream(const device_stream&) = delete;
    device_stream& operator=(const device_stream&) = delete;
    ~device_stream() { // where a test has failed, with work that needs memory which is about to go
        if (cudaStreamSynchronize(handle_) != cudaSuccess) return;
        cudaStreamDestroy(handle_);
    }
    cudaStream_t get() const { return handle_; }

private:
    cudaStream_t handle_ = nullptr;
};

// Throws what a rank has thrown, rather its cause than what became of it on a peer.
inline void rethrow_first(const std::vector<std::exception_ptr>& thrown) {
    std::exception_ptr first;
    for (const std::exception_ptr& each : thrown) {
        if (each == nullptr) continue;
        if (first == nullptr) first = each;
        try {
            std::rethrow_exception(each);
        } catch (const comm_error&) {
            continue;
        } catch (...) {
            throw;
        }
    }
    if (first != nullptr) std::rethrow_exception(first);
}

// Runs fn(communicator) in a thread for each rank of a deployment, for which make(rank) gives the communicator, on
// devices that were made before. The orders in which threads of kernels go on are others for every seed, and for every
// number of threads of a deployment, which says no more than that here.
template <class Make, class Fn>
void run_on_devices(const deployment& d, int devices, const Make& make, const Fn& fn) {
    const std::uint64_t seed = d.seed * 64 + static_cast<std::uint64_t>(d.threads);
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(d.world()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < d.world(); ++rank)
        threads.emplace_back([&, rank] {
            const std::uint64_t own = seed * 64 + static_cast<std::uint64_t>(rank);
            cuda::emulated_order() = {static_cast<simt::thread_order>(own % 3), own};
            try {
                cuda::check(cudaSetDevice(rank % devices), "cudaSetDevice");
                auto comm = make(rank);
                fn(comm);
            } catch (...) {
                thrown[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (std::thread& each : threads) each.join();
    rethrow_first(thrown);
}

// The ranks of one group of the emulated NCCL, by their communicators.
class nccl_handles {
public:
    explicit nccl_handles(int size) : size_(size) {
        require(ncclGetUniqueId(&id_) == ncclSuccess, "test", ncclGetLastError(nullptr));
    }
    owning_nccl_communicator rank(int rank, check_level checks) const {
        ncclComm_t handle = nullptr;
        require(ncclCommInitRank(&handle, size_, id_, rank) == ncclSuccess, "test", ncclGetLastError(nullptr));
        return {handle, {.checks = checks}};
    }

private:
    int size_;
    ncclUniqueId id_{};
};

// The transport of a deployment: any, always the same one. Where results must repeat or partial outputs are narrow it
// adds nothing itself: NCCL chooses an order of adding, and rounds each narrow sum on its way.
inline transport transport_of(const deployment& d) {
    const auto drawn = static_cast<transport>(std::hash<std::string>{}(describe(d)) % num_transports);
    const bool adds = drawn == transport::nccl && d.merge != merge_kind::a2a;
    return adds && (d.same_bits || d.partials == partial::output) ? transport::copied : drawn;
}

// Says at the end of the process how many deployments were run over which transport.
class transport_counts {
public:
    ~transport_counts() {
        std::printf(
            "deployments over NCCL: %d, over ranks of one process that read parts in place: %d, that copy: %d\n",
            count_[0].load(), count_[1].load(), count_[2].load());
    }
    void add(transport over) { ++count_[static_cast<std::size_t>(over)]; }

private:
    std::array<std::atomic<int>, num_transports> count_{};
};
inline transport_counts& counted_transports() {
    static transport_counts all;
    return all;
}

struct device_ranks {
    using backend = cuda_backend;
    using communicator = any_communicator;
    using stream_type = cudaStream_t;
    using stream = device_stream;
#if defined(__SANITIZE_ADDRESS__) // slower still
    static constexpr std::uint64_t share = 30;
    static constexpr std::uint64_t prefill_share = 90;
#else
    static constexpr std::uint64_t share = 10;
    static constexpr std::uint64_t prefill_share = 30;
#endif

    static auto backends(const deployment&) {
        return [](int) { return cuda_backend(); };
    }

    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        run_over(transport_of(d), d, fn);
    }

    template <class Fn>
    static void run_over(transport over, const deployment& d, const Fn& fn) {
        counted_transports().add(over);
        const int ranks = static_cast<int>(d.world()), devices = over == transport::nccl ? ranks : 1;
        simt::device_options options;
        options.seed = d.seed * 64 + static_cast<std::uint64_t>(d.threads);
        options.devices = devices;
        const simt::device device(options);
        const nccl_handles handles(ranks);
        local_cuda_group group(ranks, {.checks = d.checks});
        const auto make = [&](int rank) {
            if (over == transport::nccl) return any_communicator(handles.rank(rank, d.checks));
            return any_communicator(group.rank(rank), over == transport::in_place);
        };
        run_on_devices(d, devices, make, fn);
    }

    static std::optional<any_communicator> split(any_communicator& world, int color, int key) {
        return world.split(color, key);
    }

    static void finish(cudaStream_t stream) {
        finish_stream(stream);
    }
};

} // namespace ctxpar_test
