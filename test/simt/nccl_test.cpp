// The emulated NCCL: collectives move and add what they should once all ranks are there, whatever the order of streams,
// and calls that do not fit are said with the ranks and what they called.
#include "nccl.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/core/numeric.hpp>

#include "nccl_world.hpp"

using namespace simt;
using namespace simt_test;
using namespace std::chrono_literals;

namespace {

// What rank `from` sends at place i of the part for rank `to`.
std::int32_t number(int from, int to, int i) {
    return 10'000 * from + 100 * to + i;
}

using numbers = std::vector<std::int32_t>;
constexpr int count = 5;

numbers sent_by(int rank, int parts) {
    numbers list;
    for (int to = 0; to < parts; ++to)
        for (int i = 0; i < count; ++i) list.push_back(number(rank, to, i));
    return list;
}

// The buffers of all ranks, each part a collective of its own.
struct buffers {
    std::vector<numbers> send, gathered, exchanged, sums, own_sums, copied;
    explicit buffers(int size) {
        const auto n = static_cast<std::size_t>(size * count);
        for (int rank = 0; rank < size; ++rank) send.push_back(sent_by(rank, size));
        gathered.assign(send.size(), numbers(n, -1));
        exchanged = sums = copied = gathered;
        own_sums.assign(send.size(), numbers(count, -1));
    }
};

void call_all(nccl_world& world, int rank, buffers& b) {
    const auto r = static_cast<std::size_t>(rank);
    const auto n = static_cast<std::size_t>(world.size() * count);
    const ncclComm_t comm = world.comm(rank);
    const cudaStream_t stream = world.stream(rank);
    const std::int32_t* const send = b.send[r].data();
    CHECK(ncclAllGather(send, b.gathered[r].data(), count, ncclInt32, comm, stream) == ncclSuccess);
    CHECK(ncclAlltoAll(send, b.exchanged[r].data(), count, ncclInt32, comm, stream) == ncclSuccess);
    CHECK(ncclAllReduce(send, b.sums[r].data(), n, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclReduceScatter(send, b.own_sums[r].data(), count, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
    CHECK(ncclBroadcast(send, b.copied[r].data(), n, ncclInt32, world.size() - 1, comm, stream) == ncclSuccess);
}

bool are_right(const buffers& b, int size) {
    bool right = true;
    for (int rank = 0; rank < size; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        for (int part = 0; part < size; ++part)
            for (int i = 0; i < count; ++i) {
                const auto at = static_cast<std::size_t>(part * count + i);
                std::int32_t sum = 0;
                for (int from = 0; from < size; ++from) sum += number(from, part, i);
                right = right && b.gathered[r][at] == number(part, 0, i) && b.exchanged[r][at] == number(part, rank, i);
                right = right && b.sums[r][at] == sum && b.copied[r][at] == number(size - 1, part, i);
                if (part == rank) right = right && b.own_sums[r][static_cast<std::size_t>(i)] == sum;
            }
    }
    return right;
}

// The text of the asynchronous error that is there on all ranks within 10 ms.
std::string error_on_all(nccl_world& world) {
    std::string text;
    const auto start = std::chrono::steady_clock::now();
    for (int rank = 0; rank < world.size(); ++rank) {
        ncclResult_t error = ncclSuccess;
        CHECK(ncclCommGetAsyncError(world.comm(rank), &error) == ncclSuccess);
        CHECK(error == ncclInvalidUsage);
        if (rank > 0) CHECK(text == ncclGetLastError(world.comm(rank)));
        text = ncclGetLastError(world.comm(rank));
    }
    CHECK(std::chrono::steady_clock::now() - start < 10ms);
    return text;
}

} // namespace

TEST_CASE("collectives move and add, for all numbers of ranks and orders of streams") {
    for (int size = 1; size <= 4; ++size)
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            const device here({.seed = seed, .devices = size});
            nccl_world world(size);
            buffers b(size);
            for (int rank = 0; rank < size; ++rank) call_all(world, rank, b);
            CHECK(b.gathered[0][0] == -1); // nothing before someone waits
            world.finish();
            CHECK(are_right(b, size));
        }
}

TEST_CASE("ranks may be threads that wait each for its own stream") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const device here({.seed = seed, .devices = 4});
        nccl_world world(4);
        buffers b(4);
        std::array<cudaError_t, 4> results{};
        on_ranks(4, [&](int rank) {
            call_all(world, rank, b);
            results[static_cast<std::size_t>(rank)] = cudaStreamSynchronize(world.stream(rank));
        });
        for (const cudaError_t each : results) CHECK(each == cudaSuccess);
        CHECK(are_right(b, 4));
    }
}

