// The projection of a decode step, which reads its weights once for all rows: what replicated Q pays with.
#pragma once

#include <cstdint>
#include <vector>

#include <ctxpar/core/numeric.hpp>

namespace demo {

// out[row][o] = sum over i of rows[row][i] * weights[o][i], in fp32.
struct projection {
    std::int64_t rows = 1;    // up to most_rows
    std::int64_t inputs = 0;  // a multiple of 32
    std::int64_t outputs = 0; // a multiple of 16

    static constexpr std::int64_t most_rows = 16;
};

// On the calling thread, with the widest vectors that CTXPAR_CPU and the processor allow.
void project_on_host(const projection& all, const ctxpar::bf16* weights, const float* rows, float* out);

// [rows][outputs], added in double.
std::vector<double> projected(const projection& all, const ctxpar::bf16* weights, const ctxpar::bf16* rows);

// Rows of bf16 numbers, no two rows alike.
std::vector<ctxpar::bf16> rows_to_project(const projection& all);

// Of the relative L2 distance to numbers added in double.
inline constexpr double most_projection_error = 1e-5;

// The relative L2 distance of what is to be `wanted`.
double distance(const std::vector<float>& got, const std::vector<double>& wanted);

} // namespace demo
