// The same program on every rank, where ranks are threads or, as MPI has started them, processes.
#pragma once

#include <chrono>
#include <string>

#include <ctxpar/comm/local.hpp>

#ifdef DEMO_WITH_MPI
#include "common/processes.hpp"
#else
#include "common/without_mpi.hpp"
#endif

namespace demo {

// fn(communicator) on each of so many ranks, which are threads ("local") or processes ("mpi"). Returns the exit status,
// 0 where all went well; a local rank's exception is thrown, one of a process is said on standard error. config_error
// "comm" for mpi where the program was built without.
template <class Fn>
int over_ranks(const std::string& program, const std::string& transport, int ranks, const Fn& fn) {
    if (transport == "local") {
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
