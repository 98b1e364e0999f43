// How MPI ranks meet: every rank sends every peer a record of its call, then the payload, and waits for theirs.
//
// A record says what its sender calls: operation, bytes, element type, digest, and how often it has called before. So
// calls that do not fit together are found and named on every rank by a message that had to be sent anyway; a small
// payload travels in the record itself. Messages go from each rank to each other, whatever the operation: that moves
// the bytes a gather must move, and the wait knows whom it waits for, which MPI's own collectives do not tell.
//
// The caller's receive buffer is written when everything is here.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local_call.hpp>
#include <ctxpar/comm/mpi_mail.hpp>

namespace ctxpar::inline v0_1 {

struct mpi_options {
    std::chrono::milliseconds timeout{30'000};          // longest wait of one call for other ranks, at least 1 ms
    check_level checks = check_level::basic;            // one level for all ranks
    std::size_t message_bytes = std::size_t(256) << 20; // of the largest message, 1 .. 2^31 - 1, same on all ranks
};

namespace detail {

// What a call exchanges with one peer.
struct mpi_part {
    const void* send = nullptr;
    std::size_t send_bytes = 0;
    void* recv = nullptr;
    std::size_t recv_bytes = 0;
};

// Between two looks at messages: ranks may outnumber cores, and some waits are long.
inline void pause_after(mpi_clock::duration waited) {
    if (waited < std::chrono::milliseconds(2)) return std::this_thread::yield();
    std::this_thread::sleep_for(waited < std::chrono::milliseconds(50) ? std::chrono::microseconds(50)
                                                                       : std::chrono::microseconds(500));
}

class mpi_link {
public:
    // `members` are the ranks of the duplicate that take part, in order; this is members[rank].
    mpi_link(std::shared_ptr<mpi_duplicate> comm, std::vector<int> members, int rank, int tag,
             const mpi_options& options)
        : options_(options), mail_(std::move(comm), std::move(members), rank, tag, options.message_bytes),
          calls_(static_cast<std::size_t>(mail_.size())), payload_at_(calls_.size()),
          sizes_(2 * calls_.size() * calls_.size()) {}

    int rank() const { return mail_.rank(); }
    int size() const { return mail_.size(); }
    int member(int peer) const { return mail_.member(peer); }
    const mpi_options& options() const { return options_; }
    const std::shared_ptr<mpi_duplicate>& duplicate() const { return mail_.duplicate(); }
    bool failed() const { return !failure_.code.empty(); }

    // This rank's call and its peers': exchanges part_of(peer) with each, its own part included, and returns the calls
    // of all, in rank order, to be read until the next. Throws comm_error, after which all but check() throw "dead".
    template <class PartOf>
    std::span<const local_call> exchange(const local_call& call, const PartOf& part_of) {
        require_alive(call);
        start_ = mpi_clock::now();
        calls_[at(rank())] = call;
        if (call.operation == local_operation::all_to_all_spans) note_own_sizes(part_of);
        start_messages(call, part_of);
        wait_for_all(call, part_of);
        for (int peer = 0; peer < size(); ++peer) take_payload(peer, part_of(peer));
        mail_.finish();
        ++number_;
        return calls_;
    }

    // The first tag that is free on every rank, as they said in the last call.
    int free_tag() const { return free_tag_; }

    // Throws a known failure; sees whether a peer has told one, and never blocks.
    void check() {
        if (failed()) raise_error(failure_.code, "check", failure_.text);
        start_ = mpi_clock::now();
        mail_.look();
        for (int peer = 0; peer < size(); ++peer)
            if (const mpi_record* told = mail_.failure_of(peer)) fail_with(told_by(peer, *told), {});
    }

    void require_alive(const local_call& call) const {
        if (!failed()) return;
        raise_error("dead", operation_text(call),
                    sentence("the communicator is dead since the failure \"", failure_.code, "\": ", failure_.text));
    }

