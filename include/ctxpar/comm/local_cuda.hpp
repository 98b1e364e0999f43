// Ranks that share a process, each a host thread that gives work to its own CUDA streams, on one device or on several:
// how one GPU shows the ranks of many, and how an engine with one process runs several GPUs.
//
//   local_cuda_group group(8, {.checks = check_level::collective});
//   local_cuda_communicator comm = group.rank(r);              // in the thread of rank r, with its device current
//
// Host threads meet, for at most local_options::timeout, and no host waits for a device but in wait(). In a collective
//
//   1. every rank records on its stream that its buffers are ready, and all meet: each learns where its peers' buffers
//      lie, and that the records have been made;
//   2. its stream waits for those of the peers it reads from and copies what is its own, one copy a peer, and then
//      records that it has read; all meet once more, after which those records have been made too;
//   3. its stream waits for them, so that its later work may overwrite what its peers have read.
//
// So two meetings a collective; publish() and release() are one each, and a merge that reads in place costs no more. A
// rank has two events, used in turn: each is recorded again for the next meeting but one, and nobody arrives there
// before giving its stream the wait for the last record.
//
// Several devices: copies work between any two; to read published memory in place on another one, the engine has called
// cudaDeviceEnablePeerAccess. Buffers are memory of devices, or pinned: copies of other memory make the host wait.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/comm/local_meeting.hpp>

namespace ctxpar::inline v0_1 {

namespace detail {

// The events of one rank, which its peers' streams wait for: of even and odd meetings.
struct local_cuda_events {
    std::array<cudaEvent_t, 2> at{};

    local_cuda_events() = default;
    local_cuda_events(const local_cuda_events&) = delete;
    local_cuda_events& operator=(const local_cuda_events&) = delete;
    ~local_cuda_events() {
        for (const cudaEvent_t event : at)
            if (event != nullptr) cudaEventDestroy(event);
    }

    // On the current device.
    cudaError_t create() {
        for (cudaEvent_t& event : at)
            if (const cudaError_t made = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); made != cudaSuccess)
                return made;
        return cudaSuccess;
    }
};

// What a rank reads of what `source` sends.
struct local_part {
    const std::byte* at = nullptr;
    std::size_t bytes = 0;
};

inline local_part part_for(const local_call& source, std::size_t rank) {
    const auto* from = static_cast<const std::byte*>(source.send);
    if (source.operation == local_operation::all_gather) return {from, source.bytes};
    if (source.operation == local_operation::all_to_all)
        return {source.bytes == 0 ? from : from + rank * source.bytes, source.bytes};
    for (std::size_t before = 0; before < rank; ++before)
        if (source.send_bytes[before] > 0) from += source.send_bytes[before]; // null stays null
    return {from, source.send_bytes[rank]};
}

} // namespace detail

// One rank's end of a group. Models communicator and peer_communicator.
//
// It may be moved, also to another thread; one thread at a time uses it. Each call may be given another stream, of the
// device on which this rank was taken; it is ordered with what that stream has been given, and with nothing else.
// Destroying it means that the rank leaves: if a peer waits for it, or calls something later, that peer throws at once.
// Ranks that leave in order after their last collective report nothing. Neither destroying nor check() ever blocks.
//
// Every call is made by all ranks of the group and blocks until all hosts are there; its work is then in the streams.
// Nothing is allocated. Throws, after which nothing was communicated:
//   config_error  "null", "aliasing", "sizes", "publish", "moved": this rank's own arguments, "capture": a stream that
//                 is being captured; before its peers see the call. The group stays usable, but peers that wait for
//                 this rank go on waiting for the call
//   comm_error    "mismatch" or "digest" (on every rank, listing what each called), "left", "peer_error", "timeout",
//                 and "cuda" for an error of the CUDA runtime on any rank; the first of them kills the group: each rank
//                 throws it once, and "dead" from then on
//
// When a call other than check() throws comm_error no peer gives its streams work any more that reads this rank's
// memory (unless the timeout was over); work that it gave before ends when the streams of the peers have.
class local_cuda_communicator {
public:
    using stream_type = cudaStream_t;

    local_cuda_communicator(local_cuda_communicator&&) noexcept = default;