TEST_CASE("sends and receives of a group meet in pairs; out of one, a ring of them waits for itself") {
    for (const bool grouped : {true, false}) {
        const device here({.devices = 3, .deadlock_after = 20ms});
        nccl_world world(3);
        std::array<std::int32_t, 3> sent{7, 8, 9}, got{};
        for (int rank = 0; rank < 3; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            if (grouped) ncclGroupStart();
            CHECK(ncclSend(&sent[r], 1, ncclInt32, (rank + 1) % 3, world.comm(rank), world.stream(rank)) ==
                  ncclSuccess);
            CHECK(ncclRecv(&got[r], 1, ncclInt32, (rank + 2) % 3, world.comm(rank), world.stream(rank)) == ncclSuccess);
            if (grouped) ncclGroupEnd();
        }
        if (grouped) {
            world.finish();
            CHECK(got == std::array<std::int32_t, 3>{9, 7, 8});
        } else {
            CHECK(cudaStreamSynchronize(world.stream(0)) == cudaErrorLaunchTimeout);
            CHECK(has(last_fault_text(), {"ncclSend and ncclRecv of rank 1, which waits for rank 2 to meet it"}));
        }
    }
}

TEST_CASE("a collective reads what its stream wrote before, and what comes behind it waits for all ranks") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        const device here({.seed = seed, .devices = 2});
        nccl_world world(2);
        std::array<std::int32_t, 2> own{-1, -1};
        std::array<std::int32_t, 4> all{};
        for (const int rank : {0, 1}) {
            const auto r = static_cast<std::size_t>(rank);
            const std::int32_t value = 40 + rank;
            cudaMemcpyAsync(&own[r], &value, sizeof value, cudaMemcpyHostToDevice, world.stream(rank));
            ncclAllGather(&own[r], &all[2 * r], 1, ncclInt32, world.comm(rank), world.stream(rank));
            cudaMemsetAsync(&own[r], 0xff, sizeof value, world.stream(rank)); // too early, the other rank reads -1
        }
        world.finish();
        CHECK(all == std::array<std::int32_t, 4>{40, 41, 40, 41});
    }
}

TEST_CASE("another order of adding gives another sum, and all ranks the same one") {
    std::vector<float> sums;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        const device here({.seed = seed, .devices = 3});
        nccl_world world(3);
        const std::array<float, 3> values{1e8F, 3.0F, -1e8F};
        std::array<float, 3> got{};
        for (int rank = 0; rank < 3; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            ncclAllReduce(&values[r], &got[r], 1, ncclFloat32, ncclSum, world.comm(rank), world.stream(rank));
        }
        world.finish();
        CHECK((got[0] == got[1] && got[1] == got[2]));
        sums.push_back(got[0]);
    }
    CHECK(sums != std::vector<float>(sums.size(), sums[0]));
}

TEST_CASE("sums of narrow numbers are rounded") {
    const device here({.devices = 2});
    nccl_world world(2);
    const std::array<ctxpar::bf16, 2> values{ctxpar::bf16(1.0F), ctxpar::bf16(1.0F / 512)};
    std::array<ctxpar::bf16, 2> got{};
    for (const int rank : {0, 1}) {
        const auto r = static_cast<std::size_t>(rank);
        ncclAllReduce(&values[r], &got[r], 1, ncclBfloat16, ncclSum, world.comm(rank), world.stream(rank));
    }
    world.finish();
    CHECK(static_cast<float>(got[0]) == 1.0F);
}

