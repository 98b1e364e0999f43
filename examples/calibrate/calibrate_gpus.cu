#include "calibrate_gpus.cuh"

#include "over_ranks.hpp"

namespace demo {

void check_gpus(const calibration_task& task) {
    const int devices = device_count();
    ctxpar::require(devices > 0, "devices", "transport ", task.transport,
                    " is for ranks with GPUs, and there is no GPU here; local and mpi need none");
    const bool one_each = task.transport == "nccl" && !over_processes(task.transport);
    ctxpar::require(!one_each || task.ranks <= devices, "devices", "there are ", task.ranks, " ranks and ", devices,
                    devices == 1 ? " GPU" : " GPUs", " here; transport nccl has a GPU for each rank, and with ",
                    "local_cuda ranks share them");
}

calibration_report calibrate_on_gpus(ctxpar::local_communicator& world, const calibration_task& task) {
    if (task.transport == "nccl") return calibrate_on_gpus_of<ctxpar::nccl_communicator>(world, task);
    return calibrate_on_gpus_of<ctxpar::local_cuda_communicator>(world, task);
}

} // namespace demo