    // Tells the peers why this rank makes no more calls. Nothing where it has failed before.
    void fail(const std::string& reason) {
        if (failed() || !mpi_is_running()) return;
        failure_ = {"peer_error", sentence("rank ", rank(), " failed: ", reason), "no failure of a rank", reason,
                    rank()};
        mail_.tell(reason);
    }

private:
    static std::size_t at(int i) { return static_cast<std::size_t>(i); }
    static bool fits_record(std::size_t bytes) { return bytes <= mpi_record::payload_bytes; }
    static bool is_same_for_all(const local_call& call) { return call.operation == local_operation::all_gather; }

    // --- Sending -----------------------------------------------------------------------------------------------------

    // What a rank sends to each, and expects from each. This rank knows its own row and its column of each other row;
    // the rest is zeros on both sides, which agree.
    std::size_t* sizes_of(int rank) { return sizes_.data() + 2 * at(rank) * calls_.size(); }
    template <class PartOf>
    void note_own_sizes(const PartOf& part_of) {
        std::size_t* const sends = sizes_of(rank());
        std::size_t* const expects = sends + size();
        for (int peer = 0; peer < size(); ++peer) {
            sends[peer] = part_of(peer).send_bytes;
            expects[peer] = part_of(peer).recv_bytes;
        }
        calls_[at(rank())].send_bytes = sends;
        calls_[at(rank())].recv_bytes = expects;
    }

    template <class PartOf>
    void start_messages(const local_call& call, const PartOf& part_of) {
        std::size_t sent = 0, received = 0;
        for (int peer = 0; peer < size(); ++peer) {
            if (peer == rank()) continue;
            const mpi_part part = part_of(peer);
            payload_at_[at(peer)] = received;
            if (!fits_record(part.recv_bytes)) received += part.recv_bytes;
            if (!fits_record(part.send_bytes)) sent = part.send_bytes + (is_same_for_all(call) ? 0 : sent);
        }
        mail_.begin(sent, received);
        awaits_payload_.assign(calls_.size(), 0);
        for (int peer = 0; peer < size(); ++peer)
            if (peer != rank() && !fits_record(part_of(peer).recv_bytes)) awaits_payload_[at(peer)] = 1;
        std::byte* copy = mail_.sent();
        for (int step = 1; step < size(); ++step) { // each rank begins with another peer
            const int peer = (rank() + step) % size();
            const mpi_part part = part_of(peer);
            write_record(peer, call, part);
            if (fits_record(part.send_bytes)) {
                copy_part(mail_.outgoing(peer).payload, static_cast<const std::byte*>(part.send), part.send_bytes);
                mail_.send_record(peer, part.send_bytes);
                continue;
            }
            mail_.send_record(peer, 0);
            if (step == 1 || !is_same_for_all(call)) std::memcpy(copy, part.send, part.send_bytes);
            mail_.send_payload(peer, copy, part.send_bytes);
            if (!is_same_for_all(call)) copy += part.send_bytes;
        }
    }

    void write_record(int peer, const local_call& call, const mpi_part& part) {
        mpi_record& record = mail_.outgoing(peer);
        record.number = number_;
        record.bytes = call.bytes;
        record.sent = part.send_bytes;
        record.expected = part.recv_bytes;
        record.digest = call.note.digest;
        record.message_bytes = options_.message_bytes;
        record.color = call.color;
        record.key = call.key;
        record.next_tag = duplicate()->next_tag;
        record.operation = call.operation;
        record.type = call.note.type;
        record.checks = options_.checks;
        std::strncpy(record.what, call.note.what == nullptr ? "data" : call.note.what, sizeof record.what - 1);
    }

    // --- Waiting -----------------------------------------------------------------------------------------------------

    template <class PartOf>
    void wait_for_all(const local_call& call, const PartOf& part_of) {
        bool is_compared = false;
        while (true) {
            mail_.look();
            fail_if_told(call, [this](int peer, const mpi_record& told) { return &told == mail_.record_of(peer); });
            if (!is_compared && missing_ranks().empty()) {
                compare(call);
                is_compared = true;
                mail_.look(); // a peer may have failed since it called
            }
            const bool may_differ = !is_compared && mpi_clock::now() - start_ < patience();
            fail_if_told(call, [&](int peer, const mpi_record&) { return !may_differ && !is_done(peer); });
            if (is_compared) receive_payloads(part_of);
            if (mail_.error() != MPI_SUCCESS) fail_with(error_of_mpi(), call);
            if (is_compared && unfinished_ranks().empty()) return;
            const auto waited = mpi_clock::now() - start_;
            if (waited >= options_.timeout) fail_with(late_ranks(), call);
            pause_after(waited);
        }
    }

