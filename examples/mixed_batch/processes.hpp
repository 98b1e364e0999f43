// mixed_batch with ranks that are MPI processes.
#pragma once

#include "options.hpp"

namespace demo {

// The whole example, on every process. Returns its exit status, the same on all; see common/processes.hpp. config_error
// "comm" where the program was built without MPI.
int run_over_processes(const options& given);

} // namespace demo
