// The communicator over NCCL, with ranks that are threads: its calls move what they should for all numbers of ranks and
// orders of streams, count what they send, and can be captured.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "nccl.hpp"
#include "nccl_communicator_ranks.hpp"

using namespace ctxpar;
using namespace simt_test;

namespace {

std::uint8_t byte_of(int from, int to, std::size_t i) {
    return static_cast<std::uint8_t>(61 * from + 17 * to + 3 * static_cast<int>(i) + 1);
}

// Bytes that rank i sends to rank j: all sizes, zero among them, and none at all from the last rank.
std::size_t size_of(int from, int to, int ranks) {
    return from == ranks - 1 ? 0 : static_cast<std::size_t>((5 * from + 3 * to) % 7);
}

struct rank_buffers {
    std::vector<std::uint8_t> own, gathered, send, recv, send_spans, recv_spans;
    std::vector<std::size_t> send_sizes, recv_sizes;
    std::vector<float> addends, sums, own_sums;

    rank_buffers(int rank, int ranks) {
        const auto n = static_cast<std::size_t>(ranks);
        for (std::size_t i = 0; i < 6; ++i) own.push_back(byte_of(rank, 0, i));
        gathered.resize(6 * n);
        for (int to = 0; to < ranks; ++to) {
            for (std::size_t i = 0; i < 5; ++i) send.push_back(byte_of(rank, to, i));
            send_sizes.push_back(size_of(rank, to, ranks));
            recv_sizes.push_back(size_of(to, rank, ranks));
            for (std::size_t i = 0; i < send_sizes.back(); ++i) send_spans.push_back(byte_of(rank, to, i));
            recv_spans.resize(recv_spans.size() + recv_sizes.back());
            for (int i = 0; i < 4; ++i) addends.push_back(static_cast<float>(rank + 10 * to + i));
        }
        recv.resize(send.size());
        sums.resize(addends.size());
        own_sums.resize(4);
    }

    void call(nccl_communicator& comm, cudaStream_t stream) {
        comm.all_gather(own.data(), gathered.data(), own.size(), stream, {"queries", scalar_type::bf16});
        comm.all_to_all(send.data(), recv.data(), 5, stream, {"outputs"});
        comm.all_to_all(send_spans.data(), send_sizes, recv_spans.data(), recv_sizes, stream, {"rows"});
        comm.all_reduce(addends.data(), sums.data(), addends.size(), scalar_type::f32, stream);
        comm.reduce_scatter(addends.data(), own_sums.data(), 4, scalar_type::f32, stream);
    }

    bool are_right(int rank, int ranks) const {
        bool right = true;
        std::size_t at = 0;
        for (int from = 0; from < ranks; ++from) {
            const auto f = static_cast<std::size_t>(from);
            for (std::size_t i = 0; i < 6; ++i) right = right && gathered[6 * f + i] == byte_of(from, 0, i);
            for (std::size_t i = 0; i < 5; ++i) right = right && recv[5 * f + i] == byte_of(from, rank, i);
            for (std::size_t i = 0; i < size_of(from, rank, ranks); ++i)
                right = right && recv_spans[at++] == byte_of(from, rank, i);
            for (int i = 0; i < 4; ++i) {
                const auto sum = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (10 * from + i));
                right = right && sums[4 * f + static_cast<std::size_t>(i)] == sum;
                if (from == rank) right = right && own_sums[static_cast<std::size_t>(i)] == sum;
            }
        }
        return right && at == recv_spans.size();
    }
    void forget() {
        for (auto* each : {&gathered, &recv, &recv_spans}) each->assign(each->size(), 0);
        sums.assign(sums.size(), 0);
        own_sums.assign(4, 0);
    }
};

} // namespace

TEST_CASE("every call moves and adds what it should, and counts what it sends") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
            const simt::device here({.seed = seed, .devices = ranks});
            nccl_world world(ranks);
            std::vector<int> right(static_cast<std::size_t>(ranks));
            std::vector<std::uint64_t> sent(right.size());
            run_all(world, {}, [&](rank_place& place) {
                rank_buffers buffers(place.comm.rank(), ranks);
                buffers.call(place.comm, place.stream);
                place.comm.wait(place.stream);
                place.comm.check();
                const auto r = static_cast<std::size_t>(place.comm.rank());
                right[r] = buffers.are_right(place.comm.rank(), ranks) && place.comm.size() == ranks;
                sent[r] = place.comm.bytes_sent();
            });
            for (int rank = 0; rank < ranks; ++rank) {
                CHECK(right[static_cast<std::size_t>(rank)] == 1);
                const auto peers = static_cast<std::uint64_t>(ranks - 1);
                std::uint64_t due = peers * (6 + 5 + 3 * 4 * sizeof(float)); // a sum of all is two of own parts
                for (int to = 0; to < ranks; ++to)
                    if (to != rank) due += size_of(rank, to, ranks);
                CHECK(sent[static_cast<std::size_t>(rank)] == due);
            }
        }
}

