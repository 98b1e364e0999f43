// Calls over NCCL that come in another order on some rank, which NCCL itself does not see where their sizes are alike:
// checked builds refuse them when ranks agree next.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "nccl_communicator_ranks.hpp"

using namespace simt_test;

TEST_CASE("two users whose calls come in another order on one rank are refused at the next plan, in checked builds") {
    // A prefiller and a decoder, each with a stream. Their gathers are alike, so that NCCL mixes up memory in silence.
    const auto failures = [](check_level checks, bool in_graph) {
        const simt::device here({.devices = 3});
        nccl_world world(3);
        std::vector<cudaStream_t> second(3);
        std::array<std::array<std::uint8_t, 12>, 6> all{};
        for (std::size_t rank = 0; rank < 3; ++rank) {
            cudaSetDevice(static_cast<int>(rank));
            REQUIRE(cudaStreamCreateWithFlags(&second[rank], cudaStreamNonBlocking) == cudaSuccess);
        }
        return outcomes(world, {.checks = checks}, [&](rank_place& place) {
            const auto r = static_cast<std::size_t>(place.comm.rank());
            place.comm.agree(7, "prefill plan", place.stream);
            place.comm.agree(8, "decode plan", place.stream);
            if (in_graph) cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeThreadLocal);
            const std::array<std::uint8_t, 4> own{};
            const auto prefills = [&] {
                place.comm.all_gather(own.data(), all[r].data(), 4, in_graph ? place.stream : second[r],
                                      {"keys", scalar_type::bf16, 7});
            };
            const auto decodes = [&] {
                place.comm.all_gather(own.data(), all[r + 3].data(), 4, place.stream,
                                      {"queries", scalar_type::bf16, 8});
            };
            if (r != 1) prefills();
            decodes();
            if (r == 1) prefills();
            cudaGraph_t graph = nullptr;
            if (in_graph) cudaStreamEndCapture(place.stream, &graph);
            if (in_graph) cudaGraphDestroy(graph);
            place.comm.agree(9, "decode plan", place.stream);
        });
    };
    for (const bool in_graph : {false, true}) {
        const auto thrown = failures(check_level::collective, in_graph);
        for (std::size_t rank = 0; rank < 3; ++rank) {
            std::string text;
            const comm_failure failure = failure_in(thrown[rank], &text);
            CHECK(failure.code == "mismatch");
            CHECK(failure.rank == static_cast<int>(rank));
            CHECK(failure.peer == 1);
            CHECK(failure.operation == "agree on decode plan");
            CHECK(has(text, {"other calls came before, or in another order", "ranks 0, 2 made 4 calls (history 0x",
                             "rank 1 made 4 calls (history 0x"}));
            CHECK(has(text, {rank == 1 ? "the last of rank 1 was all_gather of keys (4 bytes, bf16)"
                                       : "was all_gather of queries (4 bytes, bf16)"}));
        }
        for (const std::exception_ptr& each : failures(check_level::basic, in_graph))
            CHECK(failure_in(each).code == "none");
    }
}

TEST_CASE("every part of a call counts as another call, and what differs by right does not") {
    const auto codes = [](const std::function<void(rank_place&, bool, std::uint8_t*)>& fn) {
        const simt::device here({.devices = 2});
        nccl_world world(2);
        std::array<std::array<std::uint8_t, 128>, 2> memory{};
        const auto thrown = outcomes(world, {.checks = check_level::collective}, [&](rank_place& place) {
            const auto r = static_cast<std::size_t>(place.comm.rank());
            fn(place, r == 1, memory[r].data());
            place.comm.agree(9, "plan", place.stream);
        });
        CHECK(failure_in(thrown[0]).code == failure_in(thrown[1]).code);
        return failure_in(thrown[0]).code;
    };
    const auto gather_nothing = [](rank_place& place, const collective_note& note) {
        place.comm.all_gather(nullptr, nullptr, 0, place.stream, note);
    };
    CHECK(codes([&](rank_place& place, bool, std::uint8_t*) { gather_nothing(place, {}); }) == "none");
    CHECK(codes([&](rank_place& place, bool odd, std::uint8_t*) {
              if (odd) gather_nothing(place, {});
          }) == "mismatch");
    CHECK(codes([&](rank_place& place, bool odd, std::uint8_t*) {
              odd ? gather_nothing(place, {}) : place.comm.all_to_all(nullptr, nullptr, 0, place.stream);
          }) == "mismatch");
    CHECK(codes([&](rank_place& place, bool odd, std::uint8_t*) {
              gather_nothing(place, {"rows", odd ? scalar_type::f16 : scalar_type::bf16});
          }) == "mismatch");
    CHECK(codes([&](rank_place& place, bool odd, std::uint8_t*) {
              gather_nothing(place, {"rows", scalar_type::bf16, odd ? 5U : 6U});
          }) == "mismatch");
    CHECK(codes([&](rank_place& place, bool odd, std::uint8_t* memory) { // sizes differ by rank
              std::array<std::size_t, 2> send{0, 0}, recv{0, 0};
              send[odd ? 0 : 1] = odd ? 4 : 8;
              recv[odd ? 0 : 1] = odd ? 8 : 4;
              place.comm.all_to_all(memory, send, memory + 64, recv, place.stream, {"rows"});
          }) == "none");
}

TEST_CASE("ranks of different check levels are refused when they first agree") {
    const simt::device here({.devices = 3});
    nccl_world world(3);
    on_ranks(3, [&](int rank) {
        nccl_communicator comm(world.comm(rank), {.checks = rank == 0 ? check_level::collective : check_level::basic});
        std::string text;
        const comm_failure failure = failure_of([&] { comm.agree(1, "plan", world.stream(rank)); }, &text);
        CHECK(failure.code == "mismatch");
        CHECK(failure.peer == 0);
        CHECK(has(text, {"rank 0 had check level 2, ranks 1, 2 had check level 1"}));
    });
}
