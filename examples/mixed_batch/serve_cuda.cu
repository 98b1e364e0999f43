#include "serve_cuda.hpp"

#include "device_place.cuh"
#include "serve.hpp"

namespace demo {

void check_cuda() {
    ctxpar::require(device_count() > 0, "backend", "there is no GPU here; --backend cpu needs none");
}

void serve_on_gpu(local_communicator& world, const options& given, watch& observer) {
    if (given.comm == "nccl") return serve<device_place<nccl_communicator, local_communicator>>(world, given, observer);
    serve<device_place<local_cuda_communicator, local_communicator>>(world, given, observer);
}

} // namespace demo
