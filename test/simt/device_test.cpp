// The emulated device: work is ordered by streams and events and by nothing else, graphs repeat it, and what a program
// does wrong is found and said.
#include "device.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include <ctxpar/backend/cuda/launch.cuh>

using namespace simt;
using namespace std::chrono_literals;

namespace {

// Adds `value` to each of blocks * threads numbers.
void add_kernel(int* numbers, int value) {
    numbers[position().block.x * position().block_size.x + position().thread.x] += value;
}
void copy_kernel(int* to, const int* from) {
    to[position().thread.x] = from[position().thread.x];
}
void faulty_kernel() {
    raise_fault("the kernel found 42");
}

void add(cudaStream_t stream, int* numbers, int value) {
    ctxpar::cuda::launch({1, 1, 32}, stream, add_kernel, numbers, value);
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

// Memory of 32 numbers, zero.
struct numbers {
    int* at = nullptr;
    numbers() {
        REQUIRE(cudaMalloc(&at, 32 * sizeof(int)) == cudaSuccess);
        std::memset(at, 0, 32 * sizeof(int));
    }
    numbers(const numbers&) = delete;
    numbers& operator=(const numbers&) = delete;
    ~numbers() { cudaFree(at); }
    int operator[](int i) const { return at[i]; }
};

bool has(const std::string& text, std::initializer_list<const char*> words) {
    bool all = true;
    for (const char* word : words) all = all && text.find(word) != std::string::npos;
    if (!all) MESSAGE("the text: ", text);
    return all;
}

// What a second stream copies of what a first one adds up.
int copied_over_streams(std::uint64_t seed, bool with_event, bool record_early = false) {
    const device here({.seed = seed});
    const numbers from, to;
    const cudaStream_t first = new_stream(), second = new_stream();
    const cudaEvent_t event = new_event();
    add(first, from.at, 3);
    if (record_early) CHECK(cudaEventRecord(event, first) == cudaSuccess);
    add(first, from.at, 4);
    if (with_event && !record_early) CHECK(cudaEventRecord(event, first) == cudaSuccess);
    if (with_event) CHECK(cudaStreamWaitEvent(second, event) == cudaSuccess);
    ctxpar::cuda::launch({1, 1, 32}, second, copy_kernel, to.at, static_cast<const int*>(from.at));
    CHECK(cudaStreamSynchronize(second) == cudaSuccess);
    return to[31];
}

} // namespace

TEST_CASE("nothing is done before someone waits, and then in the order of the stream") {
    const device here;
    const numbers list;
    const cudaStream_t stream = new_stream();
    int host[32] = {};
    add(stream, list.at, 5);
    CHECK(cudaMemcpyAsync(host, list.at, sizeof host, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaMemsetAsync(list.at, 0, 4, stream) == cudaSuccess);
    CHECK(list[0] == 0);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(host[0] == 5);
    CHECK(list[0] == 0);
    CHECK(list[1] == 5);
}

TEST_CASE("with an event between two streams every seed is right; without one, or with one too early, some is wrong") {
    int wrong_without = 0, wrong_early = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        CHECK(copied_over_streams(seed, true) == 7);
        wrong_without += copied_over_streams(seed, false) != 7 ? 1 : 0;
        wrong_early += copied_over_streams(seed, true, true) != 7 ? 1 : 0;
    }
    CHECK(wrong_without > 0);
    CHECK(wrong_early > 0);
}

TEST_CASE("a stream waits for the record that came last before; without a record it does not wait") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        const device here({.seed = seed});
        const numbers list, copy;
        const cudaStream_t first = new_stream(), second = new_stream();
        const cudaEvent_t event = new_event();
        CHECK(cudaStreamWaitEvent(second, event) == cudaSuccess);
        CHECK(cudaEventQuery(event) == cudaSuccess);
        CHECK(cudaEventSynchronize(event) == cudaSuccess);
        bool gate = false; // what comes behind it in `first` cannot be done
        add(first, list.at, 1);
        CHECK(cudaEventRecord(event, first) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(second, event) == cudaSuccess);
        CHECK(enqueue(first, "a gate", [&] { return gate; }, {}) == cudaSuccess);
        CHECK(cudaEventRecord(event, first) == cudaSuccess);
        CHECK(cudaStreamSynchronize(second) == cudaSuccess); // the second record is none of its business
        CHECK(list[0] == 1);
        CHECK(cudaEventQuery(event) == cudaErrorNotReady);
        CHECK(cudaStreamQuery(first) == cudaErrorNotReady);
        change_under_lock([&] { gate = true; });
        CHECK(cudaEventDestroy(event) == cudaSuccess);
        CHECK(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
        CHECK(cudaStreamSynchronize(first) == cudaSuccess);
    }
}

TEST_CASE("asking again and again gets a stream done") {
    const device here;
    const numbers list;
    const cudaStream_t stream = new_stream();
    for (int i = 0; i < 20; ++i) add(stream, list.at, 1);
    int asked = 0;
    while (cudaStreamQuery(stream) == cudaErrorNotReady) ++asked;
    CHECK(list[7] == 20);
    CHECK(asked >= 9); // a little at a time
}

