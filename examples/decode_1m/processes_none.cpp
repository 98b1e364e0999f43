#include <ctxpar/core/error.hpp>

#include "processes.hpp"

namespace demo {

int run_over_processes(const options&) {
    ctxpar::raise(ctxpar::config_error("comm", "--comm mpi: this program was built without MPI; install one, such as "
                                               "libopenmpi-dev and openmpi-bin, and build again"));
}

} // namespace demo
