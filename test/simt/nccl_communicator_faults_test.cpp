// The communicator over NCCL when something is wrong: calls that differ, ranks that do not come, a device that fails,
// own arguments. Each is an error in time, with names, and the last thing that the communicator does.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl.hpp"
#include "nccl_communicator_ranks.hpp"

using namespace simt_test;
using namespace std::chrono_literals;

namespace {

constexpr nccl_options quick{.timeout = std::chrono::milliseconds(60)};

// What some rank says of the same failure that all ranks have in time.
std::string failure_on_all(const char* code, const std::function<void(rank_place&, float*, float*)>& fn) {
    const simt::device here({.devices = 3});
    nccl_world world(3);
    std::array<std::array<float, 32>, 6> memory{};
    std::string text;
    const auto start = std::chrono::steady_clock::now();
    const auto thrown = outcomes(world, {}, [&](rank_place& place) {
        const auto r = static_cast<std::size_t>(place.comm.rank());
        fn(place, memory[r].data(), memory[r + 3].data());
        place.comm.wait(place.stream);
    });
    CHECK(std::chrono::steady_clock::now() - start < 5s);
    for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
        const comm_failure failure = failure_in(thrown[rank], &text);
        CHECK(failure.code == code);
        CHECK(failure.rank == static_cast<int>(rank));
    }
    return text;
}

// A graph of one gather of each rank.
struct captured_gather {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;

    captured_gather(rank_place& place, const std::uint8_t* own, std::uint8_t* all) {
        cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeThreadLocal);
        place.comm.all_gather(own, all, 1, place.stream, {"queries"});
        cudaStreamEndCapture(place.stream, &graph);
        cudaGraphInstantiate(&exec, graph);
    }
    captured_gather(const captured_gather&) = delete;
    captured_gather& operator=(const captured_gather&) = delete;
    ~captured_gather() {
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
};

} // namespace