TEST_CASE("cudaMemcpy waits for blocking streams, and for no others") {
    const device here;
    const numbers list;
    cudaStream_t blocking = nullptr;
    CHECK(cudaStreamCreate(&blocking) == cudaSuccess);
    const cudaStream_t other = new_stream();
    int host = 0;
    add(blocking, list.at, 1);
    add(nullptr, list.at, 1);
    CHECK(cudaMemcpy(&host, list.at, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(host == 2);
    bool gate = false;
    CHECK(enqueue(other, "a gate", [&] { return gate; }, {}) == cudaSuccess);
    CHECK(cudaMemcpy(&host, list.at, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess);
}

TEST_CASE("host memory is read before a copy returns, unless it was allocated for copies") {
    const device here;
    const numbers list;
    int plain = 1;
    int* pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, sizeof(int)) == cudaSuccess);
    *pinned = 1;
    CHECK(cudaMemcpyAsync(list.at, &plain, sizeof(int), cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpyAsync(list.at + 1, pinned, sizeof(int), cudaMemcpyHostToDevice) == cudaSuccess);
    plain = *pinned = 2;
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(list[0] == 1);
    CHECK(list[1] == 2);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("a destroyed stream finishes its work, and is no stream any more") {
    const device here;
    const numbers list;
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    add(stream, list.at, 1);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(list[0] == 0);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventSynchronize(event) == cudaSuccess);
    CHECK(list[0] == 1);
}

TEST_CASE("host functions run in order, and may not call the runtime") {
    const device here;
    struct seen {
        int value = 0;
        cudaError_t result = cudaSuccess;
        const int* list = nullptr;
    } found;
    const numbers list;
    found.list = list.at;
    const cudaStream_t stream = new_stream();
    add(stream, list.at, 3);
    const auto look = [](void* to) {
        auto* const into = static_cast<seen*>(to);
        into->value = into->list[0];
        into->result = cudaDeviceSynchronize();
    };
    CHECK(cudaLaunchHostFunc(stream, look, &found) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(found.value == 3);
    CHECK(found.result == cudaErrorNotPermitted);
}

TEST_CASE("many threads give and wait at once") {
    const device here;
    constexpr int num_threads = 4;
    std::vector<int> sums(num_threads);
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i)
        threads.emplace_back([&sums, i] {
            const numbers list;
            const cudaStream_t stream = new_stream();
            for (int round = 1; round <= 25; ++round) {
                add(stream, list.at, round);
                if (round % 7 == i) cudaStreamSynchronize(stream);
            }
            if (cudaStreamSynchronize(stream) == cudaSuccess) sums[static_cast<std::size_t>(i)] = list[i];
        });
    for (std::thread& each : threads) each.join();
    CHECK(sums == std::vector<int>(num_threads, 25 * 26 / 2));
}

TEST_CASE("a kernel's fault is what every later call says") {
    {
        const device here;
        const cudaStream_t stream = new_stream();
        ctxpar::cuda::launch({1, 1, 32}, stream, faulty_kernel);
        CHECK(last_fault_text().empty());
        CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
        CHECK(has(last_fault_text(), {"the kernel found 42"}));
        CHECK(has(cudaGetErrorString(cudaErrorLaunchFailure), {"the kernel found 42"}));
        CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
        CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
        CHECK_THROWS_WITH_AS(ctxpar::cuda::launch({1, 1, 32}, stream, faulty_kernel),
                             doctest::Contains("the kernel found 42"), ctxpar::cuda_error);
    }
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK_THROWS_AS(ctxpar::cuda::launch({1, 1, 32}, nullptr, faulty_kernel),
                    fault); // at once, where nothing is deferred
}

TEST_CASE("a deadlock is said with the streams and what they wait for") {
    const device here({.deadlock_after = 30ms});
    const cudaStream_t first = new_stream(), second = new_stream();
    const cudaEvent_t event = new_event();
    CHECK(enqueue(first, "a door", [] { return false; }, {}) == cudaSuccess);
    CHECK(cudaEventRecord(event, first) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(second, event) == cudaSuccess);
    CHECK(cudaStreamSynchronize(second) == cudaErrorLaunchTimeout);
    CHECK(
        has(last_fault_text(), {"cudaStreamSynchronize of stream 2", "30 ms", "stream 1 is at a door",
                                "stream 2 is at a wait for an event, which waits for the event recorded on stream 1"}));
}

TEST_CASE("launches that a device would refuse are refused") {
    const device here;
    const auto* const kernel = reinterpret_cast<const void*>(&faulty_kernel);
    grid_options options;
    options.block.x = 32;
    const auto launch_with = [&](std::size_t shared) {
        options.shared_bytes = shared;
        return launch_grid(nullptr, kernel, "a kernel", options, [] {});
    };
    CHECK(launch_with(48 * 1024) == cudaSuccess);
    CHECK(launch_with(48 * 1024 + 1) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaFuncSetAttribute(faulty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024) == cudaSuccess);
    CHECK(launch_with(100 * 1024) == cudaSuccess);
    CHECK(launch_with(100 * 1024 + 1) == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(faulty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024) ==
          cudaErrorInvalidValue);
    options.block.x = 1025;
    CHECK(launch_with(0) == cudaErrorInvalidConfiguration);
    options.block.x = 0;
    CHECK(launch_with(0) == cudaErrorInvalidConfiguration);
    options.block.x = 32;
    options.grid.y = 65536;
    CHECK(launch_with(0) == cudaErrorInvalidConfiguration);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("memory is as large as asked, without a number in it, and known by its address") {
    const device here({.devices = 2});
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    CHECK(cudaSetDevice(1) == cudaSuccess);
    unsigned char* place = nullptr;
    CHECK(cudaMalloc(&place, 13) == cudaSuccess);
    CHECK(reinterpret_cast<std::uintptr_t>(place) % 256 == 0);
    CHECK(place[12] == 0xff);
    cudaPointerAttributes found{};
    CHECK(cudaPointerGetAttributes(&found, place + 12) == cudaSuccess);
    CHECK(found.type == cudaMemoryTypeDevice);
    CHECK(found.device == 1);
    CHECK(cudaPointerGetAttributes(&found, place + 13) == cudaSuccess);
    CHECK(found.type == cudaMemoryTypeUnregistered);
    CHECK(cudaFree(place + 1) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(place) == cudaErrorInvalidValue);
    CHECK(cudaFree(place) == cudaSuccess);
    CHECK(cudaFree(place) == cudaErrorInvalidValue);
    CHECK(cudaFree(nullptr) == cudaSuccess);
    CHECK(cudaMallocAsync(reinterpret_cast<void**>(&place), 8, nullptr) == cudaSuccess);
    CHECK(cudaFreeAsync(place, nullptr) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&found, place) == cudaSuccess);
    CHECK(found.type == cudaMemoryTypeDevice);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&found, place) == cudaSuccess);
    CHECK(found.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("events tell the time between the points of a stream where they were met, where they may") {
    const device here;
    cudaEvent_t begin = nullptr, end = nullptr, untimed = nullptr;
    CHECK(cudaEventCreate(&begin) == cudaSuccess);
    CHECK(cudaEventCreate(&end) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming) == cudaSuccess);
    float ms = -1;
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaErrorInvalidResourceHandle); // not recorded
    const auto rest = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    CHECK(cudaEventRecord(begin, nullptr) == cudaSuccess);
    CHECK(cudaLaunchHostFunc(nullptr, rest, nullptr) == cudaSuccess);
    CHECK(cudaEventRecord(end, nullptr) == cudaSuccess);
    CHECK(cudaEventRecord(untimed, nullptr) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaErrorNotReady);
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    CHECK(ms >= 3);
    CHECK(cudaEventElapsedTime(&ms, begin, untimed) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventElapsedTime(&ms, untimed, end) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("devices have names, places and memory") {
    const device here({.devices = 2});
    cudaDeviceProp facts{};
    CHECK(cudaGetDeviceProperties(&facts, 1) == cudaSuccess);
    CHECK(std::string(facts.name) == "emulated device");
    CHECK(facts.major == 9);
    CHECK(facts.multiProcessorCount == 4);
    CHECK(cudaGetDeviceProperties(&facts, 2) == cudaErrorInvalidDevice);
    char first[32] = {}, second[32] = {};
    CHECK(cudaDeviceGetPCIBusId(first, sizeof first, 0) == cudaSuccess);
    CHECK(cudaDeviceGetPCIBusId(second, sizeof second, 1) == cudaSuccess);
    CHECK(std::string(first) != second);
    CHECK(cudaDeviceGetPCIBusId(first, 12, 0) == cudaErrorInvalidValue);
    CHECK(cudaDeviceGetPCIBusId(first, sizeof first, 2) == cudaErrorInvalidDevice);
    std::size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    CHECK(free > 0);
    CHECK(free <= total);
}

TEST_CASE("calls are counted") {
    const device here;
    const device_counts none = device_counters();
    CHECK(none.allocations + none.launches + none.synchronisations + none.copies + none.kernels_run == 0);
    {
        const numbers list;
        int host = 0;
        add(nullptr, list.at, 1);
        add(nullptr, list.at, 1);
        CHECK(cudaMemcpyAsync(&host, list.at, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess);
        CHECK(device_counters().kernels_run == 0);
        CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
        CHECK(host == 2);
    }
    const device_counts counts = device_counters();
    CHECK(counts.allocations == 1);
    CHECK(counts.launches == 2);
    CHECK(counts.kernels_run == 2);
    CHECK(counts.synchronisations == 2); // cudaFree may wait
    CHECK(counts.copies == 1);
    CHECK(counts.launches_of.at(reinterpret_cast<const void*>(&add_kernel)) == 2);
}
