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
    std::string transport = "local"; // or mpi
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

// Refuses what can not be measured, before anything is: config_error "usage".
void check_task(const calibration_task& task);

// All ranks together, each on a core of its own; with MPI every process calls it. Nothing on processes other than rank
// 0, and where one failed, which is said: then the status is not 0. config_error "usage"; "memory" where there is too
// little; "result" for a result that is wrong.
std::optional<calibration_report> calibrate(const calibration_task& task, int& status);

// "3 x 1 row, 1024 tokens"; requests that differ from the first as " + ..." behind it.
std::string text_of(const requests& all);

} // namespace demo
