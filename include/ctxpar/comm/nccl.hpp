// Ranks that talk through NCCL: a communicator around the ncclComm_t that the caller has made, and will destroy.
//
//   nccl_communicator comm(handle, {.timeout = std::chrono::seconds(10)}); // each rank, on the device of its handle
//
// Collectives are work of the caller's stream: calls return at once, wait for no host, allocate nothing, and may be
// captured in a graph. So no rank finds out by itself that its peers call something else; NCCL then waits for ever or
// mixes up memory. What finds it is agree(), once a plan, which at check_level::collective compares all earlier calls
// too, and wait(), which ends at the timeout. That names the call; who is late is known to none but NCCL's kernels.
// After an error work that was given to streams may still wait for peers; until ncclCommAbort ends it, what waits for
// those streams (cudaStreamSynchronize, cudaFree) waits too. The caller calls it, or chooses abort_on_error. NCCL 2.18
// or later; no CUDA compiler.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local_call.hpp>
#include <ctxpar/comm/nccl_call.hpp>

namespace ctxpar::inline v0_1 {

struct nccl_options {
    std::chrono::milliseconds timeout{30'000}; // longest wait of one call, at least 1 ms
    check_level checks = check_level::basic;   // the same on all ranks
    bool abort_on_error = false;               // the first error also aborts the caller's handle, which is then gone
};

namespace detail {

// What a communicator has on the device: room for what ranks compare, and an event to wait with. Letting it go does not
// block; memory that work of a dead communicator may still use is not given back.
class nccl_belongings {
public:
    nccl_belongings() = default;
    nccl_belongings(const nccl_belongings&) = delete;
    nccl_belongings& operator=(const nccl_belongings&) = delete;
    ~nccl_belongings() {
        if (event != nullptr) cudaEventDestroy(event);
        if (compared != nullptr && !is_abandoned) cudaFreeAsync(compared, stream_);
        if (stream_ != nullptr) cudaStreamDestroy(stream_);
    }

    cudaError_t acquire(std::size_t compared_bytes) {
        cudaError_t result = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        if (result != cudaSuccess || compared_bytes == 0) return result;
        result = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        void* memory = nullptr;
        if (result == cudaSuccess) result = cudaMallocAsync(&memory, compared_bytes, stream_);
        compared = static_cast<nccl_agreement*>(memory);
        return result == cudaSuccess ? cudaStreamSynchronize(stream_) : result;
    }

    cudaEvent_t event = nullptr;
    nccl_agreement* compared = nullptr; // [ranks]; null where nothing is compared
    bool is_abandoned = false;

private:
    cudaStream_t stream_ = nullptr;
};

// NCCL's name of a type that can be added; config_error "type" for others.
inline ncclDataType_t nccl_sum_type(const char* operation, scalar_type type) {
    if (type == scalar_type::f32) return ncclFloat32;
    if (type == scalar_type::f16) return ncclFloat16;
    require(type == scalar_type::bf16, "type", operation, ": NCCL does not add ", name_of(type),
            "; it adds f32, bf16 and f16");
    return ncclBfloat16;
}

struct nccl_place {
    ncclComm_t handle;
    int size;
    cudaStream_t stream;
};
struct nccl_sizes {
    std::size_t send, recv;
};
// Sends and receives sizes_of(peer) in one group, so that they go on side by side; parts of no bytes are left out.
template <class SizesOf>
ncclResult_t nccl_exchange(const void* send, void* recv, const nccl_place& at, const SizesOf& sizes_of) {
    const auto* from = static_cast<const std::byte*>(send);
    auto* to = static_cast<std::byte*>(recv);
    ncclResult_t first = ncclGroupStart(); // of the errors; the group ends also where a call of it fails
    if (first != ncclSuccess) return first;
    const auto keep = [&first](ncclResult_t result) {
        if (first == ncclSuccess && result != ncclInProgress) first = result;
    };
    for (int peer = 0; peer < at.size && first == ncclSuccess; ++peer) {
        const nccl_sizes bytes = sizes_of(static_cast<std::size_t>(peer));
        if (bytes.send > 0) keep(ncclSend(from, bytes.send, ncclUint8, peer, at.handle, at.stream));
        if (bytes.recv > 0) keep(ncclRecv(to, bytes.recv, ncclUint8, peer, at.handle, at.stream));
        from += bytes.send;
        to += bytes.recv;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return first != ncclSuccess ? first : ended;
}

inline ncclResult_t nccl_all_to_all(const void* send, void* recv, std::size_t bytes, const nccl_place& at) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
    return ncclAlltoAll(send, recv, bytes, ncclUint8, at.handle, at.stream);
#else
    return nccl_exchange(send, recv, at, [bytes](std::size_t) { return nccl_sizes{bytes, bytes}; });
#endif
}

} // namespace detail

// One rank's end. Models communicator and reducing_communicator. One thread at a time uses it, with the device of the
// handle current; it may be moved. Every collective is called by all ranks of the handle, in one order. The caller
// keeps the handle, and calls of its own on it go in that order too; neither making nor destroying a communicator is a
// collective, and destroying never blocks.
//
// Throws
//   config_error  "null", "aliasing", "sizes", "type", "moved", "capture": this rank's own arguments, nothing was done
//   comm_error    "timeout"; "digest" and "mismatch" of agree(); "peer_error" where NCCL has lost a peer; "nccl" for
//                 other errors of NCCL, "cuda" for those of CUDA; each is thrown once by the call that finds it, then
//                 "dead"
class nccl_communicator {
public:
    using stream_type = cudaStream_t;
    static constexpr bool reproducible = false; // NCCL chooses an order of adding by size and machine

