// The only launches of the library. A test that runs kernels without a GPU puts its own version of this file in front
// of it.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

#include <ctxpar/backend/cuda.hpp>

namespace ctxpar::inline v0_1::cuda {

// Launches kernel(arguments...) on the stream. cuda_error where the runtime refuses.
template <class... Parameters, class... Arguments>
void launch(const launch_size& size, cudaStream_t stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(size.grid_x, size.grid_y);
    config.blockDim = dim3(size.threads);
    config.dynamicSmemBytes = size.shared_bytes;
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "cudaLaunchKernelEx");
}

} // namespace ctxpar::inline v0_1::cuda
