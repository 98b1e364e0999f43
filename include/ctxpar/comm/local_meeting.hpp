// The place where N threads meet: each posts a call, the last to arrive decides for all whether it takes place.
//
// A collective is one round, and a round is sealed or it is not:
//   1. Each rank posts its call under the mutex and waits. The last one compares the calls and seals the round, or
//      records a failure. A rank whose time is up, or that finds that a peer left or failed, records a failure.
//      Sealing and failing exclude each other under the mutex, and no round is sealed after a failure. So a round takes
//      place on every rank or on none.
//   2. In a sealed round every rank fills its own receive buffer from the peers' send buffers and then waits until all
//      have done so. Where the round is small the last to arrive fills the buffers of all ranks instead, so that the
//      others are woken once.
//
// Why no rank reads memory that its owner has taken back, and why no rank blocks for longer than the timeout:
//   - Send buffers are read in step 2 only, and all owners stay inside the call until all copying is done. A rank
//     that throws does so in step 1, in which nobody reads its buffers.
//   - The wait of step 1 is bounded by the timeout. The wait of step 2 has no bound of its own and needs none: every
//     rank is inside the call and only copies; it takes no lock, waits for nobody and runs no code of the caller.
//   - Published memory is read outside of calls. A rank counts as a reader from the sealed publish until the sealed
//     release; or until it leaves, or finds out in a call that the world is dead: then its pointers are void. A rank
//     that is about to throw first waits until there are no readers, for at most the timeout.
//
// The mutex is held for a few comparisons and for the copying of small rounds, so that leaving never blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ctxpar/comm/local_call.hpp>

namespace ctxpar::inline v0_1 {
namespace detail {

class local_meeting {
public:
    using clock = std::chrono::steady_clock;

    // Rounds that copy up to this many bytes in all are copied by the last rank to arrive. Measured with 8 ranks on 2
    // cores and 4 KiB a rank, which is this limit: 30 us a gather instead of 45 us where each rank copies its own part.
    // Above it two cores copy faster than one, and the second wake-up is lost in the copying.
    static constexpr std::size_t small_round_bytes = std::size_t(256) << 10;

    // A place in a group that split() made.
    struct seat {
        std::shared_ptr<local_meeting> meeting; // null: none
        int rank = 0;
    };

    // All memory that rounds need, apart from split, is allocated here.
    local_meeting(int size, std::chrono::milliseconds timeout, check_level checks)
        : timeout_(std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))), checks_(checks),
          calls_(checked_size(size)), ranks_(calls_.size()), pointers_(calls_.size()) {
        require(timeout.count() >= 1, "timeout", "the timeout of a local communicator is ", timeout.count(),
                " ms, it must be at least 1 ms");
    }

    local_meeting(const local_meeting&) = delete;
    local_meeting& operator=(const local_meeting&) = delete;

    int size() const { return static_cast<int>(calls_.size()); }
    check_level checks() const { return checks_; }

    // Each rank is taken once, by any thread.
    void take(int rank) {
        require(rank >= 0 && rank < size(), "rank", "rank ", rank, " of a local world of ", size(),
                " was asked for, legal are 0..", size() - 1);
        const std::lock_guard lock(mutex_);
        require(!std::exchange(at(rank).taken, true), "rank", "rank ", rank, " of the local world was taken before");
    }

    // The ranks that nobody took never will be.
    void leave_untaken() {
        for (int rank = 0; rank < size(); ++rank) {
            const std::unique_lock lock(mutex_);
            if (!std::exchange(at(rank).taken, true)) leave_locked(rank);
        }
    }

    // The rank makes no more calls. A failure only if a peer waits for it, now or later.
    void leave(int rank) {
        const std::lock_guard lock(mutex_);
        leave_locked(rank);
    }

    // Tells the peers that `rank` failed.
    void fail(int rank, const std::string& reason) {
        const std::lock_guard lock(mutex_);
        at(rank).told = true;
        if (!failed())
            record({"peer_error", sentence("rank ", rank, " failed: ", reason), "no failure of a rank", reason, rank});
    }

    bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

    // Throws the failure, where there is one. The failure does not change once failed() is true: no lock.
    void check(int rank) {
        if (!failed()) return;
        at(rank).told = true;
        raise_error(failure_.code, rank, "check", failure_.text, clock::now());
    }