TEST_CASE("calls that differ end with an error that says who called what, on every rank; then the rank is dead") {
    const simt::device here({.devices = 3});
    nccl_world world(3);
    std::array<std::uint8_t, 64> from{}, to{};
    const auto thrown = outcomes(world, {}, [&](rank_place& place) {
        const std::size_t bytes = place.comm.rank() == 1 ? 8 : 16;
        std::string text;
        const comm_failure failure = failure_of(
            [&] {
                place.comm.all_gather(from.data(), to.data(), bytes, place.stream, {"queries"});
                place.comm.wait(place.stream);
            },
            &text);
        CHECK(failure.code == "nccl");
        CHECK(failure.rank == place.comm.rank());
        CHECK(failure.operation == "all_gather of queries");
        CHECK(failure.waited_ms < 5'000);
        CHECK(has(text, {"all_gather of queries", "rank 1 called ncclAllGather (8 x uint8)", "(16 x uint8)"}));
        CHECK(failure_of([&] { place.comm.check(); }).code == "nccl");
        CHECK(failure_of([&] { place.comm.all_gather(from.data(), to.data(), 8, place.stream); }, &text).code ==
              "dead");
        CHECK(has(text, {"dead since the failure \"nccl\"", "rank 1 called"}));
        CHECK(failure_of([&] { place.comm.wait(place.stream); }).code == "dead");
        CHECK(failure_of([&] { place.comm.agree(1, "plan", place.stream); }).code == "dead");
        CHECK(failure_of([&] { place.comm.split(0, 0); }).code == "dead");
        CHECK(place.comm.handle() != nullptr);
    });
    for (const std::exception_ptr& each : thrown) CHECK(failure_in(each).code == "none");
}

TEST_CASE("another operation, type, size or order of calls on one rank is an error on all that says what they called") {
    CHECK(has(failure_on_all("nccl",
                             [](rank_place& place, float* from, float* to) {
                                 if (place.comm.rank() == 1)
                                     place.comm.all_reduce(from, to, 4, scalar_type::f32, place.stream);
                                 if (place.comm.rank() != 1) place.comm.all_gather(from, to, 16, place.stream);
                             }),
              {"operation 0", "called ncclAllReduce (4 x float32)", "called ncclAllGather (16 x uint8)"}));
    CHECK(has(failure_on_all("nccl",
                             [](rank_place& place, float* from, float* to) {
                                 const bool is_odd = place.comm.rank() == 2;
                                 place.comm.reduce_scatter(from, to, 4, is_odd ? scalar_type::bf16 : scalar_type::f16,
                                                           place.stream);
                             }),
              {"ncclReduceScatter (4 x float16)", "rank 2 called ncclReduceScatter (4 x bfloat16)"}));
    CHECK(has(failure_on_all("nccl",
                             [](rank_place& place, float* from, float* to) {
                                 std::array<std::size_t, 3> send{4, 4, 4}, recv{4, 4, 4};
                                 if (place.comm.rank() == 0) send[2] = 8;
                                 place.comm.all_to_all(from, send, to, recv, place.stream, {"rows"});
                             }),
              {"rank 0 sends 8 x uint8 to rank 2, which expects 4 x uint8 from it"}));
    CHECK(has(failure_on_all("nccl",
                             [](rank_place& place, float* from, float* to) {
                                 if (place.comm.rank() != 0) place.comm.all_gather(from, to, 4, place.stream);
                                 place.comm.all_reduce(from, to, 3, scalar_type::f32, place.stream);
                                 if (place.comm.rank() == 0) place.comm.all_gather(from, to, 4, place.stream);
                             }),
              {"rank 0 called ncclAllReduce (3 x float32)", "ncclAllGather (4 x uint8)"}));
}

TEST_CASE("what NCCL finds while ranks wait ends all of their waits, and a lost peer has a name of its own") {
    for (const ncclResult_t error : {ncclRemoteError, ncclSystemError}) {
        const simt::device here({.devices = 3});
        nccl_world world(3);
        std::array<std::uint8_t, 6> all{};
        std::thread network([&] {
            std::this_thread::sleep_for(20ms);
            simt::nccl_break(world.comm(1), error, "rank 1 has closed its connection");
        });
        const auto thrown = outcomes(world, {}, [&](rank_place& place) {
            if (place.comm.rank() == 1) return;
            place.comm.all_gather(&all[5], all.data(), 1, place.stream, {"LSE"});
            place.comm.wait(place.stream);
        });
        network.join();
        for (const std::size_t rank : {0U, 2U}) {
            std::string text;
            const comm_failure failure = failure_in(thrown[rank], &text);
            CHECK(failure.code == (error == ncclRemoteError ? "peer_error" : "nccl"));
            CHECK(failure.waited_ms < 5'000);
            CHECK(has(text, {"all_gather of LSE", ncclGetErrorString(error), "rank 1 has closed its connection"}));
        }
        cudaSetDevice(2);
        nccl_communicator late(world.comm(2)); // made after the loss: a check is enough to find it
        CHECK(failure_of([&] { late.check(); }).code == (error == ncclRemoteError ? "peer_error" : "nccl"));
    }
}

TEST_CASE(
    "a rank lost while a graph is replayed ends the others' waits in time, and aborting lets their streams go on") {
    for (const bool is_found : {false, true})
        for (const bool aborts : {false, true}) {
            const simt::device here({.devices = 3});
            nccl_world world(3);
            std::array<std::uint8_t, 3> own{1, 2, 3};
            std::array<std::array<std::uint8_t, 3>, 3> all{};
            std::array<bool, 3> is_behind{};
            std::atomic<int> num_past{0}; // ranks that have waited for the replays before the loss
            nccl_options options = quick;
            options.abort_on_error = aborts;
            if (is_found) options.timeout = std::chrono::seconds(30);
            const auto thrown = outcomes(world, options, [&](rank_place& place) {
                const auto r = static_cast<std::size_t>(place.comm.rank());
                const captured_gather step(place, &own[r], all[r].data());
                for (int replay = 0; replay < 3; ++replay) {
                    all[r] = {};
                    if (r == 1 && replay == 2) {
                        while (num_past < 2) std::this_thread::yield();
                        if (is_found) simt::nccl_break(world.comm(1), ncclRemoteError, "rank 1 is gone");
                        return;
                    }
                    cudaGraphLaunch(step.exec, place.stream);
                    const comm_failure failure = failure_of([&] { place.comm.wait(place.stream); });
                    CHECK(failure.code == (replay < 2 ? "none" : (is_found ? "peer_error" : "timeout")));
                    CHECK(failure.waited_ms < 5'000);
                    CHECK((all[r] == own) == (replay < 2));
                    if (r != 1 && replay == 1) ++num_past;
                }
                CHECK((place.comm.handle() == nullptr) == aborts);
                if (aborts) world.comm(place.comm.rank()) = nullptr;
                simt::enqueue(place.stream, "what is behind", {}, [&is_behind, r] { is_behind[r] = true; });
                if (aborts) CHECK(cudaStreamSynchronize(place.stream) == cudaSuccess);
                CHECK(is_behind[r] == aborts);
                CHECK(failure_of([&] { place.comm.all_gather(&own[r], all[r].data(), 1, place.stream); }).code ==
                      "dead");
            });
            for (const std::exception_ptr& each : thrown) CHECK(failure_in(each).code == "none");
        }
}

TEST_CASE(
    "an error that is found while a stream is captured ends the capture's calls; the stream is of use afterwards") {
    for (const bool aborts : {false, true}) {
        const simt::device here({.devices = 2});
        nccl_world world(2);
        std::array<std::uint8_t, 2> own{1, 2};
        std::array<std::array<std::uint8_t, 2>, 2> all{};
        std::array<bool, 2> is_done{};
        nccl_options options;
        options.abort_on_error = aborts;
        const auto thrown = outcomes(world, options, [&](rank_place& place) {
            const auto r = static_cast<std::size_t>(place.comm.rank());
            cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeThreadLocal);
            std::string text;
            const comm_failure failure = failure_of(
                [&] {
                    place.comm.all_gather(&own[r], all[r].data(), 1, place.stream, {"queries"});
                    simt::nccl_break(world.comm(place.comm.rank()), ncclRemoteError, "the network is gone");
                    place.comm.all_gather(&own[r], all[r].data(), 1, place.stream, {"LSE"});
                },
                &text);
            CHECK(failure.code == "peer_error");
            CHECK(has(text, {"all_gather of", "the network is gone"}));
            CHECK(failure_of([&] { place.comm.agree(1, "plan", place.stream); }).code == "dead");
            CHECK((place.comm.handle() == nullptr) == aborts);
            if (aborts) world.comm(place.comm.rank()) = nullptr;
            cudaGraph_t graph = nullptr;
            CHECK(cudaStreamEndCapture(place.stream, &graph) == cudaSuccess);
            cudaGraphDestroy(graph);
            simt::enqueue(place.stream, "other work", {}, [&is_done, r] { is_done[r] = true; });
            CHECK(cudaStreamSynchronize(place.stream) == cudaSuccess);
            CHECK(is_done[r]);
            CHECK(all[r] == std::array<std::uint8_t, 2>{});
        });
        for (const std::exception_ptr& each : thrown) CHECK(failure_in(each).code == "none");
    }
}

TEST_CASE("a wait ends at its deadline whatever holds the stream, and says for how long it has waited") {
    const simt::device here;
    nccl_world world(1);
    nccl_communicator comm(world.comm(0), quick);
    bool goes_on = false;
    simt::enqueue(world.stream(0), "slow work", [&] { return goes_on; }, {});
    std::string text;
    const comm_failure failure = failure_of([&] { comm.wait(world.stream(0)); }, &text);
    CHECK(failure.code == "timeout");
    CHECK((failure.waited_ms >= 60 && failure.waited_ms < 5'000));
    CHECK(has(text, {"rank 0 in wait", "the stream was not done when rank 0 had waited"}));
    simt::change_under_lock([&] { goes_on = true; });
    CHECK(cudaStreamSynchronize(world.stream(0)) == cudaSuccess);
}

TEST_CASE("a rank that does not come ends a wait in time, and is named where NCCL knows it") {
    const simt::device here({.devices = 3});
    nccl_world world(3);
    std::array<std::uint8_t, 12> from{}, to{};
    outcomes(world, quick, [&](rank_place& place) {
        if (place.comm.rank() == 1) return;
        std::string text;
        place.comm.all_to_all(from.data(), to.data(), 4, place.stream, {"outputs", scalar_type::f16});
        place.comm.check();
        const auto start = std::chrono::steady_clock::now();
        const comm_failure failure = failure_of([&] { place.comm.wait(place.stream); }, &text);
        const auto waited = std::chrono::steady_clock::now() - start;
        CHECK((waited >= 60ms && waited < 5s));
        CHECK(failure.code == "timeout");
        CHECK(failure.waited_ms >= 60);
        CHECK(has(failure.expected, {"call 1", "all_to_all of outputs (4 bytes, f16)"}));
        const std::string self = "rank " + std::to_string(place.comm.rank());
        CHECK(has(text, {self.c_str(), "waits for rank 1 to call", "all_to_all of outputs (4 bytes, f16)"}));
    });
    nccl_world other(3);
    const comm_failure failure = failure_in(outcomes(other, quick, [&](rank_place& place) {
        if (place.comm.rank() != 0) place.comm.agree(3, "plan", place.stream);
    })[2]);
    CHECK(failure.code == "timeout");
    CHECK(failure.operation == "agree on plan");
}

TEST_CASE("an error aborts the handle where that was chosen, and then its stream goes on") {
    const simt::device here({.devices = 2});
    nccl_world world(2);
    std::uint8_t from = 1;
    std::array<std::uint8_t, 2> to{};
    nccl_options options = quick;
    options.abort_on_error = true;
    outcomes(world, options, [&](rank_place& place) {
        if (place.comm.rank() == 1) return;
        place.comm.all_gather(&from, to.data(), 1, place.stream);
        CHECK(failure_of([&] { place.comm.wait(place.stream); }).code == "timeout");
        CHECK(place.comm.handle() == nullptr);
        CHECK(cudaStreamSynchronize(place.stream) == cudaSuccess);
        CHECK(failure_of([&] { place.comm.check(); }).code == "timeout");
        CHECK(failure_of([&] { place.comm.all_gather(&from, to.data(), 1, place.stream); }).code == "dead");
        world.comm(0) = nullptr;
    });
    CHECK(world.comm(0) == nullptr);
}

TEST_CASE("a fault of the device ends a wait as well") {
    const simt::device here;
    nccl_world world(1);
    nccl_communicator comm(world.comm(0));
    std::string text;
    simt::enqueue(world.stream(0), "a kernel", {}, [] { throw simt::fault("went wrong"); });
    CHECK(failure_of([&] { comm.wait(world.stream(0)); }, &text).code == "cuda");
    CHECK(has(text, {"went wrong", "cudaErrorLaunchFailure"}));
}

TEST_CASE("a rank's own wrong arguments are refused before anything is done") {
    const simt::device here({.devices = 2});
    nccl_world world(2);
    cudaSetDevice(0);
    CHECK(refusal([&] { nccl_communicator(nullptr); }) == "null");
    CHECK(refusal([&] { nccl_communicator(world.comm(0), {.timeout = 0ms}); }) == "timeout");
    CHECK(refusal([&] { nccl_communicator(world.comm(1)); }) == "device");
    nccl_communicator comm(world.comm(0));
    const cudaStream_t stream = world.stream(0);
    std::array<float, 8> a{}, b{};
    const std::array<std::size_t, 2> two{4, 4};
    const std::array<std::size_t, 1> one{4};
    const std::uint64_t calls = simt::nccl_counters().collectives;
    CHECK(refusal([&] { comm.all_gather(nullptr, b.data(), 4, stream); }) == "null");
    CHECK(refusal([&] { comm.all_gather(&a[1], a.data(), 4, stream); }) == "aliasing");
    CHECK(refusal([&] { comm.all_to_all(a.data(), a.data(), 4, stream); }) == "aliasing");
    CHECK(refusal([&] { comm.all_to_all(a.data(), one, b.data(), two, stream); }) == "sizes");
    CHECK(refusal([&] { comm.all_gather(a.data(), b.data(), ~std::size_t{0}, stream); }) == "sizes");
    CHECK(refusal([&] { comm.all_reduce(a.data(), &a[1], 4, scalar_type::f32, stream); }) == "aliasing");
    CHECK(refusal([&] { comm.reduce_scatter(a.data(), &a[4], 4, scalar_type::f32, stream); }) == "aliasing");
    CHECK(refusal([&] { comm.reduce_scatter(a.data(), nullptr, 4, scalar_type::f32, stream); }) == "null");
    CHECK(refusal([&] { comm.all_reduce(a.data(), b.data(), 4, scalar_type::e4m3, stream); }) == "type");
    CHECK(simt::nccl_counters().collectives == calls);
    CHECK(comm.bytes_sent() == 0);
    nccl_communicator other(std::move(comm));
    CHECK(refusal([&] { comm.check(); }) == "moved");
    CHECK(refusal([&] { comm.all_gather(a.data(), b.data(), 4, stream); }) == "moved");
    other.check();
}
