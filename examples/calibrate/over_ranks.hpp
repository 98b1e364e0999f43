// The same program on every rank, where ranks are threads or, as MPI has started them, processes.
#pragma once

#include <chrono>
#include <string>

#include <ctxpar/comm/local.hpp>

#include "common/launched.hpp"
#ifdef DEMO_WITH_MPI
#include "common/processes.hpp"
#else
#include "common/without_mpi.hpp"
#endif

namespace demo {

// Whether ranks are processes: with mpi, and with nccl where MPI has started several.
inline bool over_processes(const std::string& transport) {
    return transport == "mpi" || (transport == "nccl" && started_as_processes());
}

// fn(communicator) on each of so many ranks, which are threads or processes; the communicator joins them on the host.
// Returns the exit status, 0 where all went well; a thread's exception is thrown, one of a process is said on standard
// error. config_error "comm" for processes where the program was built without MPI.
template <class Fn>
int over_ranks(const std::string& program, const std::string& transport, int ranks, const Fn& fn) {
    if (!over_processes(transport)) {
        ctxpar::run_local_ranks(ranks, {std::chrono::minutes(30)}, fn);
        return 0;
    }
#ifdef DEMO_WITH_MPI
    return run_processes(program, [&](processes& own) {
        own.require_ranks(ranks);
        own.run(fn);
        return 0;
    });
#else
    refuse_without_mpi(program);
#endif
}

} // namespace demo
