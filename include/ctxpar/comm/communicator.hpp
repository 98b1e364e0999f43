// What a communicator is: it moves bytes between the ranks of one group and does no arithmetic.
//
// All of its operations are collective: every rank of the group calls them, in the same order, with the same sizes,
// also where a rank has nothing to send. They are ordered by the stream; on a host_stream they are done on return.
//
// One communicator may have several users, such as a prefiller and a decoder with streams of their own. "The same
// order" is then that in which the host of each rank makes the calls of all of them together: what one step of a user
// calls may stand between the steps of another, but at the same place on every rank. Where hosts can not promise that,
// each user has a communicator of its own. check_level::collective refuses another order on some rank.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1 {

// How much a program pays to have its own mistakes found. A run-time value, so that objects built with different
// settings can be linked together.
//   off         errors of a call's own arguments only
//   basic       + a digest of policy, shapes and schedule is compared between the ranks once a plan
//   collective  + operation, bytes, element type and digest of every call: at the call where the ranks meet on the host
//                 anyway, else all calls so far whenever a plan is compared
enum class check_level : std::uint8_t { off, basic, collective };

// What a call is about; named in errors, compared in checked builds, never sent with the payload.
struct collective_note {
    const char* what = "data";             // e.g. "queries"; static storage
    scalar_type type = scalar_type::bytes; // element type of the payload
    std::uint64_t digest = 0;              // of the plan that makes the call; 0 = no plan
};

// all_gather         recv holds size() parts of bytes_per_rank, in rank order; send may be recv + rank * bytes_per_rank
// all_to_all         part i of send goes to rank i; part i of recv came from rank i; never in place
// all_to_all (spans) the same with a size for each peer, packed without gaps; zero sizes are legal
// agree              collective check: throws comm_error "digest" on every rank unless all ranks pass the same value;
//                    may return bool: false where it did not compare, as while a graph is captured
// check              throws a known failure; never blocks
// wait               bounded wait for the stream, then comm_error; returns at once on a host_stream
// bytes_sent         payload bytes this rank has sent to other ranks; the traffic of checks is not counted
// checks             the level this communicator was made with
//
// Every call throws comm_error (rank, operation, what was expected, what came, how long it waited) on failure; after
// that the communicator is dead and every call throws at once.
template <class C>
concept communicator = requires(C& c, const C& k, const void* send, void* recv, std::size_t bytes,
                                std::span<const std::size_t> sizes, typename C::stream_type stream,
                                collective_note note) {
    { k.rank() } -> std::convertible_to<int>;
    { k.size() } -> std::convertible_to<int>;
    c.all_gather(send, recv, bytes, stream, note);
    c.all_to_all(send, recv, bytes, stream, note);
    c.all_to_all(send, sizes, recv, sizes, stream, note);
    c.agree(note.digest, note.what, stream);
    c.check();
    c.wait(stream);
    { k.bytes_sent() } -> std::convertible_to<std::uint64_t>;
    { k.checks() } -> std::same_as<check_level>;
};

// A communicator whose transport can add, for where its own reduction beats ours.
//
//   reduce_scatter  element i of recv (count elements) = sum over ranks of element rank*count + i of send
//   all_reduce      element i of recv (count elements) = sum over ranks of element i of send; may be in place
//
// `reproducible` says whether the order of adding is fixed, so that bits repeat.
template <class C>
concept reducing_communicator = communicator<C> &&
    requires(C& c, const void* send, void* recv, std::size_t count, scalar_type type, typename C::stream_type stream,
             collective_note note) {
    c.reduce_scatter(send, recv, count, type, stream, note);
    c.all_reduce(send, recv, count, type, stream, note);
    { C::reproducible } -> std::convertible_to<bool>;
};

// A communicator whose ranks can read each other's memory.
//
//   publish  makes `data` readable by the other ranks and returns size() pointers, one a rank in rank order, valid
//            until release(); `bytes_per_peer` is what each other rank will read of it, for bytes_sent()
//   release  returns when no rank reads this rank's published memory any more; every publish has one
template <class C>
concept peer_communicator = communicator<C> &&
    requires(C& c, const void* data, std::size_t bytes, typename C::stream_type stream, collective_note note) {
    { c.publish(data, bytes, stream, note) } -> std::convertible_to<std::span<const void* const>>;
    c.release(stream);
};

// The size of a group whose communicator may be absent: null means a group of one.
template <communicator C>
int group_size(const C* c) {
    return c == nullptr ? 1 : c->size();
}

// This rank's place in a group whose communicator may be absent.
template <communicator C>
int group_rank(const C* c) {
    return c == nullptr ? 0 : c->rank();
}

} // namespace ctxpar::inline v0_1