    // Leaves the group that *this belonged to.
    local_cuda_communicator& operator=(local_cuda_communicator&& other) noexcept {
        local_cuda_communicator old(std::move(other)); // swapped, so that assigning to itself is harmless
        std::swap(meeting_, old.meeting_);
        std::swap(rank_, old.rank_);
        std::swap(size_, old.size_);
        std::swap(checks_, old.checks_);
        std::swap(published_, old.published_);
        std::swap(num_meetings_, old.num_meetings_);
        std::swap(bytes_sent_, old.bytes_sent_);
        std::swap(pointers_, old.pointers_);
        return *this;
    }

    ~local_cuda_communicator() {
        if (meeting_ != nullptr) meeting_->leave(rank_);
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    check_level checks() const { return checks_; }

    // Payload bytes sent to other ranks by calls that took place; published memory counts as it is published.
    std::uint64_t bytes_sent() const { return bytes_sent_; }

    // recv: size() parts of `bytes_per_rank` bytes in rank order; send may be recv + rank() * bytes_per_rank, any other
    // overlap is refused. All ranks pass the same number of bytes, else comm_error "mismatch".
    void all_gather(const void* send, void* recv, std::size_t bytes_per_rank, stream_type stream,
                    collective_note note = {}) {
        exchange(detail::all_gather_call(rank_, size_, send, recv, bytes_per_rank, note), stream);
        bytes_sent_ += peers() * bytes_per_rank;
    }

    // send, recv: size() parts of `bytes_per_peer` bytes; part i of send goes to rank i, part i of recv came from rank
    // i. Never in place. All ranks pass the same number of bytes, else comm_error "mismatch".
    void all_to_all(const void* send, void* recv, std::size_t bytes_per_peer, stream_type stream,
                    collective_note note = {}) {
        exchange(detail::all_to_all_call(size_, send, recv, bytes_per_peer, note), stream);
        bytes_sent_ += peers() * bytes_per_peer;
    }

    // The same with a size for each rank, parts packed without gaps. Sizes may be zero. What rank i sends to rank j
    // must be what j expects from i, else comm_error "mismatch".
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, stream_type stream, collective_note note = {}) {
        const detail::local_call call = detail::all_to_all_call(size_, send, send_bytes, recv, recv_bytes, note);
        exchange(call, stream);
        bytes_sent_ += call.bytes - send_bytes[own()];
    }

    // Throws comm_error "digest" on every rank unless all ranks pass the same value. The hosts meet, streams have no
    // part in it. At check_level::off it compares and waits for nothing.
    void agree(std::uint64_t digest, const char* what, stream_type) {
        detail::local_call call{detail::local_operation::agree};
        call.note = {what, scalar_type::bytes, digest};
        if (checks_ == check_level::off) return meeting().require_alive(rank_, call, clock::now());
        meet(call, detail::local_reading::unchanged);
    }

    // Throws the known failure, each time under its own code; never blocks.
    void check() { meeting().check(rank_); }

    // Returns when the stream has done what it was given, and throws what becomes known of the group meanwhile;
    // comm_error "timeout" when that takes longer than the timeout. The one call that waits for a device.
    void wait(stream_type stream) {
        const clock::time_point start = clock::now();
        const detail::local_call call;
        require_not_capturing(call, stream);
        meeting().require_alive(rank_, call, start);
        for (std::chrono::microseconds pause{10};; pause = std::min(2 * pause, std::chrono::microseconds(100))) {
            const cudaError_t state = cudaStreamQuery(stream);
            if (state == cudaSuccess) return;
            if (state != cudaErrorNotReady) settle(state, call);
            (void)cudaGetLastError(); // a stream that is not done is no error of the caller's
            meeting().require_alive(rank_, call, start);
            if (clock::now() - start >= meeting().timeout()) raise_timeout(call, start);
            std::this_thread::sleep_for(pause);
        }
    }

    // Makes `data` readable by the peers until release(), for work given to `stream` after it, and returns what each
    // rank passed, in rank order. `data` may be null where `bytes_per_peer`, which is what each peer will read, is 0.
    // Other collectives than publish may be called before release(); config_error "publish" for a second publish.
    //
    // The memory is written by work given to `stream` before. A caller that may throw in between calls release() while
    // it unwinds.
    std::span<const void* const> publish(const void* data, std::size_t bytes_per_peer, stream_type stream,
                                         collective_note note = {}) {
        require(!published_, "publish", "publish: rank ", rank_, " has published before and has not released that");
        detail::require_memory("publish", "data", data, bytes_per_peer);
        detail::local_call call{detail::local_operation::publish, data, nullptr, bytes_per_peer};
        call.note = note;
        begin(call, stream);
        const std::span<const detail::local_call> all = record_and_meet(call, stream, detail::local_reading::begins);
        published_ = true;
        for (std::size_t peer = 0; peer < all.size(); ++peer) pointers_[peer] = all[peer].send;
        wait_for_peers(call, stream);
        bytes_sent_ += peers() * bytes_per_peer;
        return pointers_;
    }