    // What a call does that meets nobody.
    void require_alive(int rank, const local_call& call, clock::time_point start) {
        if (!failed()) return;
        std::unique_lock lock(mutex_);
        raise_failure(lock, rank, call, start);
    }

    // The whole collective, on every rank; see the head of this file. Throws comm_error.
    void meet(int rank, const local_call& call) {
        const clock::time_point start = clock::now();
        std::unique_lock lock(mutex_);
        if (failed()) raise_failure(lock, rank, call, start);

        const std::uint64_t round = num_sealed_;
        const bool last = post(rank, call);
        if (last) {
            seal();
        } else if (!changed_.wait_until(lock, start + timeout_, [&] { return num_sealed_ > round || failed(); })) {
            record(missing_ranks(rank, start));
        }
        if (num_sealed_ == round) raise_failure(lock, rank, call, start);

        if (num_completed_ > round) { // at once where there was little or nothing to copy
            lock.unlock();
            if (last) changed_.notify_all();
            return;
        }
        lock.unlock();
        if (last) changed_.notify_all();
        copy_to(calls_, static_cast<std::size_t>(rank));
        lock.lock();
        if (--num_copying_ > 0) {
            changed_.wait(lock, [&] { return num_completed_ > round; });
            return;
        }
        ++num_completed_;
        lock.unlock();
        changed_.notify_all();
    }

    // A meeting after which every rank may read what the others posted, until release.
    std::span<const void* const> publish(int rank, const local_call& call) {
        const clock::time_point start = clock::now();
        meet(rank, call);
        require_alive(rank, call, start); // a peer that has failed since may have taken its memory back
        return pointers_;
    }

    // A meeting that gives each rank its place in the group of the ranks of its color.
    seat split(int rank, const local_call& call) {
        meet(rank, call);
        return std::move(at(rank).child);
    }

private:
    struct rank_state {
        bool taken = false;
        bool left = false;
        bool arrived = false;   // waits in a round that is not sealed
        bool published = false; // may read its peers' published memory, and they its own
        bool told = false;      // has thrown the first failure; used by its own thread only
        seat child;             // from a sealed split until its own thread takes it
    };

    static std::size_t checked_size(int size) {
        require(size >= 1, "ranks", "a local world of ", size, " ranks was asked for, it needs at least 1");
        return static_cast<std::size_t>(size);
    }

    rank_state& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    template <class Predicate>
    std::vector<int> ranks_that(Predicate holds) const {
        std::vector<int> ranks;
        for (int rank = 0; rank < size(); ++rank)
            if (holds(ranks_[static_cast<std::size_t>(rank)])) ranks.push_back(rank);
        return ranks;
    }

    // --- All below with the mutex held -------------------------------------------------------------------------------

    // Returns whether all ranks have arrived.
    bool post(int rank, const local_call& call) {
        calls_[static_cast<std::size_t>(rank)] = call;
        at(rank).arrived = true;
        ++num_arrived_;
        if (num_left_ > 0) record(left_ranks());
        return num_arrived_ == size();
    }

