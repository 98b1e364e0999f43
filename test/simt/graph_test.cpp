// Captured work: replayed as often as one likes, with forks and joins, and what must not be captured is refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

#include <ctxpar/backend/cuda/launch.cuh>

#include "device.hpp"

using namespace simt;

namespace {

void add_kernel(int* to, const int* from, int value) {
    *to = *from + value;
}

cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}
cudaEvent_t new_event() {
    cudaEvent_t event = nullptr;
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    return event;
}

// *to = *from + value
void add(cudaStream_t stream, int& to, int& from, int value) {
    ctxpar::cuda::launch({1, 1, 1}, stream, add_kernel, &to, static_cast<const int*>(&from), value);
}

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    REQUIRE(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
    return status;
}

cudaGraphExec_t instance_of(cudaGraph_t graph) {
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    return exec;
}

// What a capture ends with after calls(stream).
template <class Calls>
cudaError_t end_of_capture(const Calls& calls, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    const device here;
    const cudaStream_t stream = new_stream();
    REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    calls(stream);
    cudaGraph_t graph = nullptr;
    const cudaError_t result = cudaStreamEndCapture(stream, &graph);
    CHECK((graph != nullptr) == (result == cudaSuccess));
    CHECK(status_of(stream) == cudaStreamCaptureStatusNone);
    return result;
}

// out = (in + 1) + (in + 1 + 10) over two streams, with or without the join.
int forked_sum(std::uint64_t seed, bool waits_before_sum) {
    const device here({.seed = seed});
    const cudaStream_t first = new_stream(), second = new_stream();
    const cudaEvent_t forked = new_event(), joined = new_event();
    int in = 1, middle = 0, other = 0, out = 0;
    REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    add(first, middle, in, 1);
    REQUIRE(cudaEventRecord(forked, first) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(second, forked) == cudaSuccess);
    CHECK(status_of(second) == cudaStreamCaptureStatusActive);
    add(second, other, middle, 10);
    REQUIRE(cudaEventRecord(joined, second) == cudaSuccess);
    if (waits_before_sum) REQUIRE(cudaStreamWaitEvent(first, joined) == cudaSuccess);
    add(first, out, other, 100);
    if (!waits_before_sum) REQUIRE(cudaStreamWaitEvent(first, joined) == cudaSuccess);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(first, &graph) == cudaSuccess);
    CHECK(out == 0);
    const cudaGraphExec_t exec = instance_of(graph);
    REQUIRE(cudaGraphLaunch(exec, second) == cudaSuccess); // on any stream
    REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
    return out;
}

} // namespace

TEST_CASE("a graph of forks and joins has the order of its events, and no other") {
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        CHECK(forked_sum(seed, true) == 112);
        wrong += forked_sum(seed, false) == 112 ? 0 : 1;
    }
    CHECK(wrong > 0);
}

