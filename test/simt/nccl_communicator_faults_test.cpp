// The communicator over NCCL when something is wrong: calls that differ, ranks that do not come, a device that fails,
// own arguments. Each is an error in time, with names, and the last thing that the communicator does.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "nccl.hpp"
#include "nccl_communicator_ranks.hpp"

using namespace simt_test;
using namespace std::chrono_literals;

namespace {

constexpr nccl_options quick{.timeout = std::chrono::milliseconds(60)};

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