    // This rank reads published memory no more than by what `stream` was given before; what it is given afterwards is
    // done when no rank reads any more. config_error "publish" without a publish.
    void release(stream_type stream) {
        const detail::local_call call{detail::local_operation::release};
        require(published_, "publish", "release: rank ", rank_, " has not published anything");
        begin(call, stream);
        published_ = false;
        record_and_meet(call, stream, detail::local_reading::ends);
        wait_for_peers(call, stream);
    }

    // The communicator of the ranks that pass the same color, in order of (key, rank), with the options of this one;
    // none where color < 0. Called by all ranks, with the device of its streams current. The groups then fail each on
    // its own; a rank that unwinds leaves both.
    std::optional<local_cuda_communicator> split(int color, int key) {
        detail::local_call call{detail::local_operation::split};
        call.color = color;
        call.key = key;
        meeting().require_alive(rank_, call, clock::now());
        const auto events = std::make_shared<detail::local_cuda_events>();
        settle(events->create(), call);
        detail::local_meeting::seat seat = meeting().split(rank_, call);
        ++num_meetings_;
        if (seat.meeting == nullptr) return std::nullopt;
        return local_cuda_communicator(std::move(seat.meeting), seat.rank, events);
    }

    // Tells the peers that this rank failed: they throw comm_error "peer_error" with the reason. Called by one rank;
    // does not wait. Does nothing where the group is dead or *this was moved from.
    void fail(const std::string& reason) {
        if (meeting_ != nullptr) meeting_->fail(rank_, reason);
    }

private:
    friend class local_cuda_group;
    using clock = detail::local_meeting::clock;

    local_cuda_communicator(std::shared_ptr<detail::local_meeting> meeting, int rank,
                            std::shared_ptr<const detail::local_cuda_events> events)
        : meeting_(std::move(meeting)), rank_(rank), size_(meeting_->size()), checks_(meeting_->checks()),
          pointers_(static_cast<std::size_t>(size_)) {
        meeting_->keep(rank, std::move(events));
    }

    detail::local_meeting& meeting() const {
        require(meeting_ != nullptr, "moved", "a local CUDA communicator was used after it had been moved from");
        return *meeting_;
    }

    std::size_t own() const { return static_cast<std::size_t>(rank_); }
    std::uint64_t peers() const { return static_cast<std::uint64_t>(size_) - 1; }

    // The event that `rank` records for that meeting.
    cudaEvent_t event_of(std::size_t rank, std::uint64_t meeting_number) const {
        const void* const of_rank = meeting_->belongings(static_cast<int>(rank));
        return static_cast<const detail::local_cuda_events*>(of_rank)->at[meeting_number % 2];
    }

    void exchange(const detail::local_call& call, stream_type stream) {
        begin(call, stream);
        const std::span<const detail::local_call> all = record_and_meet(call, stream, detail::local_reading::begins);
        for (std::size_t i = 0; i < all.size(); ++i) { // each rank starts with another peer
            const std::size_t peer = (own() + i) % all.size();
            const detail::local_part part = detail::part_for(all[peer], own());
            if (part.bytes > 0) copy(call, part, place_of(call, peer), peer, stream);
        }
        record_and_meet(call, stream, detail::local_reading::ends);
        wait_for_peers(call, stream);
    }

    // Where in the own receive buffer the part of `peer` begins.
    static std::byte* place_of(const detail::local_call& call, std::size_t peer) {
        auto* to = static_cast<std::byte*>(call.recv);
        if (call.operation != detail::local_operation::all_to_all_spans) return to + peer * call.bytes;
        for (std::size_t before = 0; before < peer; ++before) to += call.recv_bytes[before];
        return to;
    }

    void copy(const detail::local_call& call, const detail::local_part& part, std::byte* to, std::size_t peer,
              stream_type stream) {
        if (peer != own()) settle(cudaStreamWaitEvent(stream, event_of(peer, num_meetings_ - 1), 0), call);
        if (part.at == to) return; // the own part of a gather in place
        settle(cudaMemcpyAsync(to, part.at, part.bytes, cudaMemcpyDefault, stream), call);
    }

