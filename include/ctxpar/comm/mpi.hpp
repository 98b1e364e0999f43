// Ranks that are MPI processes, on one host or many: a communicator around the MPI_Comm that the caller has.
//
//   MPI_Init_thread(...);                                                   // the caller's, as is MPI_Finalize
//   ctxpar::mpi_communicator comm(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(10)}); // on all ranks of it
//
// Every call waits for its peers at most mpi_options::timeout, and then throws comm_error with the ranks that did not
// come and the call they did not make. A rank that fails tells its peers, which throw at once. Where data was under way
// it waits up to a second more before it throws: MPIs that copy between processes would end a peer that still reads
// from one that is gone. How ranks meet is described in comm/mpi_link.hpp.
//
// After an error messages may be under way that nobody will end, to and from buffers that are kept until the process
// ends. MPI_Finalize may then wait for ever, and so must not be called: the process ends with MPI_Abort, which ends its
// peers too, or with std::_Exit. MPI offers no way to go on without a rank.
//
// Works with any MPI of version 3 or later. Payload is in host memory and is copied into buffers of the communicator
// and out of them; they grow with the largest call, and stay.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local_call.hpp>
#include <ctxpar/comm/mpi_link.hpp>
#include <ctxpar/core/stream.hpp>

namespace ctxpar::inline v0_1 {
namespace detail {

// How a duplicate of the caller's communicator is made, and who has not come to make it, which MPI does not tell. Every
// rank first scatters a byte to all: one that is here shows that its sender has come. Where a root sends to each rank
// itself, as Open MPI and MPICH have it when only the root knows the sizes, one that is not here shows that its sender
// has not. Being collectives, they are never taken for messages of the caller.
//
// MPI reads and writes this object until look() has said that all is done.
class mpi_arrival {
public:
    mpi_arrival(MPI_Comm comm, int rank, int size)
        : rank_(rank), ones_(static_cast<std::size_t>(size), 1), places_(ones_.size()), sent_(ones_.size()),
          received_(ones_.size()), requests_(ones_.size() + 1, MPI_REQUEST_NULL) {
        std::iota(places_.begin(), places_.end(), 0);
        for (int root = 0; root < size; ++root)
            keep(MPI_Iscatterv(sent_.data(), ones_.data(), places_.data(), MPI_CHAR,
                               &received_[static_cast<std::size_t>(root)], 1, MPI_CHAR, root, comm,
                               &requests_[static_cast<std::size_t>(root)]));
        if (error_ == MPI_SUCCESS) keep(MPI_Comm_idup(comm, &duplicate_, &requests_.back()));
    }
    mpi_arrival(const mpi_arrival&) = delete;
    mpi_arrival& operator=(const mpi_arrival&) = delete;

    // Whether all ranks have come and the duplicate is made. Does not wait.
    bool look() {
        int are_done = 1;
        for (MPI_Request& each : requests_) {
            int is_done = 0;
            keep(MPI_Test(&each, &is_done, MPI_STATUS_IGNORE)); // a request that is done becomes MPI_REQUEST_NULL
            are_done &= is_done;
        }
        return are_done != 0;
    }

    // The first error of MPI.
    int error() const { return error_; }

    // Once all is done.
    MPI_Comm duplicate() const { return duplicate_; }

    // Says who has not come so far.
    [[gnu::cold]] local_failure lateness(std::int64_t waited_milliseconds) const {
        std::vector<int> missing;
        for (int peer = 0; peer + 1 < static_cast<int>(requests_.size()); ++peer)
            if (peer != rank_ && requests_[static_cast<std::size_t>(peer)] != MPI_REQUEST_NULL) missing.push_back(peer);
        const std::string when = sentence(" when rank ", rank_, " had waited ", waited_milliseconds, " ms");
        if (missing.empty())
            return {"timeout", "all ranks had arrived, but the duplicate of the MPI_Comm was not made" + when,
                    "a duplicate of the MPI_Comm", "none", -1};
        return {"timeout", sentence(ranks_text(missing), " had not arrived", when, " to make a communicator"),
                ranks_text(missing) + " to arrive", "nothing", missing.front()};
    }

private:
    void keep(int result) {
        if (error_ == MPI_SUCCESS) error_ = result;
    }

