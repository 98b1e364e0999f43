// The same requests on one rank that holds everything, in double precision, by code that shares nothing with the
// library.
#pragma once

#include <cstdint>
#include <vector>

#include "options.hpp"

namespace demo {

struct unsharded_step {
    std::vector<double> outputs;       // [layers][rows][q_heads][head_dim]
    std::vector<std::int64_t> sampled; // [requests] -1 where nothing is

    const double* row(std::int64_t layer, std::int64_t rows, std::int64_t index) const {
        return outputs.data() + (layer * rows + index) * options::q_heads * options::head_dim;
    }
};

std::vector<unsharded_step> run_unsharded(const options& given);

// How far rows of some heads are from it: the relative L2 distance of the worst row, NaN counting as infinite. `got` is
// [rows][heads][head_dim] of one layer, its heads beginning with the model's first_head.
double worst_row(const unsharded_step& right, std::int64_t layer, const std::vector<float>& got, std::int64_t rows,
                 std::int64_t first_head);

} // namespace demo
