// A calibration over ranks of one kind that compute on GPUs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <ctxpar/backend/cuda/operations.cuh>
#include <ctxpar/core/error.hpp>

#include "calibrate_gpus.hpp"
#include "device_rank.cuh"
#include "layers_gpus.cuh"
#include "measure_task.hpp"

namespace demo {

// Bytes of a pool of each rank; the same on all. config_error "memory" on all where one has too little.
template <class Rank>
std::size_t device_pool_size(team<Rank>& ranks, const effort& how, int ranks_of_device) {
    constexpr std::size_t mib = std::size_t{1} << 20;
    std::size_t free = 0, total = 0;
    ctxpar::cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const double own = static_cast<double>(free / 2 / static_cast<std::size_t>(ranks_of_device) / mib);
    const auto there = static_cast<std::size_t>(-ranks.largest(-own)); // MiB
    const std::size_t least = how.tiny ? 32 : 256, most = how.tiny ? least : 1024;
    ctxpar::require(there >= least, "memory", "there are ", there, " MiB of a GPU's memory for each of ", ranks.size(),
                    " ranks; there must be ", least);
    return std::min(most, there) * mib;
}

template <class C, class World>
calibration_report calibrate_on_gpus_of(World& world, const calibration_task& task) {
    device_rank<C, World> own(world);
    team<device_rank<C, World>> ranks(own);
    const int devices = device_count(), shared = task.transport == "nccl" ? 1 : (world.size() + devices - 1) / devices;
    device_pool pool(device_pool_size(ranks, task.how, shared), own.stream());
    calibration_report report = measure_task(own, task, pool);
    int device = 0;
    cudaDeviceProp facts{};
    ctxpar::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    ctxpar::cuda::check(cudaGetDeviceProperties(&facts, device), "cudaGetDeviceProperties");
    report.file.device = facts.name;
    report.file.machine =
        ctxpar::sentence(report.file.device, ", compute capability ", facts.major, ".", facts.minor, ", ",
                         facts.multiProcessorCount, " processors, ", world.size(), " ranks, ", shared, " a GPU");
    return report;
}

} // namespace demo