    int rank_;
    std::vector<int> ones_;   // [rank] sizes of what a root sends
    std::vector<int> places_; // [rank] where it lies
    std::vector<char> sent_, received_;
    std::vector<MPI_Request> requests_; // [root], then that of the duplicate
    MPI_Comm duplicate_ = MPI_COMM_NULL;
    int error_ = MPI_SUCCESS;
};

// Duplicates the caller's communicator, with a bounded wait.
[[nodiscard]] inline std::shared_ptr<mpi_duplicate> duplicate_of(MPI_Comm comm, int rank, int size,
                                                                 std::chrono::milliseconds timeout) {
    const mpi_clock::time_point start = mpi_clock::now();
    const auto fail = [&](const local_failure& what, std::int64_t waited) {
        raise(comm_error({what.code, rank, what.peer, "mpi_communicator", what.expected, what.got, waited},
                         sentence("rank ", rank, " in mpi_communicator: ", what.text)));
    };
    auto arrival = std::make_unique<mpi_arrival>(comm, rank, size);
    for (bool is_done = false; !is_done && arrival->error() == MPI_SUCCESS;) {
        is_done = arrival->look();
        const auto waited = mpi_clock::now() - start;
        if (!is_done && waited >= timeout) {
            const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
            const local_failure failure = arrival->lateness(milliseconds);
            keep_until_exit(std::move(arrival));
            fail(failure, milliseconds);
        }
        if (!is_done) pause_after(waited);
    }
    if (arrival->error() != MPI_SUCCESS) {
        const std::string text = mpi_error_text(arrival->error());
        keep_until_exit(std::move(arrival));
        fail({"mpi", text, "success of MPI", text, -1}, 0);
    }
    auto made = std::make_shared<mpi_duplicate>();
    made->handle = arrival->duplicate();
    MPI_Comm_set_errhandler(made->handle, MPI_ERRORS_RETURN);
    int is_set = 0;
    int* last_tag = nullptr;
    MPI_Comm_get_attr(made->handle, MPI_TAG_UB, &last_tag, &is_set);
    if (is_set != 0) made->last_tag = *last_tag;
    return made;
}

} // namespace detail

// One rank's end. Models communicator. One thread at a time uses it; where several threads of a process use
// communicators, also different ones, MPI must have been initialized with MPI_THREAD_MULTIPLE. It may be moved.
//
// Every call is made by all ranks of the group, in one order, and blocks until all are there. On return the receive
// buffer is filled and the send buffer may be reused. Destroying a communicator is no collective; where that happens
// because an exception is under way, its peers are told, and throw.
//
// Throws, after which the receive buffer is as it was
//   config_error  "null", "aliasing", "sizes", "moved": this rank's own arguments, before its peers see it; the group
//                 stays usable, but peers that wait for this rank go on waiting for the call
//   comm_error    "mismatch" or "digest", listing what each rank called; "peer_error" with what a peer told; "timeout"
//                 with the ranks that did not come; "mpi" for errors of MPI. Each is thrown once, "dead" from then on.
//                 A mismatch between the sizes of two ranks is found by these two, and told to the others.
class mpi_communicator {
public:
    using stream_type = host_stream;

    // Made by all ranks of `comm`, which stays the caller's and is only duplicated here. config_error "mpi" where MPI
    // does not run, "null", "intercommunicator", "timeout" for less than 1 ms, "message_bytes"; comm_error "timeout",
    // which names the ranks that did not come.
    explicit mpi_communicator(MPI_Comm comm, const mpi_options& options = {}) {
        require(detail::mpi_is_running(), "mpi",
                "mpi_communicator: MPI is not running; the program calls MPI_Init before and MPI_Finalize after");
        require(comm != MPI_COMM_NULL, "null", "mpi_communicator: the MPI_Comm is MPI_COMM_NULL");
        int is_inter = 0, rank = 0, size = 0;
        MPI_Comm_test_inter(comm, &is_inter);
        require(is_inter == 0, "intercommunicator", "mpi_communicator: the MPI_Comm joins two groups, it must be one");
        require(options.timeout.count() >= 1, "timeout", "mpi_communicator: a timeout of ", options.timeout.count(),
                " ms was asked for, it must be at least 1 ms");
        constexpr std::size_t most = std::numeric_limits<int>::max();
        require(options.message_bytes >= 1 && options.message_bytes <= most, "message_bytes",
                "mpi_communicator: messages of ", options.message_bytes, " bytes were asked for, legal are 1..", most);
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        std::vector<int> members(static_cast<std::size_t>(size));
        std::iota(members.begin(), members.end(), 0);
        const auto duplicate = detail::duplicate_of(comm, rank, size, options.timeout);
        duplicate->next_tag = 2;
        link_ = std::make_unique<detail::mpi_link>(duplicate, std::move(members), rank, 0, options);
    }

    mpi_communicator(mpi_communicator&&) noexcept = default;
    mpi_communicator& operator=(mpi_communicator&& other) noexcept {
        mpi_communicator old(std::move(other)); // swapped, so that assigning to itself is harmless
        std::swap(link_, old.link_);
        std::swap(bytes_sent_, old.bytes_sent_);
        std::swap(num_exceptions_, old.num_exceptions_);
        return *this;
    }
    ~mpi_communicator() {
        if (link_ != nullptr && std::uncaught_exceptions() > num_exceptions_)
            link_->fail("it left while an exception was under way");
    }

    int rank() const { return link().rank(); }
    int size() const { return link().size(); }
    check_level checks() const { return link().options().checks; }

    // Payload bytes sent to other ranks by calls that took place.
    std::uint64_t bytes_sent() const { return bytes_sent_; }

    // recv: size() parts of `bytes_per_rank` bytes in rank order; send may be recv + rank() * bytes_per_rank.
    void all_gather(const void* send, void* recv, std::size_t bytes_per_rank, host_stream, collective_note note = {}) {
        const auto call = detail::all_gather_call(rank(), size(), send, recv, bytes_per_rank, note);
        link().exchange(call, [&](int peer) {
            return detail::mpi_part{send, bytes_per_rank, part(recv, peer, bytes_per_rank), bytes_per_rank};
        });
        bytes_sent_ += peers() * bytes_per_rank;
    }

