// What a rank that shares its process is refused before its peers see the call: streams that are captured, and
// arguments that are illegal by themselves. The group stays usable.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "local_cuda_ranks.hpp"

using namespace local_cuda;
using namespace std::chrono_literals;
using ctxpar_test::code_of;

TEST_CASE("a stream that is captured is refused by name, and the group stays usable") {
    arena memory;
    const simt::device device;
    const auto all = outcomes(2, {}, [&](place& here) {
        std::uint8_t* const at = memory.of(here);
        const std::array<std::size_t, 2> sizes{1, 1};
        if (here.rank() == 0) { // rank 1 waits in the gather below meanwhile
            const cudaStream_t captured = new_stream();
            CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            CHECK(code_of([&] { here.comm.all_gather(at, at + 8, 4, captured); }) == "capture");
            CHECK(code_of([&] { here.comm.all_to_all(at, at + 8, 4, captured); }) == "capture");
            CHECK(code_of([&] { here.comm.all_to_all(at, sizes, at + 8, sizes, captured); }) == "capture");
            CHECK(code_of([&] { here.comm.publish(at, 4, captured); }) == "capture");
            CHECK(code_of([&] { here.comm.wait(captured); }) == "capture");
            try {
                here.comm.all_gather(at, at + 8, 4, captured, {"queries"});
            } catch (const config_error& problem) {
                CHECK(contains(problem.what(), "all_gather of queries: the stream is being captured"));
                CHECK(contains(problem.what(), "nccl_communicator"));
            }
            cudaGraph_t graph = nullptr;
            CHECK(cudaStreamEndCapture(captured, &graph) == cudaSuccess); // unspoilt
            CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        }
        gather(memory, here, 10);
        here.comm.publish(at, 1, here.stream);
        if (here.rank() == 0) {
            const cudaStream_t captured = new_stream();
            CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            CHECK(code_of([&] { here.comm.release(captured); }) == "capture"); // and is still to be made
            cudaGraph_t graph = nullptr;
            CHECK(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
            CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        }
        here.comm.release(here.stream);
        here.comm.wait(here.stream);
    });
    CHECK(codes(all) == strings{"", ""});
}

TEST_CASE("illegal arguments are refused before peers see them, and the group stays usable") {
    const simt::device device;
    CHECK(code_of([] { local_cuda_group(0); }) == "ranks");
    CHECK(code_of([] { local_cuda_group(2, {.timeout = 0ms}); }) == "timeout");
    local_cuda_group group(2);
    CHECK(code_of([&] { group.rank(2); }) == "rank");
    CHECK(code_of([&] { group.rank(-1); }) == "rank");
    const local_cuda_communicator taken = group.rank(1);
    CHECK(code_of([&] { group.rank(1); }) == "rank");

    arena memory;
    const auto all = outcomes(2, {}, [&](place& here) {
        std::uint8_t* const at = memory.of(here);
        const std::array<std::size_t, 2> one{1, 1};
        const std::array<std::size_t, 3> three{1, 1, 1};
        local_cuda_communicator& comm = here.comm;
        if (here.rank() == 0) { // rank 1 waits in the gather below meanwhile
            CHECK(code_of([&] { comm.all_gather(nullptr, at, 4, here.stream); }) == "null");
            CHECK(code_of([&] { comm.all_gather(at + 1, at, 4, here.stream); }) == "aliasing");
            CHECK(code_of([&] { comm.all_to_all(at, at, 4, here.stream); }) == "aliasing");
            CHECK(code_of([&] { comm.all_to_all(at, one, at + 1, one, here.stream); }) == "aliasing");
            CHECK(code_of([&] { comm.all_to_all(at, three, at + 8, one, here.stream); }) == "sizes");
            CHECK(code_of([&] { comm.publish(nullptr, 1, here.stream); }) == "null");
            CHECK(code_of([&] { comm.release(here.stream); }) == "publish");
        }
        gather(memory, here, 10);
        comm.publish(at, 1, here.stream);
        CHECK(code_of([&] { comm.publish(at, 1, here.stream); }) == "publish");
        comm.release(here.stream);
        CHECK(code_of([&] { comm.release(here.stream); }) == "publish");
        comm.all_gather(nullptr, nullptr, 0, here.stream);
        comm.publish(nullptr, 0, here.stream);
        comm.release(here.stream);
        comm.wait(here.stream);
    });
    CHECK(codes(all) == strings{"", ""});
}