TEST_CASE("a graph replays a hundred times while its inputs change in place") {
    const device here;
    const cudaStream_t stream = new_stream();
    int in = 0, middle = 0;
    int* out = nullptr;
    REQUIRE(cudaMallocHost(&out, 2 * sizeof(int)) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    add(stream, middle, in, 1);
    add(stream, out[0], middle, 2);
    REQUIRE(cudaMemcpyAsync(out + 1, out, sizeof(int), cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    const cudaGraphExec_t exec = instance_of(graph);
    const device_counts before = device_counters();
    for (int step = 0; step < 100; ++step) {
        in = step * step;
        REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(out[0] == step * step + 3);
        CHECK(out[1] == out[0]);
    }
    const device_counts after = device_counters();
    CHECK(after.graph_launches - before.graph_launches == 100);
    CHECK(after.launches == before.launches);
    CHECK(after.kernels_run - before.kernels_run == 200);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphExecDestroy(exec) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(out) == cudaSuccess);
}

TEST_CASE("a graph does not run beside itself") {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        const device here({.seed = seed});
        const cudaStream_t first = new_stream(), second = new_stream();
        int in = 0, middle = 0;
        REQUIRE(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
        add(first, middle, in, 1);
        add(first, in, middle, 0);
        cudaGraph_t graph = nullptr;
        REQUIRE(cudaStreamEndCapture(first, &graph) == cudaSuccess);
        const cudaGraphExec_t exec = instance_of(graph);
        for (int i = 0; i < 5; ++i) REQUIRE(cudaGraphLaunch(exec, i % 2 == 0 ? first : second) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        CHECK(in == 5);
    }
}

TEST_CASE("what must not be called during a capture is refused, and spoils it") {
    int* place = nullptr;
    REQUIRE(cudaMalloc(&place, 4) == cudaSuccess);
    int value = 0;
    const auto refused = [](cudaError_t result) { CHECK(result == cudaErrorStreamCaptureUnsupported); };
    const auto invalid = cudaErrorStreamCaptureInvalidated;
    void* none = nullptr;
    CHECK(end_of_capture([&](cudaStream_t) { refused(cudaMalloc(&none, 4)); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t stream) { refused(cudaMallocAsync(&none, 4, stream)); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t) { refused(cudaFree(place)); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t) { refused(cudaMemcpy(&value, place, 4, cudaMemcpyDeviceToHost)); }) ==
          invalid);
    CHECK(end_of_capture([&](cudaStream_t) { refused(cudaMemset(place, 0, 4)); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t) { refused(cudaDeviceSynchronize()); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t stream) { refused(cudaStreamSynchronize(stream)); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t stream) { refused(cudaStreamQuery(stream)); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t) { refused(cudaEventQuery(new_event())); }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t stream) {
              refused(cudaMalloc(&none, 4));
              CHECK(cudaMemsetAsync(place, 0, 4, stream) == invalid);
          }) == invalid);
    CHECK(end_of_capture([&](cudaStream_t) { CHECK(cudaFree(place) == cudaSuccess); }, cudaStreamCaptureModeRelaxed) ==
          cudaSuccess);
}

TEST_CASE("a capture ends on its own stream, with all that it forked joined, and depends on nothing outside") {
    CHECK(end_of_capture([](cudaStream_t stream) {
              const cudaStream_t other = new_stream();
              const cudaEvent_t event = new_event();
              CHECK(cudaEventRecord(event, stream) == cudaSuccess);
              CHECK(cudaStreamWaitEvent(other, event) == cudaSuccess);
              static int value = 0;
              add(other, value, value, 1);
          }) == cudaErrorStreamCaptureUnjoined);
    CHECK(end_of_capture([](cudaStream_t stream) {
              const cudaStream_t other = new_stream();
              const cudaEvent_t event = new_event();
              static int value = 0;
              add(other, value, value, 0);
              CHECK(cudaEventRecord(event, other) == cudaSuccess);
              CHECK(cudaStreamWaitEvent(stream, event) == cudaErrorStreamCaptureIsolation);
          }) == cudaErrorStreamCaptureInvalidated);
    CHECK(end_of_capture([](cudaStream_t stream) {
              const cudaStream_t other = new_stream();
              const cudaEvent_t event = new_event();
              CHECK(cudaEventRecord(event, stream) == cudaSuccess);
              CHECK(cudaStreamWaitEvent(other, event) == cudaSuccess);
              cudaGraph_t graph = nullptr;
              CHECK(cudaStreamEndCapture(other, &graph) == cudaErrorStreamCaptureUnmatched);
          }) == cudaErrorStreamCaptureInvalidated);
    const device here;
    const cudaStream_t stream = new_stream(), other = new_stream();
    const cudaEvent_t event = new_event();
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorInvalidValue);
    CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event) == cudaErrorCapturedEvent);
    CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
    const cudaGraphExec_t exec = instance_of(graph); // of nothing
    CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}
