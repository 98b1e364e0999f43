// Ranks that are threads of one process: a communicator without any transport, for tests, CPU hosts and one-machine
// engines. Bytes are copied once, from the peer's send buffer into the own receive buffer.
//
//   local_world world(4, {.checks = check_level::collective});
//   local_communicator comm = world.rank(r);                   // in the thread of rank r
//
//   run_local_ranks(4, {}, [](local_communicator& comm) { ... });  // or: four threads that do so
//
// Waits block, they do not spin: ranks may outnumber cores. Every wait for other ranks ends after
// local_options::timeout. How ranks meet, fail and keep memory alive is described in comm/local_meeting.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local_meeting.hpp>
#include <ctxpar/core/stream.hpp>

namespace ctxpar::inline v0_1 {

struct local_options {
    std::chrono::milliseconds timeout{30'000}; // longest wait of one call for other ranks, at least 1 ms
    check_level checks = check_level::basic;   // one level for all ranks of the world
};

// One rank's end of a world. Models communicator and peer_communicator.
//
// It may be moved, also to another thread; one thread at a time uses it. Destroying it means that the rank leaves: if
// a peer waits for it, or calls something later, that peer throws at once. Ranks that leave in order after their last
// collective report nothing. Neither destroying nor check() ever blocks.
//
// Every call is made by all ranks of the group and blocks until all are there. On return the receive buffer is filled
// and the send buffer may be reused. Throws, after which nothing was communicated:
//   config_error  "null", "aliasing", "sizes", "publish", "moved": this rank's own arguments, before its peers see it;
//                 the world stays usable, but peers that wait for this rank go on waiting for the call
//   comm_error    "mismatch" or "digest" (on every rank, listing what each called), "left", "peer_error", "timeout";
//                 the first of them kills the world: each rank throws it once, and "dead" from then on
class local_communicator {
public:
    using stream_type = host_stream;

    local_communicator(local_communicator&&) noexcept = default;

    // Leaves the world that *this belonged to.
    local_communicator& operator=(local_communicator&& other) noexcept {
        local_communicator old(std::move(other)); // swapped, so that assigning to itself is harmless
        std::swap(meeting_, old.meeting_);
        std::swap(rank_, old.rank_);
        std::swap(size_, old.size_);
        std::swap(checks_, old.checks_);
        std::swap(published_, old.published_);
        std::swap(bytes_sent_, old.bytes_sent_);
        std::swap(pointers_, old.pointers_);
        return *this;
    }

    ~local_communicator() {
        if (meeting_ != nullptr) meeting_->leave(rank_);
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    check_level checks() const { return checks_; }

    // Payload bytes sent to other ranks by calls that took place; published memory counts as it is published.
    std::uint64_t bytes_sent() const { return bytes_sent_; }

    // recv: size() parts of `bytes_per_rank` bytes in rank order; send may be recv + rank() * bytes_per_rank, any other
    // overlap is refused. All ranks pass the same number of bytes, else comm_error "mismatch".
    void all_gather(const void* send, void* recv, std::size_t bytes_per_rank, host_stream, collective_note note = {}) {
        meeting().meet(rank_, detail::all_gather_call(rank_, size_, send, recv, bytes_per_rank, note));
        bytes_sent_ += peers() * bytes_per_rank;
    }

    // send, recv: size() parts of `bytes_per_peer` bytes; part i of send goes to rank i, part i of recv came from rank
    // i. Never in place. All ranks pass the same number of bytes, else comm_error "mismatch".
    void all_to_all(const void* send, void* recv, std::size_t bytes_per_peer, host_stream, collective_note note = {}) {
        meeting().meet(rank_, detail::all_to_all_call(size_, send, recv, bytes_per_peer, note));
        bytes_sent_ += peers() * bytes_per_peer;
    }

    // The same with a size for each rank, parts packed without gaps. Sizes may be zero. What rank i sends to rank j
    // must be what j expects from i, else comm_error "mismatch".
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, host_stream, collective_note note = {}) {
        const detail::local_call call = detail::all_to_all_call(size_, send, send_bytes, recv, recv_bytes, note);
        meeting().meet(rank_, call);
        bytes_sent_ += call.bytes - send_bytes[static_cast<std::size_t>(rank_)];
    }

