// Measures a machine for the cost model, and looks at how well the model does with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cases.hpp"
#include "common/calibration.hpp"
#include "work.hpp"

namespace demo {

struct calibration_task {
    std::string program;             // for what it says
    std::string transport = "local"; // or mpi; over GPUs nccl, local_cuda
    std::int64_t ranks = 2;
    std::int64_t layers = 32; // of the model; only written down
    model_dims model;
    effort how;
};

// A step that no cost was taken from.
struct checked_step {
    requests what;
    way_times times;
};

struct calibration_report {
    calibration file;
    std::vector<checked_step> checked;
};

// Whether ranks compute on GPUs.
bool on_gpus(const calibration_task& task);

// Refuses what can not be measured, before anything is: config_error "usage"; "transport" where the program was built
// without what the transport needs, and "devices" where there are too few GPUs for it.
void check_task(const calibration_task& task);

// All ranks together, each on a core of its own, or on a GPU: of its own with nccl, shared by threads of this process
// with local_cuda. Where MPI has started the processes, all of them call it. Nothing on processes other than rank 0,
// and where one failed, which is said: then the status is not 0. config_error as check_task(); "memory" where there is
// too little; "result" for a result that is wrong.
std::optional<calibration_report> calibrate(const calibration_task& task, int& status);

// "3 x 1 row, 1024 tokens"; requests that differ from the first as " + ..." behind it.
std::string text_of(const requests& all);

} // namespace demo