    // send, recv: size() parts of `bytes_per_peer` bytes; part i of send goes to rank i, part i of recv came from it.
    void all_to_all(const void* send, void* recv, std::size_t bytes_per_peer, host_stream, collective_note note = {}) {
        const auto call = detail::all_to_all_call(size(), send, recv, bytes_per_peer, note);
        link().exchange(call, [&](int peer) {
            return detail::mpi_part{part(send, peer, bytes_per_peer), bytes_per_peer, part(recv, peer, bytes_per_peer),
                                    bytes_per_peer};
        });
        bytes_sent_ += peers() * bytes_per_peer;
    }

    // The same with a size for each rank, parts packed without gaps. Sizes may be zero.
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, host_stream, collective_note note = {}) {
        const auto call = detail::all_to_all_call(size(), send, send_bytes, recv, recv_bytes, note);
        link().exchange(call, [&](int peer) {
            const auto i = static_cast<std::size_t>(peer);
            const auto before = [i](std::span<const std::size_t> sizes) {
                return std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(i), std::size_t{0});
            };
            return detail::mpi_part{part(send, 1, before(send_bytes)), send_bytes[i], part(recv, 1, before(recv_bytes)),
                                    recv_bytes[i]};
        });
        bytes_sent_ += call.bytes - send_bytes[static_cast<std::size_t>(rank())];
    }

    // Throws comm_error "digest" on every rank unless all ranks pass the same value. At check_level::off it compares
    // and waits for nothing.
    void agree(std::uint64_t digest, const char* what, host_stream) {
        detail::local_call call{detail::local_operation::agree};
        call.note = {what, scalar_type::bytes, digest};
        if (checks() == check_level::off) return link().require_alive(call);
        link().exchange(call, [](int) { return detail::mpi_part{}; });
    }

    // Throws a known failure, also one that a peer has told; never blocks.
    void check() { link().check(); }

    // Host work is done on return, so there is nothing to wait for.
    void wait(host_stream) { link().require_alive({}); }

    // The communicator of the ranks that pass the same color, in order of (key, rank), with the options of this one;
    // none where color < 0. Called by all ranks. It uses the same duplicate of the caller's MPI_Comm. The groups then
    // fail each on its own. config_error "tags", on all ranks, where MPI can not number more groups.
    std::optional<mpi_communicator> split(int color, int key) {
        detail::local_call own{detail::local_operation::split};
        own.color = color;
        own.key = key;
        const std::span<const detail::local_call> calls = link().exchange(own, [](int) { return detail::mpi_part{}; });
        const int tag = link().free_tag();
        const std::shared_ptr<detail::mpi_duplicate>& duplicate = link().duplicate();
        require(tag < duplicate->last_tag, "tags", "split: this MPI numbers messages up to ", duplicate->last_tag,
                ", which is enough for ", duplicate->last_tag / 2, " groups of one communicator");
        duplicate->next_tag = tag + 2;
        if (color < 0) return std::nullopt;
        std::vector<std::pair<int, int>> order; // key, rank
        for (int peer = 0; peer < size(); ++peer) {
            const detail::local_call& call = calls[static_cast<std::size_t>(peer)];
            if (call.color == color) order.emplace_back(call.key, peer);
        }
        std::sort(order.begin(), order.end());
        std::vector<int> members;
        int place = 0;
        for (const auto& [its_key, peer] : order) {
            if (peer == rank()) place = static_cast<int>(members.size());
            members.push_back(link().member(peer));
        }
        return mpi_communicator(
            std::make_unique<detail::mpi_link>(duplicate, std::move(members), place, tag, link().options()));
    }

    // Tells the peers that this rank failed: they throw comm_error "peer_error" with the reason. Called by one rank;
    // does not wait.
    void fail(const std::string& reason) {
        if (link_ != nullptr) link_->fail(reason);
    }

private:
    explicit mpi_communicator(std::unique_ptr<detail::mpi_link> link) : link_(std::move(link)) {}

    static const std::byte* part(const void* memory, int index, std::size_t bytes) {
        return static_cast<const std::byte*>(memory) + static_cast<std::size_t>(index) * bytes;
    }
    static std::byte* part(void* memory, int index, std::size_t bytes) {
        return static_cast<std::byte*>(memory) + static_cast<std::size_t>(index) * bytes;
    }
    detail::mpi_link& link() const {
        require(link_ != nullptr, "moved", "an MPI communicator was used after it had been moved from");
        return *link_;
    }
    std::uint64_t peers() const { return static_cast<std::uint64_t>(size()) - 1; }

    std::unique_ptr<detail::mpi_link> link_; // null once moved from
    std::uint64_t bytes_sent_ = 0;
    int num_exceptions_ = std::uncaught_exceptions();
};

static_assert(communicator<mpi_communicator>);

} // namespace ctxpar::inline v0_1