    // Throws comm_error "digest" on every rank unless all ranks pass the same value. At check_level::off it compares
    // and waits for nothing.
    void agree(std::uint64_t digest, const char* what, host_stream) {
        detail::local_call call{detail::local_operation::agree};
        call.note = {what, scalar_type::bytes, digest};
        if (checks_ == check_level::off) return meeting().require_alive(rank_, call, clock::now());
        meeting().meet(rank_, call);
    }

    // Throws the known failure, each time under its own code; never blocks.
    void check() { meeting().check(rank_); }

    // Host work is done on return, so there is nothing to wait for.
    void wait(host_stream) { meeting().require_alive(rank_, {}, clock::now()); }

    // Makes `data` readable by the peers until release() and returns what each rank passed, in rank order. `data` may
    // be null where `bytes_per_peer`, which is what each peer will read, is 0. Other collectives than publish may be
    // called before release(); config_error "publish" for a second publish.
    //
    // The memory must live until release() returns or a call other than check() throws comm_error; both wait for peers
    // that still read, for at most the timeout. A caller that may throw in between calls release() while it unwinds.
    std::span<const void* const> publish(const void* data, std::size_t bytes_per_peer, host_stream,
                                         collective_note note = {}) {
        require(!published_, "publish", "publish: rank ", rank_, " has published before and has not released that");
        detail::require_memory("publish", "data", data, bytes_per_peer);
        detail::local_call call{detail::local_operation::publish, data, nullptr, bytes_per_peer};
        call.note = note;
        const clock::time_point start = clock::now();
        const std::span<const detail::local_call> all = meeting().meet(rank_, call, detail::local_reading::begins);
        meeting().require_alive(rank_, call, start); // a peer that has failed since may have taken its memory back
        for (std::size_t peer = 0; peer < all.size(); ++peer) pointers_[peer] = all[peer].send;
        published_ = true;
        bytes_sent_ += peers() * bytes_per_peer;
        return pointers_;
    }

    // This rank reads published memory no more; returns when no rank does. config_error "publish" without a publish.
    void release(host_stream) {
        require(published_, "publish", "release: rank ", rank_, " has not published anything");
        published_ = false;
        meeting().meet(rank_, {detail::local_operation::release}, detail::local_reading::ends);
    }

    // The communicator of the ranks that pass the same color, in order of (key, rank), with the options of this one;
    // none where color < 0. Called by all ranks. The groups then fail each on its own; a rank that unwinds leaves both.
    std::optional<local_communicator> split(int color, int key) {
        detail::local_call call{detail::local_operation::split};
        call.color = color;
        call.key = key;
        detail::local_meeting::seat seat = meeting().split(rank_, call);
        if (seat.meeting == nullptr) return std::nullopt;
        return local_communicator(std::move(seat.meeting), seat.rank);
    }

    // Tells the peers that this rank failed: they throw comm_error "peer_error" with the reason. Called by one rank;
    // does not wait. Does nothing where the world is dead or *this was moved from.
    void fail(const std::string& reason) {
        if (meeting_ != nullptr) meeting_->fail(rank_, reason);
    }

private:
    friend class local_world;
    using clock = detail::local_meeting::clock;

    local_communicator(std::shared_ptr<detail::local_meeting> meeting, int rank)
        : meeting_(std::move(meeting)), rank_(rank), size_(meeting_->size()), checks_(meeting_->checks()),
          pointers_(static_cast<std::size_t>(size_)) {}

    detail::local_meeting& meeting() const {
        require(meeting_ != nullptr, "moved", "a local communicator was used after it had been moved from");
        return *meeting_;
    }

