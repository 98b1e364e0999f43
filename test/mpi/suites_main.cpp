// The main() of the exactness suites over MPI processes: says how much was run, and fails where that is nothing.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "mpi_ranks.hpp"

int main(int argc, char** argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    doctest::Context context(argc, argv);
    context.setOption("no-version", true);
    if (ctxpar_test::mpi_ranks::own_process() > 0) context.setOption("minimal", true);
    const int result = context.run();
    const ctxpar_test::process_runs& runs = ctxpar_test::runs_over_processes();
    if (result != 0) std::_Exit(result); // the ranks may not be where the others are
    if (ctxpar_test::mpi_ranks::own_process() == 0)
        std::printf("%llu deployments over %d processes, %llu values, the same bits as over threads\n",
                    static_cast<unsigned long long>(runs.deployments), ctxpar_test::mpi_ranks::processes(),
                    static_cast<unsigned long long>(runs.values));
    MPI_Finalize();
    return runs.deployments > 0 ? 0 : 1;
}