    // Payload moves between ranks whose calls are known to fit, and which have not failed. Some transports write what
    // is longer than expected past the end of the buffer; and some end this process where a peer that is gone was read
    // from.
    template <class PartOf>
    void receive_payloads(const PartOf& part_of) {
        for (int peer = 0; peer < size(); ++peer) {
            if (awaits_payload_[at(peer)] == 0) continue;
            const mpi_record* const record = mail_.record_of(peer);
            const std::size_t bytes = part_of(peer).recv_bytes;
            if (record == nullptr || record->is_failure || record->sent != bytes ||
                record->message_bytes != options_.message_bytes)
                continue;
            mail_.receive_payload(peer, mail_.received() + payload_at_[at(peer)], bytes);
            awaits_payload_[at(peer)] = 0;
        }
    }

    // Where a peer has told of its failure, and that is in the way of this call. What peers tell of a mismatch that
    // this rank sees as well comes after it has compared.
    template <class Predicate>
    void fail_if_told(const local_call& call, Predicate matters) {
        for (int peer = 0; peer < size(); ++peer)
            if (const mpi_record* told = mail_.failure_of(peer); told != nullptr && matters(peer, *told))
                fail_with(told_by(peer, *told), call);
    }

    // A peer that has called and then failed may have seen that calls differ, which the others, once they are here,
    // show this rank as well: it gives them a moment from the start of its call.
    mpi_clock::duration patience() const {
        return std::min<mpi_clock::duration>(options_.timeout, std::chrono::seconds(1));
    }

    bool is_done(int peer) const { return awaits_payload_[at(peer)] == 0 && mail_.is_done(peer); }

    template <class Predicate>
    std::span<const int> ranks_that(Predicate holds) {
        found_.clear();
        for (int peer = 0; peer < size(); ++peer)
            if (holds(peer)) found_.push_back(peer);
        return found_;
    }
    std::span<const int> missing_ranks() {
        return ranks_that([this](int peer) { return peer != rank() && mail_.record_of(peer) == nullptr; });
    }
    std::span<const int> unfinished_ranks() {
        return ranks_that([this](int peer) { return !is_done(peer); });
    }

    // Once the records of all ranks are here.
    void compare(const local_call& call) {
        free_tag_ = duplicate()->next_tag;
        for (int peer = 0; peer < size(); ++peer) {
            if (peer == rank()) continue;
            const mpi_record& record = read_record(peer);
            free_tag_ = std::max(free_tag_, int{record.next_tag});
            compare_settings(peer, record, call);
        }
        local_failure failure = find_mismatch(calls_, options_.checks);
        if (!failure.code.empty()) fail_with(std::move(failure), call);
    }
    const mpi_record& read_record(int peer) {
        const mpi_record& record = *mail_.record_of(peer);
        local_call& call = calls_[at(peer)];
        call = local_call{record.operation, nullptr, nullptr, record.bytes};
        call.color = record.color;
        call.key = record.key;
        call.note = {record.what, record.type, record.digest};
        call.send_bytes = sizes_of(peer);
        call.recv_bytes = sizes_of(peer) + size();
        sizes_of(peer)[rank()] = record.sent;
        sizes_of(peer)[size() + rank()] = record.expected;
        return record;
    }
    void compare_settings(int peer, const mpi_record& record, const local_call& call) {
        const auto require_same = [&](const char* what, std::uint64_t theirs, std::uint64_t own) {
            if (theirs == own) return;
            fail_with({"mismatch", sentence(what, " is ", theirs, " on rank ", peer, " and ", own, " on rank ", rank()),
                       sentence(what, " ", own), sentence(what, " ", theirs), peer},
                      call);
        };
        require_same("the check level", static_cast<std::uint64_t>(record.checks),
                     static_cast<std::uint64_t>(options_.checks));
        require_same("mpi_options::message_bytes", record.message_bytes, options_.message_bytes);
        require_same("the number of calls so far", record.number, number_);
    }

