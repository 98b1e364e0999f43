// An emulated device under the CUDA runtime's names: streams, events, graphs, memory. Work that is given to a stream is
// not done then; it is done when some host thread waits, in any order that streams and events allow. Which one, a seed
// decides, so an ordering that nobody asked for is missing under some seed, and under the same seed again.
//
//   simt::device device({.seed = 3});   // until its end, work is deferred as said
//
// Where no such object exists, all work is done when it is given, in the caller's thread: what tests of single kernels
// want. What is not emulated: the ordering that the legacy null stream has with blocking streams. It is a stream like
// others here, one for each device, so what relies on that ordering fails.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <cuda_runtime_api.h>

#include "block.hpp"

namespace simt {

struct device_options {
    std::uint64_t seed = 1; // of the order of streams
    int devices = 1;
    bool runs_kernels = true; // else launches are counted and nothing is done: for what a host takes to make them
    std::chrono::milliseconds deadlock_after{20'000}; // a wait during which nothing at all happens ends with an error
};

// One at a time, made and destroyed while no other thread uses the device. Both drop all streams, events and work, put
// counters to zero and forget errors; memory stays. Destroying ends the process where the device had failed and no call
// has said so.
class device {
public:
    explicit device(const device_options& options = {});
    device(const device&) = delete;
    device& operator=(const device&) = delete;
    ~device();
};

// What went wrong on the device: a fault of a kernel or a deadlock; empty where nothing did. From then on every call
// returns cudaErrorLaunchFailure or cudaErrorLaunchTimeout, of which cudaGetErrorString is this text.
std::string last_fault_text();

// Since the device was made, over all threads.
struct device_counts {
    std::uint64_t allocations = 0;
    std::uint64_t launches = 0;         // given to streams, not counting those of graphs
    std::uint64_t graph_launches = 0;   // cudaGraphLaunch
    std::uint64_t kernels_run = 0;      // of graphs too
    std::uint64_t synchronisations = 0; // calls that wait, or may: cudaFree is one
    std::uint64_t copies = 0;           // cudaMemcpy and cudaMemcpyAsync
    std::uint64_t bytes_read = 0;       // by kernels in wide pieces
    std::uint64_t bytes_written = 0;
    std::map<const void*, std::uint64_t> launches_of; // by kernel
};
device_counts device_counters();

// --- For other stand-ins that give work to streams -------------------------------------------------------------------

// One piece of work. `ready` is asked when it is at the head of its stream, under the lock of the device; it may note
// its arrival there. `run` is called once after `ready` was true, without the lock; nothing else runs meanwhile.
struct task {
    std::function<bool()> ready;            // none: always
    std::function<void()> run;              // none: nothing to do
    std::function<std::string()> waits_for; // for the report of a deadlock; under the lock
};

// `prepare` makes the task when it is given to its stream, under the lock: now, or at each launch of the graph that is
// being captured.
cudaError_t enqueue_each(cudaStream_t stream, std::string what, std::function<task()> prepare);
cudaError_t enqueue(cudaStream_t stream, std::string what, std::function<bool()> ready, std::function<void()> run);

// Calls change() under the lock of the device, and lets all that wait look again.
void change_under_lock(const std::function<void()>& change);

// A number that the seed of the device decides; under the lock.
std::uint64_t any_number();

// Launches a kernel, called `kernel` in messages and counts.
cudaError_t launch_grid(cudaStream_t stream, const void* kernel, const std::string& name, const grid_options& options,
                        std::function<void()> body);

} // namespace simt
