// What the device can do at best, by the simplest programs: a copy, and matrix products that read nothing.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include <thrust/device_vector.h>

#include <ctxpar/backend/cuda.hpp>

#include "measure.hpp"

namespace bench {
namespace {

using ctxpar::cuda::check;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct event {
    cudaEvent_t handle = nullptr;
    event() { check(cudaEventCreate(&handle), "cudaEventCreate"); }
    event(const event&) = delete;
    event& operator=(const event&) = delete;
    ~event() { (void)cudaEventDestroy(handle); }
};

constexpr int chains = 8; // independent sums, so that no product waits for another
constexpr int products = 4096;

// Each warp makes chains * products matrix products of 16 x 8 x 16.
__global__ void matrix_kernel(float* never, std::uint32_t seed) {
    float sums[chains][4] = {};
    const std::uint32_t a = seed * threadIdx.x;
    for (int i = 0; i < products; ++i)
#pragma unroll
        for (int c = 0; c < chains; ++c)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, "
                         "{%4, %4}, {%0, %1, %2, %3};"
                         : "+f"(sums[c][0]), "+f"(sums[c][1]), "+f"(sums[c][2]), "+f"(sums[c][3])
                         : "r"(a));
    float all = 0.0F;
    for (int c = 0; c < chains; ++c) all += sums[c][0] + sums[c][1] + sums[c][2] + sums[c][3];
    if (all != 0.0F) *never = all; // the operands are zeros
}

} // namespace

budget::budget(double seconds) : end_(now() + seconds) {}

bool budget::allows(double seconds) const {
    return seconds <= 1.0 && seconds * 8 <= end_ - now(); // about as many runs as seconds_of makes
}

double seconds_of(const std::function<void()>& launch) {
    static thrust::device_vector<std::uint8_t> other(std::size_t{256} << 20);
    std::vector<float> all; // milliseconds
    const double end = now() + 0.3;
    launch();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    while (all.size() < 3 || (all.size() < 21 && now() < end)) {
        check(cudaMemsetAsync(thrust::raw_pointer_cast(other.data()), 0, other.size()), "cudaMemsetAsync");
        const event first;
        const event last;
        check(cudaEventRecord(first.handle), "cudaEventRecord");
        launch();
        check(cudaEventRecord(last.handle), "cudaEventRecord");
        check(cudaEventSynchronize(last.handle), "cudaEventSynchronize");
        check(cudaEventElapsedTime(&all.emplace_back(), first.handle, last.handle), "cudaEventElapsedTime");
    }
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    return static_cast<double>(*middle) / 1e3;
}

ceilings measure_ceilings() {
    ceilings found;
    {
        const std::size_t size = std::size_t{2} << 30;
        thrust::device_vector<std::uint8_t> from(size), to(size);
        const double seconds = seconds_of([&] {
            check(cudaMemcpyAsync(thrust::raw_pointer_cast(to.data()), thrust::raw_pointer_cast(from.data()), size,
                                  cudaMemcpyDeviceToDevice),
                  "cudaMemcpyAsync");
        });
        found.copy_bytes = 2.0 * static_cast<double>(size) / seconds;
    }
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    thrust::device_vector<float> never(1);
    const auto blocks = static_cast<unsigned>(processors * 4);
    const double seconds = seconds_of([&] {
        matrix_kernel<<<blocks, 128>>>(thrust::raw_pointer_cast(never.data()), 0);
        check(cudaGetLastError(), "matrix_kernel");
    });
    found.matrix_flops = 2.0 * 16 * 8 * 16 * chains * products * 4.0 * blocks / seconds;
    return found;
}

} // namespace bench
