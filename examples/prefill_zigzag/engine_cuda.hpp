// The same engine with its caches on GPUs.
#pragma once

#include <vector>

#include "engine.hpp"
#include "worlds.hpp"

namespace demo {

// config_error "backend" where the program was built without CUDA, there is no GPU, or heads are not of 128 elements.
void check_cuda(const problem& all);

// run_configurations() of runs.hpp over ranks with GPUs, which talk as the problem says.
std::vector<record> run_cuda_configurations(threads& ranks, const problem& all, const prompt_data& data,
                                            const std::vector<configuration>& runs);

} // namespace demo
