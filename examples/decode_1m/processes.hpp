// decode_1m with ranks that are MPI processes.
#pragma once

#include "options.hpp"

namespace demo {

// The whole example, on every process. Returns its exit status, the same on all; where a rank failed it does not
// return, but ends the process. config_error "comm" where the program was built without MPI.
int run_over_processes(const options& given);

} // namespace demo