TEST_CASE("calls that differ are an error on all ranks that names two of them and what they called") {
    std::array<std::int32_t, 64> a{}, b{};
    const auto text_after = [&](const auto& call) {
        const device here({.devices = 3});
        nccl_world world(3);
        for (int rank = 0; rank < 3; ++rank) call(rank, world.comm(rank), world.stream(rank));
        const std::string text = error_on_all(world);
        CHECK(ncclAllGather(a.data(), b.data(), 1, ncclInt32, world.comm(0), world.stream(0)) == ncclInvalidUsage);
        return text;
    };
    CHECK(has(text_after([&](int rank, ncclComm_t comm, cudaStream_t stream) {
                  ncclAllGather(a.data(), b.data(), rank == 2 ? 4 : 5, ncclInt32, comm, stream);
              }),
              {"rank 0 called ncclAllGather (5 x int32)", "rank 2 called ncclAllGather (4 x int32)"}));
    CHECK(has(text_after([&](int rank, ncclComm_t comm, cudaStream_t stream) {
                  ncclAllGather(a.data(), b.data(), 4, rank == 1 ? ncclFloat32 : ncclInt32, comm, stream);
              }),
              {"rank 0 called ncclAllGather (4 x int32)", "rank 1 called ncclAllGather (4 x float32)"}));
    CHECK(has(text_after([&](int rank, ncclComm_t comm, cudaStream_t stream) {
                  if (rank == 1) ncclAlltoAll(a.data(), b.data(), 4, ncclInt32, comm, stream);
                  if (rank != 1) ncclAllGather(a.data(), b.data(), 4, ncclInt32, comm, stream);
              }),
              {"operation 0", "rank 0 called ncclAllGather", "rank 1 called ncclAlltoAll"}));
    CHECK(has(text_after([&](int rank, ncclComm_t comm, cudaStream_t stream) {
                  ncclBroadcast(a.data(), b.data(), 4, ncclInt32, rank / 2, comm, stream);
              }),
              {"root 0", "root 1", "rank 2"}));
    for (const int odd : {0, 1}) // one rank exchanges with the others while they call a collective
        CHECK(has(text_after([&](int rank, ncclComm_t comm, cudaStream_t stream) {
                      if (rank != odd) ncclAllGather(a.data(), b.data(), 4, ncclInt32, comm, stream);
                      if (rank == odd) ncclSend(a.data(), 4, ncclInt32, 1 - odd, comm, stream);
                  }),
                  {"ncclAllGather (4 x int32)", "ncclSend", "rank 0", "rank 1"}));
    CHECK(has(text_after([&](int rank, ncclComm_t comm, cudaStream_t stream) {
                  if (rank == 0) ncclSend(a.data(), 4, ncclInt32, 2, comm, stream);
                  if (rank == 2) ncclRecv(a.data(), 5, ncclInt32, 0, comm, stream);
              }),
              {"rank 0 sends 4 x int32 to rank 2, which expects 5 x int32 from it"}));
}

TEST_CASE("a rank that does not come is named, and aborting lets the others' streams go on") {
    const device here({.devices = 3, .deadlock_after = 20ms});
    nccl_world world(3);
    std::array<std::int32_t, 3> got{};
    const std::int32_t value = 3;
    int behind = 0;
    for (const int rank : {0, 2}) ncclAllGather(&value, got.data(), 1, ncclInt32, world.comm(rank), world.stream(rank));
    CHECK(has(ncclGetLastError(world.comm(0)), {"ncclAllGather (1 x int32) of rank 0", "waits for rank 1 to call it"}));
    CHECK(enqueue(world.stream(0), "what is behind", {}, [&] { behind = 1; }) == cudaSuccess);
    for (int i = 0; i < 50; ++i) CHECK(cudaStreamQuery(world.stream(0)) == cudaErrorNotReady);
    CHECK(ncclCommAbort(std::exchange(world.comm(0), nullptr)) == ncclSuccess);
    CHECK(cudaStreamSynchronize(world.stream(0)) == cudaSuccess);
    CHECK(behind == 1);
    CHECK(got[0] == 0);
    // Whoever comes later does not take part with the rank that has gone.
    ncclAllGather(&value, got.data(), 1, ncclInt32, world.comm(1), world.stream(1));
    CHECK(cudaStreamSynchronize(world.stream(2)) == cudaErrorLaunchTimeout);
    CHECK(has(last_fault_text(), {"ncclAllGather of rank 1", "ncclAllGather of rank 2"}));
}

