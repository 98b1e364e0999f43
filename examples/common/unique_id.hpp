// One unique id for a set of ranks that have nothing in common yet but a folder: rank 0 writes a file, the others read
// it. For where no MPI can tell it, such as processes that a batch system started.
//
// The file is made by rank 0 alone, readable by its owner only, and appears complete or not at all; a file of that name
// that somebody left behind is refused, not taken. Every reader leaves a mark beside it, and when all have, rank 0
// removes marks and file. A path serves again once all ranks have met otherwise. Nothing listens on a network.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

namespace demo {

struct id_file {
    std::string path; // the same for all ranks, in a folder that exists; names of a run must differ from run to run
    int rank = 0;
    int size = 1;
    std::chrono::milliseconds timeout{60'000}; // of a wait for the other ranks
};

// Gives every rank the bytes that rank 0 has, as many on all. All ranks call it. config_error, naming the path:
// "exists" on rank 0 where the file is there already; "owner" for a file that others own or may read; "size" for one of
// another size; "timeout" where rank 0, or a reader, does not come; "file" with the system's reason for all else.
void exchange_id(const id_file& where, std::span<std::byte> id);

// Refuses ranks that would share a device, which NCCL does not take: config_error "devices" naming both ranks and the
// device. names[r] says where rank r computes, host and device; the same names on all ranks.
void require_distinct_devices(std::span<const std::string> names);

} // namespace demo
