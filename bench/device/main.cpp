// device_bench: compares the CUDA backend with double-precision references, and times it against what the device can
// do.
//
//   device_bench [--small] [--seconds N]
//
// Exit status: 0 right, 1 a wrong result, 2 wrong usage, 77 no GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include <cuda_runtime_api.h>

#include "measure.hpp"

namespace {

void print(const bench::measurement& one, const bench::ceilings& most) {
    std::printf("%-48s", one.what.c_str());
    if (one.seconds > 0.0) {
        std::printf(" %9.3f ms", one.seconds * 1e3);
        if (one.bytes > 0.0) {
            std::printf(" %7.0f GB/s %4.0f%%", one.bytes / one.seconds / 1e9,
                        100 * one.bytes / one.seconds / most.copy_bytes);
        } else {
            std::printf(" %18s", "");
        }
        if (one.flops > 0.0) {
            std::printf(" %7.1f TFLOP/s %4.0f%%", one.flops / one.seconds / 1e12,
                        100 * one.flops / one.seconds / most.matrix_flops);
        } else {
            std::printf(" %21s", "");
        }
    } else {
        std::printf(" %51s", one.note.c_str());
    }
    if (one.bound > 0.0) std::printf("  L2 %.1e of %.0e  %s", one.error, one.bound, one.pass() ? "pass" : "FAIL");
    std::printf("\n");
    std::fflush(stdout);
}

int run(bool small, double seconds) {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess || devices == 0) {
        std::printf("There is no GPU here: %s.\n",
                    found == cudaSuccess ? "the CUDA runtime lists none" : cudaGetErrorString(found));
        return 77;
    }
    cudaDeviceProp device{};
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) return 1;
    std::printf("%s, compute capability %d.%d, %d multiprocessors\n", device.name, device.major, device.minor,
                device.multiProcessorCount);
    const bench::budget left(seconds);
    bench::ceilings most;
    if (!small) {
        most = bench::measure_ceilings();
        std::printf(
            "copy %.0f GB/s (read and written), matrix products %.0f TFLOP/s (bf16 by mma.sync); percentages are of "
            "these\n",
            most.copy_bytes / 1e9, most.matrix_flops / 1e12);
    }
    bool right = true;
    for (const auto& part :
         {bench::merge, bench::decode_gqa, bench::decode_mla, bench::decode_mla_rounded, bench::prefill}) {
        bench::results all;
        part(small, left, all);
        for (const bench::measurement& one : all) {
            print(one, most);
            right = right && one.pass();
        }
    }
    return right ? 0 : 1;
}

} // namespace

int main(int count, char** arguments) {
    bool small = false;
    double seconds = 240.0;
    for (int i = 1; i < count; ++i) {
        if (std::strcmp(arguments[i], "--small") == 0) {
            small = true;
        } else if (std::strcmp(arguments[i], "--seconds") == 0 && i + 1 < count) {
            seconds = std::atof(arguments[++i]);
        } else {
            std::fprintf(stderr, "usage: device_bench [--small] [--seconds N]\n");
            return 2;
        }
    }
    try {
        return run(small, seconds);
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "device_bench: %s\n", problem.what());
        return 1;
    }
}
