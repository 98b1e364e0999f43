// One rank that is an MPI process and has a GPU.
#pragma once

#include <ctxpar/comm/mpi.hpp>

#include "options.hpp"
#include "watch.hpp"

namespace demo {

// serve() of serve.hpp on the GPU of this process, which talks to the others through NCCL; where the program has CUDA.
void serve_on_gpu(ctxpar::mpi_communicator& world, const options& given, watch& observer);

} // namespace demo