    void take_payload(int peer, const mpi_part& part) {
        const std::byte* from = static_cast<const std::byte*>(part.send);
        if (peer != rank())
            from = fits_record(part.recv_bytes) ? mail_.record_of(peer)->payload
                                                : mail_.received() + payload_at_[at(peer)];
        copy_part(static_cast<std::byte*>(part.recv), from, part.recv_bytes);
    }

    // --- Failing -----------------------------------------------------------------------------------------------------

    [[gnu::cold]] local_failure told_by(int peer, const mpi_record& record) const {
        const std::string reason(reinterpret_cast<const char*>(record.payload),
                                 std::min<std::size_t>(record.sent, mpi_record::payload_bytes));
        return {"peer_error", sentence("rank ", peer, " failed: ", reason), "no failure of a rank", reason, peer};
    }

    [[gnu::cold]] local_failure error_of_mpi() const {
        const std::string text = mpi_error_text(mail_.error());
        return {"mpi", text, "success of MPI", text, -1};
    }

    // Names who did not come, and who came but whose data is still under way.
    [[gnu::cold]] local_failure late_ranks() {
        const auto copy = [](std::span<const int> ranks) { return std::vector<int>(ranks.begin(), ranks.end()); };
        const std::vector<int> missing = copy(missing_ranks());
        const std::vector<int> behind =
            copy(ranks_that([this](int peer) { return !is_done(peer) && mail_.record_of(peer) != nullptr; }));
        std::string what, names;
        if (!missing.empty()) {
            names = ranks_text(missing);
            what = names + " had not arrived" + (behind.empty() ? "" : " and ");
        }
        if (!behind.empty()) what += ranks_text(behind) + " had arrived, but not exchanged all data,";
        if (names.empty()) names = ranks_text(behind);
        const int first = !missing.empty() ? missing.front() : behind.empty() ? -1 : behind.front();
        const std::span<const int> here =
            ranks_that([this](int peer) { return peer == rank() || mail_.record_of(peer) != nullptr; });
        for (const int peer : here)
            if (peer != rank()) read_record(peer);
        return {"timeout",
                sentence(what, " when rank ", rank(), " had waited ", waited_milliseconds(), " ms; ",
                         calls_text(calls_, {here.begin(), here.end()}, false)),
                names + " to arrive", "nothing", first};
    }
    std::int64_t waited_milliseconds() const {
        return std::chrono::duration_cast<std::chrono::milliseconds>(mpi_clock::now() - start_).count();
    }

    [[noreturn, gnu::cold]] void fail_with(local_failure failure, const local_call& call) {
        failure_ = std::move(failure);
        mail_.tell(failure_.text);
        mail_.settle(std::min<mpi_clock::duration>(options_.timeout, std::chrono::seconds(1)));
        raise_error(failure_.code, operation_text(call), failure_.text);
    }
    [[noreturn, gnu::cold]] void raise_error(const std::string& code, const std::string& operation,
                                             const std::string& text) const {
        raise(
            comm_error({code, rank(), failure_.peer, operation, failure_.expected, failure_.got, waited_milliseconds()},
                       sentence("rank ", rank(), " in ", operation, ": ", text)));
    }

    mpi_options options_;
    mpi_mail mail_;
    std::vector<local_call> calls_;       // [rank] of this round
    std::vector<std::size_t> payload_at_; // [rank] in mail_.received()
    std::vector<std::size_t> sizes_;      // [rank][sends, expects][peer]
    std::vector<char> awaits_payload_;    // [rank]: it has not said yet that it sends what is expected
    std::vector<int> found_;
    mpi_clock::time_point start_; // of this call
    std::uint64_t number_ = 0;    // of calls so far
    int free_tag_ = 0;
    local_failure failure_; // without a code: alive
};

} // namespace detail
} // namespace ctxpar::inline v0_1
