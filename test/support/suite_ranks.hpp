// The ranks over which the exactness suites run. An executable that runs the same suites over another kind of ranks has
// its own version of this file in front of it on the include path.
#pragma once

#include "cpu_kernels.hpp"
#include "local_ranks.hpp"

namespace ctxpar_test {

using suite_ranks = local_ranks;

} // namespace ctxpar_test
