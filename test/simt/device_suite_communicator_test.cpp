// The communicator of the suites: parts come by the transport that was chosen, and sums are the same whichever it is.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <vector>

#include <ctxpar/cuda.cuh>

#include "../support/random_deployment.hpp"
#include "device_ranks.hpp"
#include "nccl.hpp"

using namespace ctxpar_test;

namespace {

constexpr int num_ranks = 3;

deployment of_ranks(std::uint64_t seed) {
    deployment d;
    d.sizes.tp = num_ranks;
    d.seed = seed;
    return d;
}

// Memory of all ranks, which outlives them.
struct buffers {
    std::array<std::array<float, num_ranks>, num_ranks> send{}, recv{}, sums{};
    std::array<float, num_ranks> gathered{}, out{};
};

float number(int from, int to) {
    return static_cast<float>(10 * from + to + 1);
}

// Whether rank `to` has what the others sent it, in their memory or in its own.
bool has_parts(const part_pointers& parts, int to, const buffers& all, transport over) {
    bool right = true;
    for (int from = 0; from < num_ranks; ++from) {
        const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
        const auto* part = static_cast<const float*>(parts.at[f]);
        const float* const place = over == transport::in_place ? &all.send[f][t] : &all.recv[t][f];
        right = right && part == place && *part == number(from, to);
    }
    return right;
}

} // namespace

TEST_CASE("parts come by the transport that was chosen") {
    for (const transport over : {transport::nccl, transport::in_place, transport::copied}) {
        buffers all;
        std::array<bool, num_ranks> right{}, gathers{};
        std::uint64_t by_nccl = 0;
        device_ranks::run_over(over, of_ranks(1), [&](any_communicator& comm) {
            const int rank = comm.rank();
            const auto r = static_cast<std::size_t>(rank);
            const device_stream stream;
            for (int to = 0; to < num_ranks; ++to) all.send[r][static_cast<std::size_t>(to)] = number(rank, to);
            const part_pointers parts =
                exchange_parts(comm, all.send[r].data(), all.recv[r].data(), sizeof(float), stream.get(), {});
            comm.wait(stream.get());
            right[r] = has_parts(parts, rank, all, over);
            end_parts(comm, stream.get());
            all.sums[r][r] = number(rank, 0);
            const part_pointers own = gather_parts(comm, all.sums[r].data(), sizeof(float), stream.get(), {});
            comm.wait(stream.get());
            gathers[r] = true;
            for (int from = 0; from < num_ranks; ++from)
                gathers[r] =
                    gathers[r] && *static_cast<const float*>(own.at[static_cast<std::size_t>(from)]) == number(from, 0);
            end_parts(comm, stream.get());
            comm.wait(stream.get());
            if (rank == 0) by_nccl = simt::nccl_counters().collectives;
        });
        CHECK(right == std::array<bool, num_ranks>{true, true, true});
        CHECK(gathers == std::array<bool, num_ranks>{true, true, true});
        static std::uint64_t before = 0; // of the process
        CHECK((by_nccl > before) == (over == transport::nccl));
        before = by_nccl;
    }
}

TEST_CASE("sums are the same over every transport, and cost the same bytes") {
    for (const transport over : {transport::nccl, transport::in_place, transport::copied})
        for (std::uint64_t seed = 1; seed <= 2; ++seed) {
            buffers all;
            std::array<std::uint64_t, num_ranks> sent{};
            device_ranks::run_over(over, of_ranks(seed), [&](any_communicator& comm) {
                const auto r = static_cast<std::size_t>(comm.rank());
                const device_stream stream;
                cuda_backend backend;
                for (int to = 0; to < num_ranks; ++to)
                    all.send[r][static_cast<std::size_t>(to)] = number(comm.rank(), to);
                const reduction<float> data{all.send[r].data(), all.recv[r].data(), 1, {}};
                const float* const none = nullptr;
                reduce_scatter(comm, backend, data, dense_view(none, 1, 1, 1), dense_view(&all.out[r], 1, 1, 1),
                               stream.get());
                all_reduce(comm, backend, data, all.sums[r].data(), num_ranks, stream.get());
                comm.wait(stream.get());
                sent[r] = comm.bytes_sent();
            });
            for (int to = 0; to < num_ranks; ++to) {
                const auto t = static_cast<std::size_t>(to);
                const auto due = [](int chunk) { return static_cast<float>(30 + 3 * (chunk + 1)); };
                CHECK(all.out[t] == due(to));
                CHECK(all.sums[t] == std::array<float, num_ranks>{due(0), due(1), due(2)});
                CHECK(sent[t] == 3 * 2 * sizeof(float)); // a sum of all is exchanged and gathered
            }
        }
}

TEST_CASE("deployments are spread over the transports, always in the same way") {
    std::array<int, num_transports> count{};
    bool all_are_same = true, all_add_alike = true;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
        deployment d = random_deployment(seed);
        const transport over = transport_of(d);
        ++count[static_cast<std::size_t>(over)];
        all_are_same = all_are_same && over == transport_of(deployment(d));
        d.same_bits = true;
        all_add_alike = all_add_alike && (d.merge == merge_kind::a2a || transport_of(d) != transport::nccl);
    }
    MESSAGE("of 300 random deployments over NCCL: ", count[0], ", in place: ", count[1], ", copied: ", count[2]);
    CHECK(all_are_same);
    CHECK(all_add_alike);
    for (const int each : count) CHECK(each >= 50);
}
