// NCCL's functions for ranks that are threads of one process. A collective is work of the streams of its ranks: it
// takes place when it is at the head of all of them. What would hang or corrupt memory on a real machine is said
// instead: calls that differ are an asynchronous error on all ranks, whose text (ncclGetLastError) names two of them
// and what they called; for a call that waits, ncclGetLastError says for which ranks. After such an error nothing of
// the communicator is done any more until a rank aborts, which lets its own stream go on.
//
// As in NCCL, the ranks of a communicator are on different devices: simt::device_options::devices, cudaSetDevice.
#pragma once

#include <cstdint>
#include <string>

#include <nccl.h>

namespace simt {

// What this process has done, over all ranks.
struct nccl_counts {
    std::int64_t live_communicators = 0;
    std::uint64_t collectives = 0; // calls, of graphs: for each launch
    std::uint64_t point_to_point = 0;
    std::uint64_t bytes_moved = 0; // between ranks
};
nccl_counts nccl_counters();

// From now on all ranks of the communicator find this error, as where a process or a network is lost.
void nccl_break(ncclComm_t comm, ncclResult_t error, const std::string& text);

} // namespace simt
