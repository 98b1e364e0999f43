// The messages of one MPI rank to and from each peer: a record of every call, and payload that is too large for one.
//
// A message that was started can not be taken back. So MPI reads and writes buffers that are kept here only, and where
// a rank fails, those with messages under way are kept until the process ends. The receive of a peer's next record is
// always posted: a peer that fails tells so with a record, also in the middle of a call.
//
// Nothing here waits, and errors of MPI are returned.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifndef OMPI_SKIP_MPICXX // nothing of MPI's former C++ interface is used
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local_call.hpp>

namespace ctxpar::inline v0_1 {
namespace detail {

using mpi_clock = std::chrono::steady_clock;

inline std::string mpi_error_text(int code) {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
    return std::string(text, static_cast<std::size_t>(length));
}

// Between MPI_Init and MPI_Finalize, which are the caller's.
inline bool mpi_is_running() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

// Memory of messages that may never end lives as long as the process; reachable, so that it is no leak.
template <class T>
void keep_until_exit(std::unique_ptr<T> memory) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<std::unique_ptr<T>>;
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(memory));
}

// A duplicate of the caller's communicator, on which nobody else sends. Freed at the end, unless messages may be under
// way.
class mpi_duplicate {
public:
    mpi_duplicate() = default;
    mpi_duplicate(const mpi_duplicate&) = delete;
    mpi_duplicate& operator=(const mpi_duplicate&) = delete;
    ~mpi_duplicate() {
        if (handle != MPI_COMM_NULL && !is_abandoned && mpi_is_running()) MPI_Comm_free(&handle);
    }

    MPI_Comm handle = MPI_COMM_NULL;
    bool is_abandoned = false;
    int next_tag = 0;     // the first that no group has used; each uses two
    int last_tag = 32767; // what MPI promises at least
};

// What one rank sends to a peer first. A payload of up to payload_bytes travels in it.
struct mpi_record {
    static constexpr std::size_t total_bytes = 3584; // below the size from which shared memory transports negotiate
    static constexpr std::size_t head_bytes = 128;
    static constexpr std::size_t payload_bytes = total_bytes - head_bytes;

    std::uint64_t number = 0;        // of the call, from 0
    std::uint64_t bytes = 0;         // local_call::bytes
    std::uint64_t sent = 0;          // payload for the rank that gets this
    std::uint64_t expected = 0;      // payload from the rank that gets this
    std::uint64_t digest = 0;        // of the note
    std::uint64_t message_bytes = 0; // mpi_options::message_bytes
    std::int32_t color = 0;
    std::int32_t key = 0;
    std::int32_t next_tag = 0;
    local_operation operation = local_operation::wait;
    scalar_type type = scalar_type::bytes;
    check_level checks = check_level::off;
    bool is_failure = false;   // the payload is its text
    bool is_receiving = false; // with is_failure: it may still read what the rank that gets this has sent
    char what[63] = {};        // of the note, ends with a zero
    std::byte payload[payload_bytes];
};
static_assert(sizeof(mpi_record) == mpi_record::total_bytes);

class mpi_mail {
public:
    // `members` are the ranks of the duplicate that take part, in order; this is members[rank].
    mpi_mail(std::shared_ptr<mpi_duplicate> comm, std::vector<int> members, int rank, int tag,
             std::size_t message_bytes)
        : comm_(std::move(comm)), members_(std::move(members)), rank_(rank), tag_(tag), message_bytes_(message_bytes),
          memory_(std::make_unique<buffers>()), peers_(members_.size()) {
        memory_->outgoing.resize(peers_.size());
        memory_->incoming.resize(2 * peers_.size());
        memory_->requests.assign(peers_.size(), MPI_REQUEST_NULL);
        for (int peer = 0; peer < size(); ++peer) post_record(peer);
    }
    mpi_mail(const mpi_mail&) = delete;
    mpi_mail& operator=(const mpi_mail&) = delete;

    // Waits 10 ms at most, for what can not be withdrawn at once.
    ~mpi_mail() {
        if (mpi_is_running() && !comm_->is_abandoned && withdraw()) return;
        comm_->is_abandoned = true;
        keep_until_exit(std::move(memory_));
    }

