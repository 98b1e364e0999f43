// The scheduler: which piece of work is next, and who does it.
#include "device.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "scheduler.hpp"

namespace simt {
namespace detail {

int& current_device() {
    thread_local int device = 0;
    return device;
}
cudaError_t& last_error() {
    thread_local cudaError_t error = cudaSuccess;
    return error;
}
bool& inside_host_function() {
    thread_local bool inside = false;
    return inside;
}

scheduler& scheduler::instance() {
    static scheduler& all = []() -> scheduler& {
        auto* const only = new scheduler; // other objects may end later
        only->start({}, false);
        return *only;
    }();
    return all;
}

void scheduler::start(const device_options& options, bool deferred) {
    streams_.clear();
    captures_.clear();
    events.clear();
    graphs.clear();
    graph_execs.clear();
    shared_limits.clear();
    counts = {};
    num_devices = options.devices;
    runs_kernels = options.runs_kernels;
    error = cudaSuccess;
    told_ = false;
    deferred_ = deferred;
    deadlock_after_ = options.deadlock_after;
    random_.seed(options.seed);
    num_streams_ = 0;
    for (int i = 0; i < options.devices; ++i) {
        auto stream = std::make_unique<CUstream_st>();
        stream->name = "null stream of device " + std::to_string(i);
        stream->device = i;
        streams_.push_back(std::move(stream));
    }
}

CUstream_st* scheduler::find(cudaStream_t handle) {
    if (handle == nullptr) return streams_[static_cast<std::size_t>(current_device() % num_devices)].get();
    for (const auto& each : streams_)
        if (each.get() == handle) return each->destroyed ? nullptr : handle;
    return nullptr;
}

CUstream_st* scheduler::add_stream(bool blocking) {
    auto stream = std::make_unique<CUstream_st>();
    stream->name = "stream " + std::to_string(++num_streams_);
    stream->device = current_device();
    stream->blocking = blocking;
    streams_.push_back(std::move(stream));
    return streams_.back().get();
}

cudaError_t scheduler::give(std::unique_lock<std::mutex>& lock, CUstream_st* stream, const std::string& what,
                            std::function<task()> prepare) {
    if (stream->capturing != nullptr) {
        capture& into = *stream->capturing;
        if (into.invalid) return cudaErrorStreamCaptureInvalidated;
        into.nodes.push_back({what, std::move(prepare), stream->frontier});
        stream->frontier = {into.nodes.size() - 1};
        return cudaSuccess;
    }
    auto work = std::make_shared<item>();
    work->parts.push_back({what, prepare(), {}});
    return give(lock, stream, std::move(work));
}

cudaError_t scheduler::give(std::unique_lock<std::mutex>& lock, CUstream_st* stream, std::shared_ptr<item> work) {
    work->left = work->parts.size();
    stream->queue.push_back(work);
    changed();
    return deferred_ ? cudaSuccess : wait(lock, {work}, "work that is done at once");
}

void scheduler::changed() {
    ++num_changes_;
    changed_.notify_all();
}

// Asks the heads of all streams. Streams that were destroyed go when they have nothing left to do.
std::vector<scheduler::candidate> scheduler::runnable() {
    std::vector<candidate> found;
    for (const auto& stream : streams_) {
        auto& queue = stream->queue;
        while (!queue.empty() && queue.front()->done()) queue.pop_front();
        if (queue.empty()) continue;
        const std::shared_ptr<item>& head = queue.front();
        if (head->behind != nullptr && !head->behind->done()) continue;
        head->behind = nullptr;
        for (std::size_t i = 0; i < head->parts.size(); ++i) {
            const item::part& part = head->parts[i];
            const auto is_done = [&](std::size_t before) { return head->parts[before].done; };
            if (part.started || !std::all_of(part.after.begin(), part.after.end(), is_done)) continue;
            if (!part.work.ready || part.work.ready()) found.push_back({head, i});
        }
    }
    std::erase_if(streams_, [](const auto& stream) { return stream->destroyed && stream->queue.empty(); });
    return found;
}

// Returns whether there was anything to do. Gives the lock back while it does it.
bool scheduler::run_one(std::unique_lock<std::mutex>& lock) {
    const std::vector<candidate> found = runnable();
    if (found.empty()) return false;
    const candidate chosen = found[random_() % found.size()];
    item::part& part = chosen.of->parts[chosen.part];
    part.started = true;
    running_ = true;
    lock.unlock();
    std::string problem;
    try {
        if (part.work.run) part.work.run();
    } catch (const std::exception& fault) {
        problem = part.what + ": " + fault.what();
    }
    lock.lock();
    running_ = false;
    part.done = true;
    --chosen.of->left;
    part.work = {};
    if (!problem.empty()) fail(cudaErrorLaunchFailure, problem);
    changed();
    return true;
}

cudaError_t scheduler::wait(std::unique_lock<std::mutex>& lock, const std::vector<std::shared_ptr<item>>& items,
                            const std::string& waiter) {
    const auto done = [&] { return std::all_of(items.begin(), items.end(), [](const auto& i) { return i->done(); }); };
    return wait(lock, done, waiter);
}

cudaError_t scheduler::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done,
                            const std::string& waiter) {
    while (true) {
        if (error != cudaSuccess) return tell();
        if (done()) return cudaSuccess;
        if (!running_ && run_one(lock)) continue;
        const std::uint64_t seen = num_changes_;
        const bool moved = changed_.wait_for(lock, deadlock_after_, [&] { return num_changes_ != seen; });
        if (!moved && !running_)
            fail(cudaErrorLaunchTimeout, waiter + " has waited " + std::to_string(deadlock_after_.count()) +
                                             " ms in which nothing could be done: " + stuck());
    }
}

void scheduler::nudge(std::unique_lock<std::mutex>& lock) {
    for (std::uint64_t left = random_() % 3; left > 0 && !running_ && error == cudaSuccess; --left) run_one(lock);
}

void scheduler::fail(cudaError_t code, const std::string& text) {
    if (error != cudaSuccess) return;
    error = code;
    error_text = text;
    changed();
}

// "stream 2 at wait for an event: it waits for the event recorded on stream 1; ..."
std::string scheduler::stuck() const {
    std::string text;
    for (const auto& stream : streams_) {
        if (stream->queue.empty()) continue;
        const item& head = *stream->queue.front();
        for (const item::part& part : head.parts) {
            const auto is_done = [&](std::size_t before) { return head.parts[before].done; };
            if (part.started || !std::all_of(part.after.begin(), part.after.end(), is_done)) continue;
            text += (text.empty() ? "" : "; ") + stream->name + " is at " + part.what;
            if (part.work.waits_for) text += ", which waits for " + part.work.waits_for();
        }
    }
    return text.empty() ? "no stream has work" : text;
}

std::shared_ptr<capture> scheduler::begin_capture(CUstream_st* stream, cudaStreamCaptureMode mode) {
    auto begun = std::make_shared<capture>();
    begun->origin = stream;
    begun->mode = mode;
    begun->thread = std::this_thread::get_id();
    stream->capturing = begun;
    stream->frontier.clear();
    captures_.push_back(begun);
    return begun;
}

void scheduler::end_capture(const std::shared_ptr<capture>& ended) {
    for (const auto& stream : streams_)
        if (stream->capturing == ended) stream->capturing = nullptr;
    std::erase(captures_, ended);
}

cudaError_t scheduler::refuse_in_capture() {
    cudaError_t result = cudaSuccess;
    for (const auto& each : captures_) {
        if (each->mode == cudaStreamCaptureModeRelaxed) continue;
        if (each->mode == cudaStreamCaptureModeThreadLocal && each->thread != std::this_thread::get_id()) continue;
        each->invalid = true;
        result = cudaErrorStreamCaptureUnsupported;
    }
    return result;
}

namespace {

// Runs a grid and counts what it moved.
void run_counted(const grid_options& options, const std::function<void()>& body) {
    const traffic before = counters();
    run_grid(options, body);
    const traffic after = counters();
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    ++all.counts.kernels_run;
    all.counts.bytes_read += after.bytes_read - before.bytes_read;
    all.counts.bytes_written += after.bytes_written - before.bytes_written;
}

cudaError_t refuse_launch(scheduler& all, const void* kernel, const grid_options& options) {
    const auto is_in = [](unsigned value, unsigned most) { return value >= 1 && value <= most; };
    const extent& grid = options.grid;
    if (!is_in(grid.x, 0x7fffffffU) || !is_in(grid.y, 65535) || !is_in(grid.z, 65535) ||
        !is_in(static_cast<unsigned>(options.block.count()), 1024))
        return cudaErrorInvalidConfiguration;
    const auto limit = all.shared_limits.find(kernel);
    const std::size_t most = limit == all.shared_limits.end() ? 48 * 1024 : limit->second;
    return options.shared_bytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace
} // namespace detail

using detail::scheduler;

cudaError_t launch_grid(cudaStream_t handle, const void* kernel, const std::string& name, const grid_options& options,
                        std::function<void()> body) {
    bool at_once = false;
    const cudaError_t result = detail::stream_call(handle, [&](scheduler& all, auto& lock, CUstream_st* stream) {
        const cudaError_t refusal = detail::refuse_launch(all, kernel, options);
        if (refusal != cudaSuccess) return refusal;
        ++all.counts.launches;
        ++all.counts.launches_of[kernel];
        if (!all.runs_kernels) return cudaSuccess;
        at_once = !all.deferred() && stream->capturing == nullptr;
        if (at_once) return cudaSuccess;
        // The order of threads is another one each time that a graph is launched.
        auto times = std::make_shared<std::uint64_t>(0);
        return all.give(lock, stream, name, [options, body = std::move(body), times]() -> task {
            grid_options mine = options;
            mine.seed += 7919 * (*times)++;
            return {{}, [mine, body] { detail::run_counted(mine, body); }, {}};
        });
    });
    if (result == cudaSuccess && at_once) detail::run_counted(options, body); // a fault is thrown to the caller
    return result;
}

cudaError_t enqueue_each(cudaStream_t handle, std::string what, std::function<task()> prepare) {
    return detail::stream_call(handle, [&](scheduler& all, auto& lock, CUstream_st* stream) {
        return all.give(lock, stream, what, std::move(prepare));
    });
}

cudaError_t enqueue(cudaStream_t stream, std::string what, std::function<bool()> ready, std::function<void()> run) {
    return enqueue_each(stream, std::move(what), [ready = std::move(ready), run = std::move(run)]() -> task {
        return {ready, run, {}};
    });
}

void change_under_lock(const std::function<void()>& change) {
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    change();
    all.changed();
}

std::uint64_t any_number() {
    return scheduler::instance().any_number();
}

std::string last_fault_text() {
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    return all.error == cudaSuccess ? "" : all.error_text;
}

device_counts device_counters() {
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    return all.counts;
}

device::device(const device_options& options) {
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    all.start(options, true);
    detail::last_error() = cudaSuccess;
    detail::current_device() = 0;
}

device::~device() {
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    if (all.fault_is_untold()) {
        std::fprintf(stderr, "the emulated device failed, and no call has said so: %s\n", all.error_text.c_str());
        std::abort();
    }
    all.start({}, false);
    detail::last_error() = cudaSuccess;
    detail::current_device() = 0;
}

} // namespace simt
