// Ranks that compute on GPUs. A program without CUDA has calibrate_gpus_none.cpp in their place.
#pragma once

#include <ctxpar/comm/local.hpp>
#ifdef DEMO_WITH_MPI
#include <ctxpar/comm/mpi.hpp>
#endif

#include "calibrate.hpp"

namespace demo {

// config_error "transport" where the program was built without CUDA; "devices" where there is no GPU, and where threads
// of this process need one each and there are fewer.
void check_gpus(const calibration_task& task);

// All ranks together, of which the world joins the host threads. config_error "devices" for ranks of nccl that would
// share a GPU, naming both; "memory", "result".
calibration_report calibrate_on_gpus(ctxpar::local_communicator& world, const calibration_task& task);
#ifdef DEMO_WITH_MPI
calibration_report calibrate_on_gpus(ctxpar::mpi_communicator& world, const calibration_task& task);
#endif

} // namespace demo
