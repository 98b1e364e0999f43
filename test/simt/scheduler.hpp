// What is behind the emulated runtime: queues of work, one for each stream, and one lock for all of it. Only the files
// that define the runtime's functions include this.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device.hpp"

namespace simt::detail {

// What one call gives to a stream: one piece of work, or a graph of them.
struct item {
    struct part {
        std::string what;
        task work;
        std::vector<std::size_t> after; // parts that must be done before
        bool started = false;
        bool done = false;
    };
    std::vector<part> parts;
    std::size_t left = 0;         // parts that are not done
    std::shared_ptr<item> behind; // must be done before: a graph does not run beside itself

    bool done() const { return left == 0; }
};

struct graph_node {
    std::string what;
    std::function<task()> prepare;
    std::vector<std::size_t> after;
};

struct capture {
    std::vector<graph_node> nodes;
    cudaStream_t origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    bool invalid = false;
};

// What cudaEventRecord leaves in an event.
struct event_record {
    bool done = false;
    std::string from;
    std::chrono::steady_clock::time_point at; // where it is done: when that was

    void be_done() {
        at = std::chrono::steady_clock::now();
        done = true;
    }
};

} // namespace simt::detail

struct CUstream_st {
    std::string name;
    int device = 0;
    bool blocking = true; // with the null stream
    bool destroyed = false;
    std::deque<std::shared_ptr<simt::detail::item>> queue;
    std::shared_ptr<simt::detail::capture> capturing;
    std::vector<std::size_t> frontier; // while capturing: what the next node comes after
};

struct CUevent_st {
    bool has_time = true;
    std::shared_ptr<simt::detail::event_record> record; // the last one
    std::shared_ptr<simt::detail::capture> captured_by; // where it was recorded in a capture
    std::vector<std::size_t> frontier;
};

struct CUgraph_st {
    std::vector<simt::detail::graph_node> nodes;
};

struct CUgraphExec_st {
    std::vector<simt::detail::graph_node> nodes;
    std::shared_ptr<simt::detail::item> last_launch;
};

namespace simt::detail {

// All members are read and written with `mutex` held.
class scheduler {
public:
    static scheduler& instance();

    std::mutex mutex;
    device_counts counts;
    int num_devices = 1;
    bool runs_kernels = true;
    cudaError_t error = cudaSuccess; // every call returns it from then on
    std::string error_text;
    std::unordered_map<CUevent_st*, std::unique_ptr<CUevent_st>> events;
    std::unordered_map<CUgraph_st*, std::unique_ptr<CUgraph_st>> graphs;
    std::unordered_map<CUgraphExec_st*, std::unique_ptr<CUgraphExec_st>> graph_execs;
    std::unordered_map<const void*, std::size_t> shared_limits; // of kernels that asked for more than the default

    void start(const device_options& options, bool deferred);
    bool deferred() const { return deferred_; }
    bool fault_is_untold() const { return error != cudaSuccess && !told_; }
    cudaError_t tell() {
        told_ = told_ || error != cudaSuccess;
        return error;
    }

    // The stream of a handle; null for one that does not exist. 0 is the null stream of the thread's device.
    CUstream_st* find(cudaStream_t handle);
    CUstream_st* add_stream(bool blocking);
    void destroy_stream(CUstream_st* stream) { stream->destroyed = true; }
    const std::vector<std::unique_ptr<CUstream_st>>& streams() const { return streams_; }

    // Work for a stream that is not capturing, or a node for its capture. At once where nothing is deferred.
    cudaError_t give(std::unique_lock<std::mutex>& lock, CUstream_st* stream, const std::string& what,
                     std::function<task()> prepare);
    cudaError_t give(std::unique_lock<std::mutex>& lock, CUstream_st* stream, std::shared_ptr<item> work);

    // Does work, or sleeps while others do, until all items are done.
    cudaError_t wait(std::unique_lock<std::mutex>& lock, const std::vector<std::shared_ptr<item>>& items,
                     const std::string& waiter);
    cudaError_t wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done, const std::string& waiter);

    // Does a little work, perhaps none.
    void nudge(std::unique_lock<std::mutex>& lock);
    void changed();
    std::uint64_t any_number() { return random_(); }

    // --- Captures ---
    std::shared_ptr<capture> begin_capture(CUstream_st* stream, cudaStreamCaptureMode mode);
    void end_capture(const std::shared_ptr<capture>& ended);
    // For a call that must not be made while something is captured: that capture is then spoilt.
    cudaError_t refuse_in_capture();

private:
    struct candidate {
        std::shared_ptr<item> of;
        std::size_t part = 0;
    };

    std::vector<candidate> runnable();
    bool run_one(std::unique_lock<std::mutex>& lock);
    void fail(cudaError_t code, const std::string& text);
    std::string stuck() const;

    std::condition_variable changed_;
    std::uint64_t num_changes_ = 0;
    bool running_ = false; // some thread does a piece of work, without the lock
    bool deferred_ = false;
    bool told_ = false;
    std::chrono::milliseconds deadlock_after_{20'000};
    std::mt19937_64 random_{1};
    std::vector<std::unique_ptr<CUstream_st>> streams_; // null streams first, one for each device
    std::uint64_t num_streams_ = 0;
    std::vector<std::shared_ptr<capture>> captures_;
};

int& current_device();
cudaError_t& last_error();
bool& inside_host_function();

// The body of a function of the runtime: body(scheduler, lock) under the lock, unless the device has failed.
template <class Body>
cudaError_t runtime_call(const Body& body) {
    if (inside_host_function()) return last_error() = cudaErrorNotPermitted;
    scheduler& all = scheduler::instance();
    std::unique_lock lock(all.mutex);
    if (all.error != cudaSuccess) return all.tell();
    const cudaError_t result = body(all, lock);
    if (result != cudaSuccess) last_error() = result;
    return result;
}

// The same for a call about one stream: body(scheduler, lock, stream).
template <class Body>
cudaError_t stream_call(cudaStream_t handle, const Body& body) {
    return runtime_call([&](scheduler& all, std::unique_lock<std::mutex>& lock) {
        CUstream_st* const stream = all.find(handle);
        return stream == nullptr ? cudaErrorInvalidResourceHandle : body(all, lock, stream);
    });
}

} // namespace simt::detail