    // Waits for no peer. config_error "null", "timeout" for less than 1 ms, "device" where the device of `handle` is
    // not the current one; comm_error "nccl", "cuda".
    explicit nccl_communicator(ncclComm_t handle, const nccl_options& options = {})
        : handle_(handle), options_(options), own_(std::make_unique<detail::nccl_belongings>()) {
        const detail::nccl_call call{"nccl_communicator", 0, {}, nullptr};
        require(handle != nullptr, "null", "nccl_communicator: the ncclComm_t is null");
        require(options.timeout.count() >= 1, "timeout", "nccl_communicator: a timeout of ", options.timeout.count(),
                " ms was asked for, it must be at least 1 ms");
        int device = 0, current = 0;
        settle(ncclCommUserRank(handle, &rank_), call);
        settle(ncclCommCount(handle, &size_), call);
        settle(ncclCommCuDevice(handle, &device), call);
        settle(cudaGetDevice(&current), call);
        require(device == current, "device", "nccl_communicator: the ncclComm_t is of device ", device,
                ", but the current device is ", current);
        if (options.checks != check_level::off && size_ > 1) compared_.resize(static_cast<std::size_t>(size_));
        settle(own_->acquire(compared_.size() * sizeof(detail::nccl_agreement)), call);
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    check_level checks() const { return options_.checks; }

    // The caller's handle; null once an error has aborted it.
    ncclComm_t handle() const { return handle_; }

    // Payload bytes sent to other ranks: of a sum what moving its parts costs at least, (size - 1) parts of
    // ceil(count / size) elements, twice for all_reduce. Calls of a captured graph count once.
    std::uint64_t bytes_sent() const { return bytes_sent_; }

    // recv: size() parts of `bytes_per_rank` bytes in rank order; send may be recv + rank() * bytes_per_rank.
    void all_gather(const void* send, void* recv, std::size_t bytes_per_rank, stream_type stream,
                    collective_note note = {}) {
        (void)detail::all_gather_call(rank_, size_, send, recv, bytes_per_rank, note);
        const detail::nccl_call& call = begin({"all_gather", bytes_per_rank, note});
        if (bytes_per_rank > 0) settle(ncclAllGather(send, recv, bytes_per_rank, ncclUint8, handle_, stream), call);
        bytes_sent_ += peers() * bytes_per_rank;
    }

    // send, recv: size() parts of `bytes_per_peer` bytes; part i of send goes to rank i, part i of recv came from it.
    void all_to_all(const void* send, void* recv, std::size_t bytes_per_peer, stream_type stream,
                    collective_note note = {}) {
        (void)detail::all_to_all_call(size_, send, recv, bytes_per_peer, note);
        const detail::nccl_call& call = begin({"all_to_all", bytes_per_peer, note});
        if (bytes_per_peer > 0)
            settle(detail::nccl_all_to_all(send, recv, bytes_per_peer, {handle_, size_, stream}), call);
        bytes_sent_ += peers() * bytes_per_peer;
    }

    // The same with a size for each rank, parts packed without gaps. A part of no bytes is neither sent nor received.
    // What rank i sends to rank j must be what j expects from i: NCCL does not compare them.
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, stream_type stream, collective_note note = {}) {
        const std::size_t bytes = detail::all_to_all_call(size_, send, send_bytes, recv, recv_bytes, note).bytes;
        const detail::nccl_call& call = begin({"all_to_all with sizes", bytes, note}, false);
        settle(detail::nccl_exchange(send, recv, {handle_, size_, stream},
                                     [&](std::size_t peer) {
                                         return detail::nccl_sizes{send_bytes[peer], recv_bytes[peer]};
                                     }),
               call);
        bytes_sent_ += bytes - send_bytes[static_cast<std::size_t>(rank_)];
    }

