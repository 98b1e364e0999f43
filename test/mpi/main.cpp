// The main() of test programs that run as MPI processes: each runs all test cases, and so does its peers.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <ctxpar/comm/mpi.hpp>

int main(int argc, char** argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    doctest::Context context(argc, argv);
    const int result = context.run();
    // After a failure the ranks may not be where the others are, and a rank that waits for another would wait for ever.
    if (result != 0 && !context.shouldExit()) std::_Exit(result);
    MPI_Finalize();
    return result;
}
