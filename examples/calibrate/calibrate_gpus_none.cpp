// Stands in for ranks that compute on GPUs where the program is built without CUDA.
#include "calibrate_gpus.hpp"

#include <ctxpar/core/error.hpp>

namespace demo {
namespace {

[[noreturn]] void refuse(const calibration_task& task) {
#ifdef DEMO_WITH_MPI
    const char* const others = "local and mpi";
#else
    const char* const others = "local";
#endif
    ctxpar::raise(ctxpar::config_error("transport", ctxpar::sentence("transport ", task.transport,
                                                                     " is for ranks with GPUs, and this ", task.program,
                                                                     " was built without CUDA; it has ", others,
                                                                     ", or build it where nvcc and NCCL are found")));
}

} // namespace

void check_gpus(const calibration_task& task) {
    refuse(task);
}
calibration_report calibrate_on_gpus(ctxpar::local_communicator&, const calibration_task& task) {
    refuse(task);
}
#ifdef DEMO_WITH_MPI
calibration_report calibrate_on_gpus(ctxpar::mpi_communicator&, const calibration_task& task) {
    refuse(task);
}
#endif

} // namespace demo