    int rank() const { return rank_; }
    int size() const { return static_cast<int>(members_.size()); }
    int member(int peer) const { return members_[at(peer)]; }
    const std::shared_ptr<mpi_duplicate>& duplicate() const { return comm_; }

    // The first error of the calls of MPI since begin().
    int error() const { return error_; }

    // --- One call ----------------------------------------------------------------------------------------------------

    // Room for the payload that a call sends and receives in messages of their own.
    void begin(std::size_t sent, std::size_t received) {
        memory_->requests.resize(peers_.size());
        messages_.clear();
        if (memory_->sent.size() < sent) memory_->sent.resize(sent);
        if (memory_->received.size() < received) memory_->received.resize(received);
    }
    std::byte* sent() { return memory_->sent.data(); }
    std::byte* received() { return memory_->received.data(); }
    mpi_record& outgoing(int peer) { return memory_->outgoing[at(peer)]; }

    void send_record(int peer, std::size_t payload_bytes) {
        start(message_kind::send, peer, &outgoing(peer), mpi_record::head_bytes + payload_bytes, tag_);
    }
    void send_payload(int peer, std::byte* from, std::size_t bytes) {
        start_all(message_kind::send, peer, from, bytes);
    }
    void receive_payload(int peer, std::byte* to, std::size_t bytes) {
        start_all(message_kind::receive, peer, to, bytes);
    }

    // Takes note of the messages that have ended.
    void look() {
        std::vector<MPI_Request>& requests = memory_->requests;
        ended_.resize(requests.size());
        statuses_.resize(requests.size());
        int count = 0;
        const int result =
            MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count, ended_.data(), statuses_.data());
        if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) return keep(result);
        for (int i = 0; i < count && count != MPI_UNDEFINED; ++i) {
            if (result == MPI_ERR_IN_STATUS) keep(statuses_[at(i)].MPI_ERROR);
            end(ended_[at(i)]);
        }
    }

    // The peer's record of this call; where it has not come, null.
    const mpi_record* record_of(int peer) { return peers_[at(peer)].queued == 0 ? nullptr : &incoming(peer, 0); }

    // Whether this call's messages to and from the peer have ended.
    bool is_done(int peer) const {
        const peer_state& state = peers_[at(peer)];
        return peer == rank_ || (state.queued > 0 && state.sends_left == 0 && state.receives_left == 0);
    }

    // What a peer has told of its failure. Where it did so after this call, it is done with this call.
    const mpi_record* failure_of(int peer) {
        for (int i = 0; i < peers_[at(peer)].queued; ++i)
            if (incoming(peer, i).is_failure) return &incoming(peer, i);
        return nullptr;
    }

    // The records of this call are no longer read.
    void finish() {
        for (int peer = 0; peer < size(); ++peer) {
            if (peer == rank_) continue;
            peer_state& state = peers_[at(peer)];
            const bool was_full = state.queued == 2;
            state.first ^= 1;
            --state.queued;
            if (was_full) post_record(peer);
        }
    }

    // Tells every peer that this rank makes no more calls, and why. Once; does not wait until they know.
    [[gnu::cold]] void tell(const std::string& reason) {
        comm_->is_abandoned = true;
        mpi_record& record = memory_->last_words;
        record.is_failure = true;
        record.is_receiving =
            std::any_of(peers_.begin(), peers_.end(), [](const peer_state& state) { return state.receives_left > 0; });
        record.sent = std::min(reason.size(), mpi_record::payload_bytes);
        std::memcpy(record.payload, reason.data(), record.sent);
        memory_->last_requests.assign(peers_.size(), MPI_REQUEST_NULL);
        for (int peer = 0; peer < size(); ++peer)
            if (peer != rank_)
                MPI_Isend(&record, static_cast<int>(mpi_record::head_bytes + record.sent), MPI_BYTE, member(peer), tag_,
                          comm_->handle, &memory_->last_requests[at(peer)]);
        int all = 0;
        for (int i = 0; i < 100 && all == 0; ++i)
            MPI_Testall(size(), memory_->last_requests.data(), &all, MPI_STATUSES_IGNORE);
    }

    // After tell(): waits for the messages of this call that peers may still read or write, at most so long. Where MPI
    // copies between processes, one that ended before would take its peers with it.
    [[gnu::cold]] void settle(mpi_clock::duration limit) {
        const mpi_clock::time_point start = mpi_clock::now();
        while (is_any_under_way() && mpi_clock::now() - start < limit) {
            std::this_thread::yield();
            look();
        }
    }