    // recv[i] = sum over ranks of send[rank() * count + i]; recv may be send + rank() * count elements.
    void reduce_scatter(const void* send, void* recv, std::size_t count, scalar_type type, stream_type stream,
                        collective_note note = {}) {
        const ncclDataType_t sum_type = detail::nccl_sum_type("reduce_scatter", type);
        const std::size_t bytes = detail::bytes_of_sum("reduce_scatter", count, type);
        const std::size_t total = detail::bytes_of_parts("reduce_scatter", size_, bytes);
        detail::require_sum_memory("reduce_scatter", send, total, recv, bytes, static_cast<std::size_t>(rank_) * bytes);
        note.type = type;
        const detail::nccl_call& call = begin({"reduce_scatter", bytes, note});
        if (count > 0) settle(ncclReduceScatter(send, recv, count, sum_type, ncclSum, handle_, stream), call);
        bytes_sent_ += peers() * bytes;
    }

    // recv[i] = sum over ranks of send[i]; may be in place.
    void all_reduce(const void* send, void* recv, std::size_t count, scalar_type type, stream_type stream,
                    collective_note note = {}) {
        const ncclDataType_t sum_type = detail::nccl_sum_type("all_reduce", type);
        const std::size_t bytes = detail::bytes_of_sum("all_reduce", count, type);
        detail::require_sum_memory("all_reduce", send, bytes, recv, bytes, 0);
        note.type = type;
        const detail::nccl_call& call = begin({"all_reduce", bytes, note});
        if (count > 0) settle(ncclAllReduce(send, recv, count, sum_type, ncclSum, handle_, stream), call);
        const auto parts = static_cast<std::size_t>(size_);
        bytes_sent_ +=
            2 * peers() * detail::bytes_of_sum("all_reduce", count / parts + (count % parts != 0 ? 1 : 0), type);
    }

    // Throws comm_error on every rank: "digest" unless all pass the same value, "mismatch" unless all have the same
    // check level and, where it is collective, made the same calls before. Gathers on `stream` and waits for it.
    // Returns false, having done nothing, at check_level::off, for one rank, and while it is captured.
    bool agree(std::uint64_t digest, const char* what, stream_type stream) {
        const detail::nccl_agreement own{digest, static_cast<std::uint64_t>(options_.checks), history_};
        const detail::nccl_call before = last_;
        const detail::nccl_call& call = begin({"agree", 0, {what, scalar_type::bytes, digest}, " on "});
        if (compared_.empty() || is_capturing(stream)) return false;
        detail::nccl_agreement* const mine = own_->compared + rank_;
        settle(cudaMemcpyAsync(mine, &own, sizeof own, cudaMemcpyHostToDevice, stream), call);
        settle(ncclAllGather(mine, own_->compared, sizeof own / 8, ncclUint64, handle_, stream), call);
        wait_for(stream);
        // On an idle stream, so that reading into plain memory waits for nothing but itself.
        settle(cudaMemcpyAsync(compared_.data(), own_->compared, compared_.size() * sizeof own, cudaMemcpyDeviceToHost,
                               stream),
               call);
        settle(cudaStreamSynchronize(stream), call);
        for (const detail::nccl_agreement& each : compared_)
            if (each != own) fail(detail::find_disagreement(what, compared_, rank_, before), last_, clock::now());
        return true;
    }

    // Throws the known failure, each time under its own code, or what NCCL has found since; never blocks.
    void check() {
        require_not_moved();
        const detail::nccl_call call{"check", 0, {}, nullptr};
        if (is_dead()) raise_error(failure_.code, call, failure_.text, clock::now());
        fail_on(known_error(), call, clock::now());
    }

    // Returns when the stream has done what it was given so far; looks for errors of NCCL meanwhile and throws
    // comm_error "timeout" by the deadline. config_error "capture" for a stream that is being captured.
    void wait(stream_type stream) {
        require_alive({"wait", 0, {}, nullptr});
        require(!is_capturing(stream), "capture",
                "wait: the stream is being captured; wait for the stream on which the graph is launched");
        wait_for(stream);
    }

    // The handle of the ranks that pass the same color, in order of (key, rank); null where color < 0. It is the
    // caller's: to wrap, and to destroy. Called by all ranks, waits for them on the host as ncclCommSplit does.
    ncclComm_t split(int color, int key) {
        const detail::nccl_call& call = begin({"split", 0, {}, nullptr});
        ncclComm_t part = nullptr;
        settle(ncclCommSplit(handle_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, nullptr), call);
        return part;
    }

private:
    using clock = std::chrono::steady_clock;
    std::uint64_t peers() const { return static_cast<std::uint64_t>(size_) - 1; }
    bool is_dead() const { return !failure_.code.empty(); }

