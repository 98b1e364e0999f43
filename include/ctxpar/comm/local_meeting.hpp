// The place where the threads of N ranks meet: each posts a call, the last to arrive decides for all whether it takes
// place, and then every rank may read what the others have posted.
//
// A meeting is one round, and a round is sealed or it is not. Each rank posts its call under the mutex and waits. The
// last one compares the calls and seals the round, or records a failure. A rank whose time is up, or that finds that a
// peer left or failed, records a failure. Sealing and failing exclude each other under the mutex, and no round is
// sealed after a failure. So a round takes place on every rank or on none.
//
// What a rank has posted stays readable until it arrives at the next round but one: by then all ranks have arrived at
// the next round, so they have done with this one. Posts therefore have two places, and so must have whatever a rank
// records for its peers to look at, such as events.
//
// Memory of peers is read in one of two ways, and never after its owner has taken it back:
//   - Where ranks work on the host, by a sealed round that also copies: every rank fills its own receive buffer and
//     stays inside the call until all have done so. That wait has no bound and needs none: every rank is inside the
//     call and only copies; it takes no lock, waits for nobody and runs no code of the caller. Where the round is small
//     the last to arrive fills the buffers of all ranks instead, so that the others are woken once.
//   - Outside of calls, from a round that begins a reading to one that ends it: published memory, and where ranks work
//     on streams, which never copy inside a round, also that of collectives, which are two rounds. A rank reads until
//     the round that ends it; or until it leaves, or finds out in a call that all is dead. A rank that is about to
//     throw first waits until nobody reads, for at most the timeout. Work that was given to streams may still run.
//
// The mutex is held for a few comparisons and for the copying of small rounds, so that leaving never blocks.
//
// Where there is a core for each rank, a rank polls for its peers before it sleeps: to be woken takes longer than most
// calls. num_sealed_ and num_completed_ are atomic for that, and num_sealed_ is the last that a seal changes: a rank
// that sees a round sealed has all of it, without the mutex.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ctxpar/comm/local_call.hpp>

namespace ctxpar::inline v0_1 {
namespace detail {

// Whether peers' memory may be read outside of calls from this round on, or not any more.
enum class local_reading : std::uint8_t { unchanged, begins, ends };

// Who meets, for errors, and whether sealed rounds copy.
struct local_meeting_kind {
    const char* communicator = "local communicator";
    const char* group = "local world";
    bool copies = true;
};

class local_meeting {
public:
    using clock = std::chrono::steady_clock;

    // Rounds that copy up to this many bytes in all are copied by the last rank to arrive. Measured with 8 ranks on 2
    // cores and 4 KiB a rank, which is this limit: 30 us a gather instead of 45 us where each rank copies its own part.
    // Above it two cores copy faster than one, and the second wake-up is lost in the copying.
    static constexpr std::size_t small_round_bytes = std::size_t(256) << 10;

    // How long a rank polls. Measured with 2 ranks on 2 cores, a gather of 4 KiB: 3 us, and
    // 29 us where ranks sleep at once.
    static constexpr std::chrono::microseconds longest_poll{100};

    // A place in a group that split() made.
    struct seat {
        std::shared_ptr<local_meeting> meeting; // null: none
        int rank = 0;
    };

    // All memory that rounds need, apart from split, is allocated here.
    local_meeting(int size, std::chrono::milliseconds timeout, check_level checks, const local_meeting_kind& kind = {})
        : kind_(kind), timeout_(std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))),
          checks_(checks), ranks_(checked_size(size)) {
        require(timeout.count() >= 1, "timeout", "the timeout of a ", kind.communicator, " is ", timeout.count(),
                " ms, it must be at least 1 ms");
        for (std::vector<local_call>& calls : calls_) calls.resize(ranks_.size());
    }

    local_meeting(const local_meeting&) = delete;
    local_meeting& operator=(const local_meeting&) = delete;

    int size() const { return static_cast<int>(ranks_.size()); }
    check_level checks() const { return checks_; }
    std::chrono::milliseconds timeout() const { return timeout_; }

    // Each rank is taken once, by any thread.
    void take(int rank) {
        require(rank >= 0 && rank < size(), "rank", "rank ", rank, " of a ", kind_.group, " of ", size(),
                " was asked for, legal are 0..", size() - 1);
        const std::lock_guard lock(mutex_);
        require(!std::exchange(at(rank).taken, true), "rank", "rank ", rank, " of the ", kind_.group,
                " was taken before");
    }

