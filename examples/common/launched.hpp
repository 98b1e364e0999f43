// Whether processes are to be the ranks, where that is not said but seen.
#pragma once

#include <cstdlib>

namespace demo {

// Whether a launcher of MPI has started this process, with others.
inline bool started_as_processes() {
    for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
        if (const char* const size = std::getenv(name); size != nullptr && std::atoi(size) > 1) return true;
    return false;
}

} // namespace demo
