// The ranks of a run, seen from one process. What a World has, whatever its ranks are:
//
//   communicator               of a rank
//   speaks()                   whether this process compares and prints
//   share()                    of all ranks, those on this host; all processes call it
//   own_ranks(n)               of n ranks, those of this process; owns(rank) says which
//   first(fn)                  fn() on the process that speaks, before the others go on
//   run(n, fn)                 fn(communicator) on each of its ranks; returns when all have ended
//   gather(all, record)        gives the process that speaks what the others' ranks have recorded
//   end()                      prints, after all else for a person, what there is to say of the processes
#pragma once

#include <chrono>
#include <cstdint>

#include <ctxpar/comm/local.hpp>

#include "engine.hpp"

namespace demo {

// All ranks are threads of this process. They may outnumber cores by far, and wait for each other.
struct threads {
    using communicator = ctxpar::local_communicator;

    bool speaks() const { return true; }
    double share() const { return 1.0; }
    std::int64_t own_ranks(std::int64_t ranks) const { return ranks; }
    bool owns(std::int64_t) const { return true; }
    template <class Fn>
    void first(const Fn& fn) {
        fn();
    }
    template <class Fn>
    void run(std::int64_t ranks, const Fn& fn) {
        ctxpar::run_local_ranks(static_cast<int>(ranks), {std::chrono::minutes(30)}, fn);
    }
    void gather(const problem&, record&) {}
    void end() {}
};

} // namespace demo