    // What peers use of a rank, such as its events, lives as long as the meeting. By the rank, before its first round.
    void keep(int rank, std::shared_ptr<const void> belongings) { at(rank).belongings = std::move(belongings); }
    const void* belongings(int rank) const { return ranks_[static_cast<std::size_t>(rank)].belongings.get(); }

    // The ranks that nobody took never will be.
    void leave_untaken() {
        for (int rank = 0; rank < size(); ++rank) {
            const std::lock_guard lock(mutex_);
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

    // Of `failure`, of which this rank knows, and one that came before it, the first is thrown, here and on all ranks.
    [[noreturn, gnu::cold]] void die(int rank, local_failure failure, const local_call& call, clock::time_point start) {
        std::unique_lock lock(mutex_);
        record(std::move(failure));
        raise_failure(lock, rank, call, start);
    }

    // One round, on every rank; returns what each has posted, in rank order, to be read until this rank's next round.
    // Throws comm_error.
    std::span<const local_call> meet(int rank, const local_call& call,
                                     local_reading reading = local_reading::unchanged) {
        const clock::time_point start = clock::now();
        std::unique_lock lock(mutex_);
        if (failed()) raise_failure(lock, rank, call, start);

        const std::uint64_t round = num_sealed_;
        const bool last = post(rank, call);
        if (last) {
            seal(reading);
            if (num_sealed_ == round) raise_failure(lock, rank, call, start);
            lock.unlock();
            changed_.notify_all();
        } else if (lock.unlock(); !polled(num_sealed_, round)) {
            lock.lock();
            if (!changed_.wait_until(lock, start + timeout_, [&] { return num_sealed_ > round || failed(); }))
                record(missing_ranks(rank, start));
            if (num_sealed_ == round) raise_failure(lock, rank, call, start);
            lock.unlock();
        }
        const std::span<const local_call> calls = calls_[round % 2];
        const bool is_completed = num_completed_ > round; // at once where there was little or nothing to copy
        if (!is_completed) copy_and_wait(calls, rank, round);
        return calls;
    }

    // A round that gives each rank its place in the group of the ranks of its color.
    seat split(int rank, const local_call& call) {
        meet(rank, call);
        return std::move(at(rank).child);
    }

private:
    struct rank_state {
        bool taken = false;
        bool left = false;
        bool arrived = false; // waits in a round that is not sealed
        int num_readings = 0; // begun and not ended, of its peers' memory, and theirs of its own
        bool told = false;    // has thrown the first failure; used by its own thread only
        seat child;           // from a sealed split until its own thread takes it
        std::shared_ptr<const void> belongings;
    };

    std::size_t checked_size(int size) const {
        require(size >= 1, "ranks", "a ", kind_.group, " of ", size, " ranks was asked for, it needs at least 1");
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

    // Whether a count goes past a round soon. Not where it is not worth the waiting, nor after a failure.
    bool polled(const std::atomic<std::uint64_t>& count, std::uint64_t round) const {
        if (!has_cores_) return false;
        const clock::time_point end = clock::now() + longest_poll;
        do {
            for (int turn = 0; turn < 16; ++turn) {
                if (count.load(std::memory_order_acquire) > round) return true;
                std::this_thread::yield();
            }
        } while (!failed() && clock::now() < end);
        return false;
    }

    // The second step of a round that copies much, which no rank leaves before all have done their part.
    void copy_and_wait(std::span<const local_call> calls, int rank, std::uint64_t round) {
        copy_to(calls, static_cast<std::size_t>(rank));
        std::unique_lock lock(mutex_);
        if (--num_copying_ > 0) {
            lock.unlock();
            if (polled(num_completed_, round)) return;
            lock.lock();
            changed_.wait(lock, [&] { return num_completed_ > round; });
            return;
        }
        ++num_completed_;
        lock.unlock();
        changed_.notify_all();
    }

    // --- All below with the mutex held -------------------------------------------------------------------------------

    std::vector<local_call>& posted() { return calls_[num_sealed_ % 2]; }

    // Returns whether all ranks have arrived.
    bool post(int rank, const local_call& call) {
        posted()[static_cast<std::size_t>(rank)] = call;
        at(rank).arrived = true;
        ++num_arrived_;
        if (num_left_ > 0) record(left_ranks());
        return num_arrived_ == size();
    }

    // By the last rank to arrive. What may throw comes before what changes the round.
    void seal(local_reading reading) {
        const std::vector<local_call>& calls = posted();
        if (local_failure failure = find_mismatch(calls, checks_); !failure.code.empty()) {
            record(std::move(failure));
            return;
        }
        if (calls.front().operation == local_operation::split) make_groups(calls);
        const int change = reading == local_reading::begins ? 1 : (reading == local_reading::ends ? -1 : 0);
        for (rank_state& state : ranks_) {
            state.arrived = false;
            state.num_readings += change;
        }
        num_readings_ += change * size();
        num_arrived_ = 0;
        const std::size_t bytes = kind_.copies ? copied_bytes(calls) : 0;
        if (bytes > small_round_bytes) {
            num_copying_ = size();
        } else {
            for (std::size_t rank = 0; rank < ranks_.size() && bytes > 0; ++rank) copy_to(calls, rank);
            ++num_completed_;
        }
        ++num_sealed_;
    }

    // Groups of the ranks of each color >= 0, ordered by (key, rank).
    [[gnu::cold]] void make_groups(std::span<const local_call> calls) {
        std::vector<std::tuple<int, int, int>> members; // color, key, rank
        for (int rank = 0; rank < size(); ++rank) {
            const local_call& call = calls[static_cast<std::size_t>(rank)];
            if (call.color >= 0) members.emplace_back(call.color, call.key, rank);
        }
        std::sort(members.begin(), members.end());
        for (std::size_t first = 0, last = 0; first < members.size(); first = last) {
            while (last < members.size() && std::get<0>(members[last]) == std::get<0>(members[first])) ++last;
            const auto group =
                std::make_shared<local_meeting>(static_cast<int>(last - first), timeout_, checks_, kind_);
            for (std::size_t i = first; i < last; ++i) {
                const int new_rank = static_cast<int>(i - first);
                group->at(new_rank).taken = true;
                at(std::get<2>(members[i])).child = {group, new_rank};
            }
        }
    }

    void leave_locked(int rank) {
        rank_state& self = at(rank);
        const bool awaited = num_arrived_ > 0 || self.num_readings > 0;
        self.left = true;
        ++num_left_;
        end_readings(self);
        if (awaited) record(left_ranks());
    }

    // Returns whether there were any. Ranks that throw may wait for the last one to end.
    bool end_readings(rank_state& self) {
        if (self.num_readings == 0) return false;
        num_readings_ -= std::exchange(self.num_readings, 0);
        if (num_readings_ == 0 && failed()) changed_.notify_all();
        return true;
    }

    // The first failure is the one that counts.
    void record(local_failure failure) {
        if (failed()) return;
        failure_ = std::move(failure);
        failed_.store(true, std::memory_order_release);
        changed_.notify_all();
    }

    [[gnu::cold]] std::string arrived_text() const {
        return calls_text(calls_[num_sealed_ % 2], ranks_that([](const rank_state& state) { return state.arrived; }),
                          false);
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
        if (end_readings(self)) changed_.wait_until(lock, start + timeout_, [&] { return num_readings_ == 0; });
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

    const local_meeting_kind kind_;
    const std::chrono::milliseconds timeout_;
    const check_level checks_;

    std::mutex mutex_;
    std::condition_variable changed_; // a round was sealed or completed, the world died, or its last reader ended
    std::array<std::vector<local_call>, 2> calls_; // of even and odd rounds; read without the mutex once sealed
    std::vector<rank_state> ranks_;
    const bool has_cores_ = ranks_.size() <= std::thread::hardware_concurrency();
    int num_arrived_ = 0;
    int num_copying_ = 0;
    int num_readings_ = 0; // of all ranks
    int num_left_ = 0;
    std::atomic<std::uint64_t> num_sealed_ = 0;
    std::atomic<std::uint64_t> num_completed_ = 0;
    local_failure failure_; // constant once failed_
    std::atomic<bool> failed_ = false;
};

} // namespace detail
} // namespace ctxpar::inline v0_1
