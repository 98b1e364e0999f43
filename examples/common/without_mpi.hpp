// What a program says whose ranks are to be processes and that was built without MPI.
#pragma once

#include <string>

#include <ctxpar/core/error.hpp>

namespace demo {

[[noreturn]] inline void refuse_without_mpi(const std::string& program) {
    ctxpar::raise(ctxpar::config_error("comm", "this " + program +
                                                   " was built without MPI; --comm local needs none, or install MPI, "
                                                   "such as libopenmpi-dev and openmpi-bin, and build again"));
}

} // namespace demo
