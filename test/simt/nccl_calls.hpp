// Ranks of the emulated NCCL that meet: what they called, how it fits together, and the work it is for their streams.
// Everything here is under the lock of the device, but for the copying, of which one piece is done at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nccl.h>

#include "device.hpp"
#include "nccl.hpp"

namespace simt {

enum class nccl_kind : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast };

// One rank's call.
struct call {
    nccl_kind what = nccl_kind::all_gather;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    ncclDataType_t type = ncclUint8;
    int root = -1;
    ncclRedOp_t sum = ncclSum;
};

struct group;

struct member {
    std::shared_ptr<group> of;
    int rank = 0;
    int device = 0;
    bool aborted = false;
    std::uint64_t collectives = 0; // that it has called
    std::uint64_t splits = 0;
};

// The n-th collective of a communicator.
struct round {
    struct seat {
        call called;
        bool is_called = false;
        bool is_here = false; // its stream has come to it
    };
    std::vector<seat> of;
    bool done = false;
    std::uint64_t order = 0; // of adding
};

// One side of a send and its receive.
struct side {
    void* memory = nullptr;
    std::size_t count = 0;
    ncclDataType_t type = ncclUint8;
    std::uint64_t collectives_before = 0;
    bool is_called = false;
    bool is_here = false;
};
struct transfer {
    side from, to;
    bool done = false;
};
struct channel {
    std::deque<std::shared_ptr<transfer>> transfers; // in the order of calls of either side
    std::size_t sends = 0, recvs = 0;                // that were called
    std::size_t forgotten = 0;                       // transfers at the front that took place
};

struct split_round {
    std::map<int, std::pair<int, int>> asked; // color and key, by rank
    std::map<int, std::shared_ptr<member>> made;
};

struct group {
    int size = 0;
    std::string name;
    std::vector<std::shared_ptr<member>> members;
    std::map<std::uint64_t, std::shared_ptr<round>> rounds;
    std::map<std::pair<int, int>, channel> channels;
    std::map<std::uint64_t, split_round> splits;
    ncclResult_t error = ncclSuccess;
    std::string error_text;

    void fail(const std::string& text, ncclResult_t code = ncclInvalidUsage) {
        if (error != ncclSuccess) return;
        error = code;
        error_text = "communicator " + name + ": " + text;
    }
    bool is_alive(int rank) const { return !members[static_cast<std::size_t>(rank)]->aborted; }
};

struct point_call {
    bool sends = false;
    int peer = 0;
    void* memory = nullptr;
    std::size_t count = 0;
    ncclDataType_t type = ncclUint8;
};

// What has been counted so far.
nccl_counts& nccl_counted();

// "rank 3"; "ncclAllGather"; "ncclAllGather (64 x float32)"
std::string rank_text(int rank);
const char* name_of(nccl_kind what);
std::string text_of(const call& made);

// "rank 2 to call it"
std::string missing_of(const round& meeting);

// The work of one rank's call, which counts as called from now on. What differs from other ranks' calls is found here.
task collective_task(const std::shared_ptr<member>& self, const call& made);
task point_task(const std::shared_ptr<member>& self, const std::vector<point_call>& calls);

} // namespace simt