    // By the last rank to arrive. What may throw comes before what changes the round.
    void seal() {
        if (local_failure failure = find_mismatch(calls_, checks_); !failure.code.empty()) {
            record(std::move(failure));
            return;
        }
        const local_operation operation = calls_.front().operation;
        if (operation == local_operation::split) make_groups();
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            rank_state& state = ranks_[rank];
            state.arrived = false;
            if (operation == local_operation::release) end_publication(state);
            if (operation != local_operation::publish) continue;
            pointers_[rank] = calls_[rank].send;
            state.published = true;
            ++num_published_;
        }
        num_arrived_ = 0;
        ++num_sealed_;
        if (copied_bytes(calls_) > small_round_bytes) {
            num_copying_ = size();
            return;
        }
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) copy_to(calls_, rank);
        ++num_completed_;
    }

    // Groups of the ranks of each color >= 0, ordered by (key, rank).
    [[gnu::cold]] void make_groups() {
        std::vector<std::tuple<int, int, int>> members; // color, key, rank
        for (int rank = 0; rank < size(); ++rank) {
            const local_call& call = calls_[static_cast<std::size_t>(rank)];
            if (call.color >= 0) members.emplace_back(call.color, call.key, rank);
        }
        std::sort(members.begin(), members.end());
        for (std::size_t first = 0, last = 0; first < members.size(); first = last) {
            while (last < members.size() && std::get<0>(members[last]) == std::get<0>(members[first])) ++last;
            const auto group = std::make_shared<local_meeting>(static_cast<int>(last - first), timeout_, checks_);
            for (std::size_t i = first; i < last; ++i) {
                const int new_rank = static_cast<int>(i - first);
                group->at(new_rank).taken = true;
                at(std::get<2>(members[i])).child = {group, new_rank};
            }
        }
    }

    void leave_locked(int rank) {
        rank_state& self = at(rank);
        const bool awaited = num_arrived_ > 0 || self.published;
        self.left = true;
        ++num_left_;
        end_publication(self);
        if (awaited && !failed()) record(left_ranks());
    }

    // Returns whether there was one. Ranks that throw may wait for the last one to end.
    bool end_publication(rank_state& self) {
        if (!std::exchange(self.published, false)) return false;
        if (--num_published_ == 0 && failed()) changed_.notify_all();
        return true;
    }

    void record(local_failure failure) {
        failure_ = std::move(failure);
        failed_.store(true, std::memory_order_release);
        changed_.notify_all();
    }

    [[gnu::cold]] std::string arrived_text() const {
        return calls_text(calls_, ranks_that([](const rank_state& state) { return state.arrived; }), false);
    }

    local_failure left_ranks() const {
        const std::vector<int> left = ranks_that([](const rank_state& state) { return state.left; });
        const std::string what = num_arrived_ > 0 ? " left, but " + arrived_text() : " left without a release";
        return {"left", ranks_text(left) + what, "all ranks", ranks_text(left) + " left", left.front()};
    }

    local_failure missing_ranks(int rank, clock::time_point start) const {
        const std::vector<int> missing = ranks_that([](const rank_state& state) { return !state.arrived; });
        return {"timeout",
                sentence(ranks_text(missing), " had not arrived when rank ", rank, " had waited ", milliseconds(start),
                         " ms; ", arrived_text()),
                ranks_text(missing) + " to arrive", "nothing", missing.empty() ? -1 : missing.front()};
    }

    static std::int64_t milliseconds(clock::time_point start) {
        return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - start).count();
    }

    // The first failure at the first time, "dead" from then on.
    [[noreturn, gnu::cold]] void raise_failure(std::unique_lock<std::mutex>& lock, int rank, const local_call& call,
                                               clock::time_point start) {
        rank_state& self = at(rank);
        if (end_publication(self)) changed_.wait_until(lock, start + timeout_, [&] { return num_published_ == 0; });
        lock.unlock();
        if (!std::exchange(self.told, true))
            raise_error(failure_.code, rank, operation_text(call), failure_.text, start);
        raise_error("dead", rank, operation_text(call),
                    sentence("the communicator is dead since the failure \"", failure_.code, "\": ", failure_.text),
                    start);
    }

    // Once failed: no lock needed.
    [[noreturn, gnu::cold]] void raise_error(const std::string& code, int rank, const std::string& operation,
                                             const std::string& text, clock::time_point start) const {
        raise(comm_error({code, rank, failure_.peer, operation, failure_.expected, failure_.got, milliseconds(start)},
                         sentence("rank ", rank, " in ", operation, ": ", text)));
    }

    const std::chrono::milliseconds timeout_;
    const check_level checks_;

    std::mutex mutex_;
    std::condition_variable changed_; // a round was sealed or completed, the world died, or its last reader ended
    std::vector<local_call> calls_;   // of the current round; read without the mutex while it is sealed, not completed
    std::vector<rank_state> ranks_;
    std::vector<const void*> pointers_; // of the current publication
    int num_arrived_ = 0;
    int num_copying_ = 0;
    int num_published_ = 0;
    int num_left_ = 0;
    std::uint64_t num_sealed_ = 0;
    std::uint64_t num_completed_ = 0;
    local_failure failure_; // constant once failed_
    std::atomic<bool> failed_ = false;
};

} // namespace detail
} // namespace ctxpar::inline v0_1
