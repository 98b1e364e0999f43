// Stands in for ranks with GPUs where the program is built without CUDA.
#include <ctxpar/core/error.hpp>

#include "serve_cuda.hpp"

void demo::check_cuda() {
    ctxpar::raise(ctxpar::config_error(
        "backend", "this mixed_batch was built without CUDA; --backend cpu is what it has, or build it where nvcc and "
                   "NCCL are found"));
}

void demo::serve_on_gpu(ctxpar::local_communicator&, const options&, watch&) {
    check_cuda();
}
