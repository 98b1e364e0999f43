// Stands in for the ranks that are processes where the program is built without MPI.
#include "common/without_mpi.hpp"
#include "processes.hpp"

int demo::run_over_processes(const options&) {
    refuse_without_mpi("decode_1m");
}
