#include "device_place.cuh"
#include "serve.hpp"
#include "serve_processes.hpp"

void demo::serve_on_gpu(mpi_communicator& world, const options& given, watch& observer) {
    serve<device_place<nccl_communicator, mpi_communicator>>(world, given, observer);
}
