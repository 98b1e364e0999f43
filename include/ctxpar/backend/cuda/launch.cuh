// The only launches of the library. A test that runs kernels without a GPU puts its own version of this file in front
// of it.
#pragma once

#include <cstddef>
#include <type_traits>

#include <cuda_runtime.h>

#include <ctxpar/backend/cuda.hpp>

namespace ctxpar::inline v0_1::cuda {

// Launches a kernel with the arguments at these places. cuda_error where the runtime refuses.
inline void launch_at(const launch_size& size, cudaStream_t stream, const void* kernel, void** arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(size.grid_x, size.grid_y);
    config.blockDim = dim3(size.threads);
    config.dynamicSmemBytes = size.shared_bytes;
    config.stream = stream;
    check(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

// Launches kernel(arguments...) on the stream. What is not the type of a parameter would be read wrongly.
template <class... Arguments>
void launch(const launch_size& size, cudaStream_t stream, void (*kernel)(Arguments...),
            const std::type_identity_t<Arguments>&... arguments) {
    void* places[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    launch_at(size, stream, reinterpret_cast<const void*>(kernel), places);
}

} // namespace ctxpar::inline v0_1::cuda