private:
    // All that MPI reads and writes.
    struct buffers {
        std::vector<mpi_record> outgoing; // [peer]
        std::vector<mpi_record> incoming; // [peer][2]: of this call and of the next
        std::vector<std::byte> sent;
        std::vector<std::byte> received;
        std::vector<MPI_Request> requests; // [peer] of records, then those of this call
        mpi_record last_words;
        std::vector<MPI_Request> last_requests;
    };
    struct peer_state {
        int queued = 0;     // records that are here: of this call, and perhaps of the next
        int first = 0;      // which of the two places has the older
        int sends_left = 0; // messages of this call
        int receives_left = 0;
    };
    enum class message_kind : std::uint8_t { send, receive };
    struct message {
        int peer = 0;
        message_kind kind = message_kind::send;
    };

    static std::size_t at(int i) { return static_cast<std::size_t>(i); }
    mpi_record& incoming(int peer, int i) { return memory_->incoming[at(2 * peer + (peers_[at(peer)].first + i) % 2)]; }

    int& left(const message& which) {
        peer_state& state = peers_[at(which.peer)];
        return which.kind == message_kind::send ? state.sends_left : state.receives_left;
    }

    // Whether a peer may be about to read what this rank has sent, or the other way round.
    bool is_any_under_way() {
        for (int peer = 0; peer < size(); ++peer) {
            const peer_state& state = peers_[at(peer)];
            const mpi_record* const told = failure_of(peer);
            const bool is_read = told == nullptr || told->is_receiving;
            if (state.receives_left > 0 || (state.sends_left > 0 && is_read)) return true;
        }
        return false;
    }

    void keep(int result) {
        if (error_ == MPI_SUCCESS) error_ = result;
    }

    void post_record(int peer) {
        if (peer == rank_) return;
        keep(MPI_Irecv(&incoming(peer, peers_[at(peer)].queued), static_cast<int>(mpi_record::total_bytes), MPI_BYTE,
                       member(peer), tag_, comm_->handle, &memory_->requests[at(peer)]));
    }

    // In as many messages as it takes.
    void start_all(message_kind kind, int peer, std::byte* data, std::size_t bytes) {
        for (std::size_t from = 0; from < bytes; from += message_bytes_)
            start(kind, peer, data + from, std::min(message_bytes_, bytes - from), tag_ + 1);
    }
    void start(message_kind kind, int peer, void* data, std::size_t bytes, int tag) {
        MPI_Request& request = memory_->requests.emplace_back(MPI_REQUEST_NULL);
        const int count = static_cast<int>(bytes);
        keep(kind == message_kind::send ? MPI_Isend(data, count, MPI_BYTE, member(peer), tag, comm_->handle, &request)
                                        : MPI_Irecv(data, count, MPI_BYTE, member(peer), tag, comm_->handle, &request));
        messages_.push_back({peer, kind});
        ++left(messages_.back());
    }
    void end(int request) {
        if (request >= size()) {
            --left(messages_[at(request - size())]);
        } else if (++peers_[at(request)].queued < 2) {
            post_record(request);
        }
    }

    // Takes back the receives of records that no peer will send; false where one is under way and does not end.
    bool withdraw() {
        std::vector<MPI_Request>& requests = memory_->requests;
        for (MPI_Request& request : requests)
            if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
        const mpi_clock::time_point start = mpi_clock::now();
        int all = 0;
        while (true) {
            MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
            if (all != 0 || mpi_clock::now() - start > std::chrono::milliseconds(10)) return all != 0;
            std::this_thread::yield();
        }
    }

    std::shared_ptr<mpi_duplicate> comm_;
    std::vector<int> members_;
    int rank_;
    int tag_; // of records; payload has the next
    std::size_t message_bytes_;
    std::unique_ptr<buffers> memory_;
    std::vector<peer_state> peers_;
    std::vector<message> messages_; // [request of this call]
    std::vector<int> ended_;
    std::vector<MPI_Status> statuses_;
    int error_ = MPI_SUCCESS;
};

} // namespace detail
} // namespace ctxpar::inline v0_1
