// Ranks of the emulated NCCL for tests: each with its device, communicator and stream, and memory that all threads see.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "device.hpp"

namespace simt_test {

struct nccl_world {
    std::vector<ncclComm_t> comms;
    std::vector<cudaStream_t> streams;

    explicit nccl_world(int size) : comms(static_cast<std::size_t>(size)), streams(comms.size()) {
        ncclUniqueId id;
        REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
        for (int rank = 0; rank < size; ++rank) {
            REQUIRE(cudaSetDevice(rank) == cudaSuccess);
            REQUIRE(ncclCommInitRank(&comm(rank), size, id, rank) == ncclSuccess);
            REQUIRE(cudaStreamCreateWithFlags(&stream(rank), cudaStreamNonBlocking) == cudaSuccess);
        }
    }
    nccl_world(const nccl_world&) = delete;
    nccl_world& operator=(const nccl_world&) = delete;
    ~nccl_world() {
        for (const ncclComm_t each : comms) ncclCommDestroy(each);
    }

    int size() const { return static_cast<int>(comms.size()); }
    ncclComm_t& comm(int rank) { return comms[static_cast<std::size_t>(rank)]; }
    cudaStream_t& stream(int rank) { return streams[static_cast<std::size_t>(rank)]; }

    void finish() {
        for (const cudaStream_t each : streams) CHECK(cudaStreamSynchronize(each) == cudaSuccess);
    }
};

// Calls fn(rank) in a thread for each rank, on its device.
template <class Fn>
void on_ranks(int size, const Fn& fn) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&fn, rank] {
            cudaSetDevice(rank);
            fn(rank);
        });
    for (std::thread& each : threads) each.join();
}

inline bool has(const std::string& text, std::initializer_list<const char*> words) {
    bool all = true;
    for (const char* word : words) all = all && text.find(word) != std::string::npos;
    if (!all) MESSAGE("the text: ", text);
    return all;
}

} // namespace simt_test
