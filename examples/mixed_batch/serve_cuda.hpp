// The same ranks with a GPU for each, or for several of them.
#pragma once

#include <ctxpar/comm/local.hpp>

#include "options.hpp"
#include "watch.hpp"

namespace demo {

// config_error "backend" where the program was built without CUDA or there is no GPU.
void check_cuda();

// serve() of serve.hpp on the GPU of this rank, a thread, which talks to the others as the options say.
void serve_on_gpu(ctxpar::local_communicator& world, const options& given, watch& observer);

} // namespace demo