    void begin(const detail::local_call& call, stream_type stream) {
        require_not_capturing(call, stream);
        meeting().require_alive(rank_, call, clock::now());
    }

    std::span<const detail::local_call> meet(const detail::local_call& call, detail::local_reading reading) {
        const std::span<const detail::local_call> all = meeting().meet(rank_, call, reading);
        ++num_meetings_;
        return all;
    }

    // After it, all ranks' events of this meeting have been recorded.
    std::span<const detail::local_call> record_and_meet(const detail::local_call& call, stream_type stream,
                                                        detail::local_reading reading) {
        settle(cudaEventRecord(event_of(own(), num_meetings_), stream), call);
        return meet(call, reading);
    }

    // For what all peers have recorded for the last meeting.
    void wait_for_peers(const detail::local_call& call, stream_type stream) {
        for (std::size_t peer = 0; peer < pointers_.size(); ++peer)
            if (peer != own()) settle(cudaStreamWaitEvent(stream, event_of(peer, num_meetings_ - 1), 0), call);
    }

    // --- Failures ----------------------------------------------------------------------------------------------------

    void require_not_capturing(const detail::local_call& call, stream_type stream) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaError_t asked = cudaStreamIsCapturing(stream, &status);
        if (asked == cudaErrorStreamCaptureImplicit) { // the null stream, which is part of what another one captures
            (void)cudaGetLastError();
            status = cudaStreamCaptureStatusActive;
            asked = cudaSuccess;
        }
        settle(asked, call);
        if (status == cudaStreamCaptureStatusNone) return;
        require(false, "capture", detail::operation_text(call),
                ": the stream is being captured, but ranks that share a process meet on their hosts in every call, "
                "which no graph repeats; capture the steps of ranks that talk through NCCL (nccl_communicator)");
    }

    void settle(cudaError_t result, const detail::local_call& call) {
        if (result == cudaSuccess) [[likely]]
            return;
        const char* const name = cudaGetErrorName(result);
        meeting().die(rank_,
                      {"cuda",
                       sentence("CUDA reports ", name, " on rank ", rank_, " in ", detail::operation_text(call), ": ",
                                cudaGetErrorString(result)),
                       "cudaSuccess", name, rank_},
                      call, clock::now());
    }

    [[noreturn, gnu::cold]] void raise_timeout(const detail::local_call& call, clock::time_point start) {
        const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - start).count();
        meeting().die(rank_,
                      {"timeout",
                       sentence("the stream of rank ", rank_, " was not done when it had waited ", waited, " ms"),
                       "the stream to be done", "nothing", rank_},
                      call, start);
    }

    std::shared_ptr<detail::local_meeting> meeting_;
    int rank_;
    int size_;
    check_level checks_;
    bool published_ = false;
    std::uint64_t num_meetings_ = 0; // of this rank and so of all; decides which event of a pair is used
    std::uint64_t bytes_sent_ = 0;
    std::vector<const void*> pointers_; // [size] of the current publication
};

// What N ranks share. May be destroyed before its communicators are; ranks that were not taken by then count as left.
class local_cuda_group {
public:
    // config_error "ranks" for size < 1, "timeout" for less than 1 ms.
    explicit local_cuda_group(int size, const local_options& options = {})
        : meeting_(std::make_shared<detail::local_meeting>(size, options.timeout, options.checks, kind)) {}

    local_cuda_group(const local_cuda_group&) = delete;
    local_cuda_group& operator=(const local_cuda_group&) = delete;

    ~local_cuda_group() { meeting_->leave_untaken(); }

    int size() const { return meeting_->size(); }

    // The communicator of rank r, once for each r, from any thread with the device of the rank's streams current, whose
    // events it makes; config_error "rank", comm_error "cuda".
    local_cuda_communicator rank(int r) {
        meeting_->take(r);
        const auto events = std::make_shared<detail::local_cuda_events>();
        const cudaError_t made = events->create();
        local_cuda_communicator comm(meeting_, r, events);
        comm.settle(made, {});
        return comm;
    }

private:
    static constexpr detail::local_meeting_kind kind{"local CUDA communicator", "local CUDA group", false};
    std::shared_ptr<detail::local_meeting> meeting_;
};

static_assert(communicator<local_cuda_communicator> && peer_communicator<local_cuda_communicator>);

} // namespace ctxpar::inline v0_1