TEST_CASE("a deadlock of a collective names the ranks that are missing") {
    const device here({.devices = 4, .deadlock_after = 20ms});
    nccl_world world(4);
    std::array<std::int32_t, 4> got{};
    for (const int rank : {0, 3}) ncclAllGather(&rank, got.data(), 1, ncclInt32, world.comm(rank), world.stream(rank));
    CHECK(cudaStreamSynchronize(world.stream(3)) == cudaErrorLaunchTimeout);
    CHECK(has(last_fault_text(), {"ncclAllGather of rank 0, which waits for rank 1, rank 2 to call it"}));
}

TEST_CASE("collectives are part of graphs") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const device here({.seed = seed, .devices = 3});
        nccl_world world(3);
        buffers b(3);
        std::array<cudaGraphExec_t, 3> execs{};
        for (int rank = 0; rank < 3; ++rank) {
            REQUIRE(cudaStreamBeginCapture(world.stream(rank), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            call_all(world, rank, b);
            cudaGraph_t graph = nullptr;
            REQUIRE(cudaStreamEndCapture(world.stream(rank), &graph) == cudaSuccess);
            REQUIRE(cudaGraphInstantiate(&execs[static_cast<std::size_t>(rank)], graph) == cudaSuccess);
        }
        for (int step = 0; step < 10; ++step) {
            for (int rank = 0; rank < 3; ++rank) {
                b.gathered[static_cast<std::size_t>(rank)].assign(15, -1);
                b.sums[static_cast<std::size_t>(rank)].assign(15, -1);
                REQUIRE(cudaGraphLaunch(execs[static_cast<std::size_t>(rank)], world.stream(rank)) == cudaSuccess);
            }
            world.finish();
            CHECK(are_right(b, 3));
        }
    }
}

TEST_CASE("a communicator splits into those of each color, in order of keys") {
    const device here({.devices = 4});
    nccl_world world(4);
    std::array<int, 4> ranks{}, sizes{};
    std::array<bool, 4> has_none{};
    on_ranks(4, [&](int rank) {
        ncclComm_t part = nullptr;
        ncclCommSplit(world.comm(rank), rank == 3 ? NCCL_SPLIT_NOCOLOR : rank % 2, -rank, &part, nullptr);
        const auto r = static_cast<std::size_t>(rank);
        has_none[r] = part == nullptr;
        if (part == nullptr) return;
        ncclCommUserRank(part, &ranks[r]);
        ncclCommCount(part, &sizes[r]);
        ncclCommDestroy(part);
    });
    CHECK(has_none == std::array<bool, 4>{false, false, false, true});
    CHECK(sizes == std::array<int, 4>{2, 1, 2, 0});
    CHECK(ranks == std::array<int, 4>{1, 0, 0, 0});
}

TEST_CASE("ranks are counted, known and on devices of their own") {
    const device here({.devices = 2});
    const std::int64_t before = nccl_counters().live_communicators;
    {
        nccl_world world(2);
        CHECK(nccl_counters().live_communicators == before + 2);
        int value = 0;
        CHECK(ncclCommUserRank(world.comm(1), &value) == ncclSuccess);
        CHECK(value == 1);
        CHECK(ncclCommCuDevice(world.comm(1), &value) == ncclSuccess);
        CHECK(value == 1);
        CHECK(ncclCommCount(world.comm(1), &value) == ncclSuccess);
        CHECK(value == 2);
        CHECK(ncclSend(&value, 1, ncclInt32, 2, world.comm(1), world.stream(1)) == ncclInvalidArgument);
        CHECK(ncclSend(nullptr, 1, ncclInt32, 0, world.comm(1), world.stream(1)) == ncclInvalidArgument);
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
    }
    CHECK(nccl_counters().live_communicators == before);
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    ncclComm_t comm = nullptr, other = nullptr;
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(ncclCommInitRank(&comm, 2, id, 0) == ncclSuccess);
    CHECK(ncclCommInitRank(&other, 2, id, 1) == ncclInvalidUsage);
    CHECK(has(ncclGetLastError(nullptr), {"duplicate GPU", "rank 0", "rank 1"}));
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(ncclCommInitRank(&other, 2, id, 0) == ncclInvalidUsage);
    CHECK(ncclCommInitRank(&other, 3, id, 1) == ncclInvalidUsage);
    CHECK(ncclCommInitRank(&other, 2, id, 2) == ncclInvalidUsage);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}
