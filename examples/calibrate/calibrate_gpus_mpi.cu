#include <ctxpar/comm/mpi.hpp>

#include "calibrate_gpus.cuh"

demo::calibration_report demo::calibrate_on_gpus(ctxpar::mpi_communicator& world, const calibration_task& task) {
    return calibrate_on_gpus_of<ctxpar::nccl_communicator>(world, task);
}