    void require_not_moved() const { require(own_ != nullptr, "moved", "a moved-from NCCL communicator was used"); }
    void require_alive(const detail::nccl_call& call) const {
        require_not_moved();
        if (!is_dead()) return;
        raise_error("dead", call,
                    sentence("the communicator is dead since the failure \"", failure_.code, "\": ", failure_.text),
                    clock::now());
    }
    const detail::nccl_call& begin(const detail::nccl_call& call, bool has_same_bytes = true) {
        require_alive(call);
        ++num_calls_;
        if (options_.checks == check_level::collective) history_.add(call, has_same_bytes ? call.bytes : 0);
        return last_ = call;
    }

    bool is_capturing(stream_type stream) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
        if (asked == cudaErrorStreamCaptureImplicit) { // the null stream, which is part of what another one captures
            (void)cudaGetLastError();
            return true;
        }
        settle(asked, last_);
        return status != cudaStreamCaptureStatusNone;
    }

    void wait_for(stream_type stream) {
        const clock::time_point start = clock::now();
        settle(cudaEventRecord(own_->event, stream), last_);
        std::chrono::microseconds pause{10};
        while (true) {
            const cudaError_t state = cudaEventQuery(own_->event);
            if (state == cudaSuccess) return;
            if (state != cudaErrorNotReady) settle(state, last_, start);
            (void)cudaGetLastError(); // an event that is not ready is no error of the caller's
            fail_on(known_error(), last_, start);
            if (clock::now() - start >= options_.timeout) raise_timeout(start);
            std::this_thread::sleep_for(pause);
            pause = std::min(2 * pause, std::chrono::microseconds(500));
        }
    }

    ncclResult_t known_error() const {
        ncclResult_t found = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(handle_, &found);
        return asked != ncclSuccess ? asked : found;
    }

    // --- Failures ----------------------------------------------------------------------------------------------------

    void settle(cudaError_t result, const detail::nccl_call& call) { settle(result, call, clock::now()); }
    void settle(cudaError_t result, const detail::nccl_call& call, clock::time_point start) {
        if (result == cudaSuccess) [[likely]]
            return;
        const std::string text = sentence("CUDA reports ", cudaGetErrorName(result), ": ", cudaGetErrorString(result));
        fail({"cuda", text, "cudaSuccess", cudaGetErrorName(result), -1}, call, start);
    }

    // Of a handle that does not block, calls return before they are done.
    void settle(ncclResult_t result, const detail::nccl_call& call) {
        if (result == ncclSuccess) [[likely]]
            return;
        const clock::time_point start = clock::now();
        while (result == ncclInProgress) {
            if (clock::now() - start >= options_.timeout) raise_timeout(start);
            std::this_thread::yield();
            result = known_error();
        }
        fail_on(result, call, start);
    }

    void fail_on(ncclResult_t result, const detail::nccl_call& call, clock::time_point start) {
        if (result == ncclSuccess || result == ncclInProgress) [[likely]]
            return;
        const std::string text = sentence("NCCL reports ", ncclGetErrorString(result), nccl_words());
        fail({result == ncclRemoteError ? "peer_error" : "nccl", text, "ncclSuccess", ncclGetErrorString(result), -1},
             call, start);
    }

    // What NCCL says itself, which may be nothing.
    [[gnu::cold]] std::string nccl_words() const {
        const char* const said = ncclGetLastError(handle_);
        return said == nullptr || *said == '\0' ? "" : std::string(": ") + said;
    }

    [[noreturn, gnu::cold]] void raise_timeout(clock::time_point start) {
        fail(detail::nccl_lateness(rank_, start, num_calls_, last_, nccl_words()), last_, start);
    }

    [[noreturn, gnu::cold]] void fail(detail::local_failure failure, const detail::nccl_call& call,
                                      clock::time_point start) {
        failure_ = std::move(failure);
        own_->is_abandoned = true;
        if (options_.abort_on_error && handle_ != nullptr) {
            ncclCommAbort(handle_);
            handle_ = nullptr;
        }
        raise_error(failure_.code, call, failure_.text, start);
    }

    [[noreturn, gnu::cold]] void raise_error(const std::string& code, const detail::nccl_call& call,
                                             const std::string& text, clock::time_point start) const {
        const std::string name = call.name();
        raise(comm_error(
            {code, rank_, failure_.peer, name, failure_.expected, failure_.got, detail::milliseconds_since(start)},
            sentence("rank ", rank_, " in ", name, ": ", text)));
    }

    ncclComm_t handle_;
    nccl_options options_;
    std::unique_ptr<detail::nccl_belongings> own_; // null once moved from
    std::vector<detail::nccl_agreement> compared_; // [ranks]; empty where nothing is compared
    int rank_ = -1;
    int size_ = 0;
    std::uint64_t bytes_sent_ = 0;
    std::uint64_t num_calls_ = 0;
    detail::nccl_history history_;
    detail::nccl_call last_;
    detail::local_failure failure_; // without a code: alive
};

static_assert(communicator<nccl_communicator> && reducing_communicator<nccl_communicator>);

} // namespace ctxpar::inline v0_1