    std::uint64_t peers() const { return static_cast<std::uint64_t>(size_) - 1; }

    std::shared_ptr<detail::local_meeting> meeting_;
    int rank_;
    int size_;
    check_level checks_;
    bool published_ = false;
    std::uint64_t bytes_sent_ = 0;
    std::vector<const void*> pointers_; // [size] of the current publication
};

// What N ranks share. May be destroyed before its communicators are; ranks that were not taken by then count as left.
class local_world {
public:
    // config_error "ranks" for size < 1, "timeout" for less than 1 ms.
    explicit local_world(int size, const local_options& options = {})
        : meeting_(std::make_shared<detail::local_meeting>(size, options.timeout, options.checks)) {}

    local_world(const local_world&) = delete;
    local_world& operator=(const local_world&) = delete;

    ~local_world() { meeting_->leave_untaken(); }

    int size() const { return meeting_->size(); }

    // The communicator of rank r, once for each r, from any thread; config_error "rank".
    local_communicator rank(int r) {
        meeting_->take(r);
        return local_communicator(meeting_, r);
    }

private:
    std::shared_ptr<detail::local_meeting> meeting_;
};

namespace detail {

// Threads that are joined wherever the scope is left.
struct joined_threads {
    std::vector<std::thread> threads;

    joined_threads() = default;
    joined_threads(const joined_threads&) = delete;
    joined_threads& operator=(const joined_threads&) = delete;
    ~joined_threads() { join(); }

    void join() {
        for (std::thread& thread : threads) thread.join();
        threads.clear();
    }
};

#if defined(__cpp_exceptions)
// What was thrown first on any rank: with a cause of its own, and as a consequence of some failed collective.
struct first_exceptions {
    std::mutex mutex;
    std::exception_ptr cause;
    std::exception_ptr consequence;
};

template <class Fn>
void run_local_rank(local_communicator comm, Fn& fn, first_exceptions& first) {
    const auto note = [&](std::exception_ptr& place, const char* text) {
        const std::lock_guard lock(first.mutex);
        if (place == nullptr) place = std::current_exception();
        comm.fail(text);
    };
    try {
        fn(comm);
    } catch (const comm_error& problem) {
        note(first.consequence, problem.what());
    } catch (const std::exception& problem) {
        note(first.cause, problem.what());
    } catch (...) {
        note(first.cause, "an exception that is no std::exception");
    }
}
#endif

} // namespace detail

// Runs fn(local_communicator&) on `size` threads, one a rank, and returns when all have ended. Where fn throws on a
// rank, its peers get comm_error "peer_error" with the exception's text, and the first exception is thrown here; one
// that is no comm_error, and so has a cause of its own, goes before those that are.
#if defined(__cpp_exceptions)
inline namespace with_exceptions {
template <class Fn>
void run_local_ranks(int size, const local_options& options, Fn&& fn) {
    local_world world(size, options);
    detail::first_exceptions first;
    detail::joined_threads ranks;
    for (int r = 0; r < size; ++r)
        ranks.threads.emplace_back(
            [&fn, &first, comm = world.rank(r)]() mutable { detail::run_local_rank(std::move(comm), fn, first); });
    ranks.join();
    if (first.cause != nullptr) std::rethrow_exception(first.cause);
    if (first.consequence != nullptr) std::rethrow_exception(first.consequence);
}
} // namespace with_exceptions
#else
inline namespace without_exceptions {
template <class Fn>
void run_local_ranks(int size, const local_options& options, Fn&& fn) {
    local_world world(size, options);
    detail::joined_threads ranks;
    for (int r = 0; r < size; ++r)
        ranks.threads.emplace_back([&fn, comm = world.rank(r)]() mutable {
            local_communicator mine = std::move(comm);
            fn(mine);
        });
}
} // namespace without_exceptions
#endif

static_assert(communicator<local_communicator> && peer_communicator<local_communicator>);

} // namespace ctxpar::inline v0_1