TEST_CASE("gathering and adding may be in place, and nothing is something that can be sent") {
    const simt::device here({.devices = 3});
    nccl_world world(3);
    std::array<bool, 3> right{};
    run_all(world, {}, [&](rank_place& place) {
        const auto r = static_cast<std::size_t>(place.comm.rank());
        std::array<std::uint8_t, 6> all{};
        std::array<float, 3> sums{};
        all[2 * r] = all[2 * r + 1] = static_cast<std::uint8_t>(r + 1);
        sums.fill(static_cast<float>(r + 1));
        place.comm.all_gather(&all[2 * r], all.data(), 2, place.stream);
        place.comm.all_reduce(sums.data(), sums.data(), 2, scalar_type::f32, place.stream);
        place.comm.all_gather(nullptr, nullptr, 0, place.stream);
        place.comm.all_to_all(nullptr, nullptr, 0, place.stream);
        place.comm.all_reduce(nullptr, nullptr, 0, scalar_type::f16, place.stream);
        const std::array<std::size_t, 3> none{};
        place.comm.all_to_all(nullptr, none, nullptr, none, place.stream);
        place.comm.wait(place.stream);
        right[r] =
            all == std::array<std::uint8_t, 6>{1, 1, 2, 2, 3, 3} && sums == std::array<float, 3>{6, 6, float(r + 1)};
    });
    CHECK(right == std::array<bool, 3>{true, true, true});
}

TEST_CASE("steps neither allocate nor synchronise, and destroying does not either") {
    const simt::device here({.devices = 2});
    nccl_world world(2);
    simt::device_counts before, after;
    const std::int64_t handles = simt::nccl_counters().live_communicators;
    {
        std::vector<nccl_communicator> comms;
        std::vector<rank_buffers> buffers;
        for (const int rank : {0, 1}) {
            cudaSetDevice(rank);
            comms.emplace_back(world.comm(rank));
            buffers.emplace_back(rank, 2);
        }
        before = simt::device_counters();
        for (const std::size_t rank : {0U, 1U}) buffers[rank].call(comms[rank], world.streams[rank]);
        for (const std::size_t rank : {0U, 1U}) comms[rank].wait(world.streams[rank]);
        for (const std::size_t rank : {0U, 1U}) CHECK(buffers[rank].are_right(static_cast<int>(rank), 2));
    }
    after = simt::device_counters();
    CHECK(after.allocations == before.allocations);
    CHECK(after.synchronisations == before.synchronisations);
    CHECK(simt::nccl_counters().live_communicators == handles); // the caller's, as before
}

TEST_CASE("captured calls replay with what their buffers hold then") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const simt::device here({.seed = seed, .devices = 3});
        nccl_world world(3);
        std::array<bool, 3> right{};
        run_all(world, {}, [&](rank_place& place) {
            const int rank = place.comm.rank();
            rank_buffers buffers(rank, 3);
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t exec = nullptr;
            cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeThreadLocal);
            place.comm.agree(static_cast<std::uint64_t>(rank), "plan", place.stream); // cannot be asked in a graph
            buffers.call(place.comm, place.stream);
            place.comm.check();
            const std::string refused = refusal([&] { place.comm.wait(place.stream); });
            cudaStreamEndCapture(place.stream, &graph);
            cudaGraphInstantiate(&exec, graph);
            bool all = refused == "capture" && buffers.recv[0] == 0;
            for (int step = 0; step < 8; ++step) {
                buffers.forget();
                cudaGraphLaunch(exec, place.stream);
                place.comm.wait(place.stream);
                all = all && buffers.are_right(rank, 3);
            }
            right[static_cast<std::size_t>(rank)] = all;
        });
        CHECK(right == std::array<bool, 3>{true, true, true});
    }
}

TEST_CASE("ranks that agree go on, ranks that do not say who has which digest") {
    const simt::device here({.devices = 3});
    nccl_world world(3);
    const auto agree_on = [&](const nccl_options& options, bool differ) {
        return outcomes(world, options, [&](rank_place& place) {
            const bool odd = differ && place.comm.rank() == 2;
            place.comm.agree(odd ? 0xbeef : 0xfeed, "decode plan", place.stream);
        });
    };
    for (const std::exception_ptr& each : agree_on({}, false)) CHECK(failure_in(each).code == "none");
    for (const std::exception_ptr& each : agree_on({.checks = check_level::off}, true))
        CHECK(failure_in(each).code == "none");
    for (const std::exception_ptr& each : agree_on({}, true)) {
        std::string text;
        CHECK(failure_in(each, &text).code == "digest");
        CHECK(has(text, {"ranks 0, 1 called agree on decode plan (value 65261)", "rank 2 called", "48879"}));
    }
}

TEST_CASE("groups are made of the ranks of a color, and their handles are the caller's") {
    const simt::device here({.devices = 4});
    nccl_world world(4);
    std::array<std::uint8_t, 4> first{};
    run_all(world, {}, [&](rank_place& place) {
        const int rank = place.comm.rank();
        const ncclComm_t part = place.comm.split(rank == 3 ? -1 : rank % 2, -rank);
        if (part == nullptr) return;
        {
            nccl_communicator group(part);
            const auto own = static_cast<std::uint8_t>(rank + 1);
            std::array<std::uint8_t, 2> all{};
            group.all_gather(&own, all.data(), 1, place.stream);
            group.wait(place.stream);
            first[static_cast<std::size_t>(rank)] = all[0];
        }
        ncclCommDestroy(part);
    });
    CHECK(first == std::array<std::uint8_t, 4>{3, 2, 3, 0});
}
