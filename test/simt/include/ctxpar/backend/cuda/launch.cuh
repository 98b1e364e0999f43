// Launches on the emulated machine: what backend/cuda/launch.cuh does on a GPU.
#pragma once

#include <cstdint>
#include <tuple>
#include <typeinfo>

#include <cuda_runtime.h>
#include <simt/block.hpp>
#include <simt/device.hpp>

#include <ctxpar/backend/cuda.hpp>

namespace ctxpar::inline v0_1::cuda {

// In which order threads of the launches of this OS thread run; the seed goes up with every launch.
struct launch_order {
    simt::thread_order threads = simt::thread_order::any;
    std::uint64_t seed = 1;
};
inline launch_order& emulated_order() {
    thread_local launch_order order;
    return order;
}

template <class... Parameters, class... Arguments>
void launch(const launch_size& size, cudaStream_t stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
    simt::grid_options options;
    options.grid = {size.grid_x, size.grid_y, 1};
    options.block.x = size.threads;
    options.shared_bytes = size.shared_bytes;
    options.order = emulated_order().threads;
    options.seed = emulated_order().seed++;
    const auto body = [kernel, values = std::tuple<Parameters...>(Parameters(arguments)...)] {
        std::apply(kernel, values);
    };
    check(simt::launch_grid(stream, reinterpret_cast<const void*>(kernel), typeid(kernel).name(), options, body),
          "cudaLaunchKernelEx");
}

} // namespace ctxpar::inline v0_1::cuda
