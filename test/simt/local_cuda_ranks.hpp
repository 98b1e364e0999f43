// Ranks that share this process and give work to streams of an emulated device, for tests of their communicator: a
// thread each, and what came of it.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include <ctxpar/comm/local_cuda.hpp>

#include "../comm/local_outcomes.hpp"
#include "device.hpp"

namespace local_cuda {

using namespace ctxpar;
using ctxpar_test::clock;
using ctxpar_test::codes;
using ctxpar_test::contains;
using ctxpar_test::ms_since;
using ctxpar_test::outcome;
using ctxpar_test::prompt;
using ctxpar_test::strings;

inline cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) std::terminate();
    return stream;
}

// One rank, in its own thread.
struct place {
    local_cuda_communicator& comm;
    cudaStream_t stream;

    int rank() const { return comm.rank(); }
    int size() const { return comm.size(); }
};

// Runs fn(place) on each rank; a rank that throws unwinds and so leaves. Ranks are spread over the devices there are.
template <class Fn>
std::vector<outcome> outcomes(int num_ranks, const local_options& options, const Fn& fn) {
    local_cuda_group group(num_ranks, options);
    std::vector<outcome> all(static_cast<std::size_t>(num_ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < num_ranks; ++r)
        threads.emplace_back([&, r] {
            outcome& own = all[static_cast<std::size_t>(r)];
            const clock::time_point start = clock::now();
            try {
                int devices = 1;
                cudaGetDeviceCount(&devices);
                cudaSetDevice(r % devices);
                local_cuda_communicator comm = group.rank(r);
                place here{comm, new_stream()};
                fn(here);
            } catch (const comm_error& problem) {
                own = {problem.code(), problem.what(), problem.failure()};
            } catch (const error& problem) {
                own = {problem.code(), problem.what(), {}};
            } catch (const std::exception& problem) {
                own = {"std", problem.what(), {}};
            }
            own.ms = ms_since(start);
        });
    for (std::thread& thread : threads) thread.join();
    return all;
}

// Runs fn(place), which returns whether all was right, on each rank; returns on how many it was.
template <class Fn>
int ranks_where(int num_ranks, const local_options& options, const Fn& fn) {
    std::vector<char> right(static_cast<std::size_t>(num_ranks));
    const std::vector<outcome> all =
        outcomes(num_ranks, options, [&](place& here) { right[static_cast<std::size_t>(here.rank())] = fn(here); });
    int count = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
        count += right[r] != 0 && all[r].code.empty() ? 1 : 0;
        if (!all[r].code.empty()) MESSAGE("rank ", r, ": ", all[r].message);
    }
    return count;
}

// Memory of all ranks. It outlives them, as their work may be done after one of them has failed.
class arena {
public:
    std::uint8_t* of(const place& here) { return memory_.data() + static_cast<std::size_t>(here.rank()) * part; }
    std::uint8_t* of(int rank) { return memory_.data() + static_cast<std::size_t>(rank) * part; }

private:
    static constexpr std::size_t part = 16384;
    std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(8 * part);
};

inline void gather(arena& memory, place& here, std::size_t bytes,
                   collective_note note = {"queries", scalar_type::bf16}) {
    std::uint8_t* const at = memory.of(here);
    here.comm.all_gather(at, at + 8000, bytes, here.stream, note);
}

inline void exchange(arena& memory, place& here, std::size_t bytes,
                     collective_note note = {"partials", scalar_type::f32}) {
    std::uint8_t* const at = memory.of(here);
    here.comm.all_to_all(at, at + 8000, bytes, here.stream, note);
}

} // namespace local_cuda
