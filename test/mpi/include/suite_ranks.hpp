// The ranks of the suites, where they are MPI processes. Comes before test/support on the include path.
#pragma once

#include <support/cpu_kernels.hpp>

#include "../mpi_ranks.hpp"

namespace ctxpar_test {

using suite_ranks = mpi_ranks;

} // namespace ctxpar_test
