// The engine whose caches lie on GPUs.
#pragma once

#include <memory>

#include "engine.hpp"

namespace demo {

// Bytes of memory that the ranks' GPUs have free, all together. config_error "backend" where the program was built
// without CUDA or there is no GPU.
double free_device_memory(const problem& all);

// The same refusals as of make_cuda_engine(), before anything is made.
void check_cuda(const problem& all);

// The same refusals, and "backend" for what this engine was not built for.
std::unique_ptr<engine> make_cuda_engine(const problem& all, const kv_data& data);

// One for each kind of attention, so that they are compiled apart.
std::unique_ptr<engine> make_cuda_gqa_engine(const problem& all, const kv_data& data);
std::unique_ptr<engine> make_cuda_mla_engine(const problem& all, const kv_data& data);

} // namespace demo
