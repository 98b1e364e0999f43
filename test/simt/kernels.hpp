// Runs kernels of the library on the emulated machine, in every order of threads and with a few seeds.
#pragma once

#include <cstdint>
#include <utility>

#include "block.hpp"

namespace simt {

struct launch_shape {
    unsigned blocks = 1;
    unsigned threads = 128;
    std::size_t shared_bytes = 0;
    thread_order order = thread_order::any;
    std::uint64_t seed = 1;
};

template <class... Parameters, class... Arguments>
void launch(const launch_shape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
    grid_options options;
    options.grid.x = shape.blocks;
    options.block.x = shape.threads;
    options.shared_bytes = shape.shared_bytes;
    options.order = shape.order;
    options.seed = shape.seed;
    run_grid(options, [&] { kernel(Parameters(arguments)...); });
}

// Calls run(order, seed) for all orders and some seeds: a fault may hide in one of them.
template <class Run>
void in_all_orders(const Run& run) {
    for (const thread_order order : {thread_order::first_in, thread_order::any, thread_order::one_warp})
        for (std::uint64_t seed = 1; seed <= (order == thread_order::first_in ? 1 : 4); ++seed) run(order, seed);
}

} // namespace simt
