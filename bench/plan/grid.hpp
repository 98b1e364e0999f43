// The grid: decode steps around the length at which sharing a request's keys begins to pay, in every way in which two
// ranks can serve them.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "calibrate/cases.hpp"

namespace bench {

std::vector<demo::requests> grid_steps(bool smoke);

struct grid_row {
    const char* attention = "";
    demo::requests what;
    demo::way_times times;

    std::size_t chosen() const { return demo::least(times.predicted_us); }
    std::size_t best() const { return demo::least(times.measured_us); }
    // How much more than the best way a way took; 0.1 is 10%.
    double loss(std::size_t way) const { return times.measured_us.at(way) / times.measured_us.at(best()) - 1; }
};

// Of a choice, made by the model or always the same.
struct grid_score {
    double near_best = 0; // share of rows in which it is best, or takes at most a tenth more
    double mean_loss = 0;
    double best = 0; // share of rows in which it is best
};

struct grid_result {
    grid_score chosen;
    std::array<grid_score, demo::num_ways> always;
    double mean_error = 0; // of predictions, without sign
    double most_error = 0; // relative L2 of a result
    // What is asked of a full grid: near_best of the chosen at least 0.9, and no way best in more than 0.7 of the rows.
    bool passes = false;
};

grid_result judge(const std::vector<grid_row>& rows);

std::string table_of(const std::vector<grid_row>& rows, const grid_result& result);

} // namespace bench
