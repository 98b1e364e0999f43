// All that kernels ask of the machine itself: where a thread is, how threads meet, how memory is read in wide pieces.
// The only file with PTX and built-in device functions; kernels are plain C++ on top of it, and a test that runs
// kernels without a GPU puts its own version of this file in front of it.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>

#define CTXPAR_DEVICE __device__ __forceinline__
// A kernel, always a template. Hidden, so that two shared libraries with the same kernels do not
// launch each other's.
#define CTXPAR_KERNEL __attribute__((visibility("hidden"))) __global__

namespace ctxpar::inline v0_1::cuda {

inline constexpr unsigned warp_size = 32;

// Blocks and grids: threads have one index, blocks three.
CTXPAR_DEVICE unsigned thread_index() {
    return threadIdx.x;
}
CTXPAR_DEVICE unsigned block_threads() {
    return blockDim.x;
}
CTXPAR_DEVICE unsigned block_x() {
    return blockIdx.x;
}
CTXPAR_DEVICE unsigned block_y() {
    return blockIdx.y;
}
CTXPAR_DEVICE unsigned grid_x() {
    return gridDim.x;
}
CTXPAR_DEVICE unsigned grid_y() {
    return gridDim.y;
}
CTXPAR_DEVICE unsigned lane_index() {
    return threadIdx.x % warp_size;
}

// The shared memory that a launch asked for, as an array.
template <class T>
CTXPAR_DEVICE T* shared_array() {
    extern __shared__ __align__(1024) unsigned char shared_memory_of_block[];
    return reinterpret_cast<T*>(shared_memory_of_block);
}

// All threads of the block meet; what each wrote before is seen by all after.
CTXPAR_DEVICE void sync_block() {
    __syncthreads();
}

// The same for the 32 lanes of a warp.
CTXPAR_DEVICE void sync_warp() {
    __syncwarp();
}

// The value of the lane whose index differs in the bits of lane_mask; all lanes of the warp call it.
CTXPAR_DEVICE float from_lane_xor(float value, unsigned lane_mask) {
    return __shfl_xor_sync(0xffffffffU, value, static_cast<int>(lane_mask));
}

// 16 bytes, read and written at once; at addresses that are multiples of 16.
struct alignas(16) chunk16 {
    std::uint32_t words[4];
};

// Memory that no one writes while the kernel runs.
CTXPAR_DEVICE chunk16 load_chunk(const void* place) {
    chunk16 chunk;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.words[0]), "=r"(chunk.words[1]), "=r"(chunk.words[2]), "=r"(chunk.words[3])
                 : "l"(place));
    return chunk;
}
CTXPAR_DEVICE void store_chunk(void* place, const chunk16& chunk) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(chunk.words[0]), "r"(chunk.words[1]),
                 "r"(chunk.words[2]), "r"(chunk.words[3])
                 : "memory");
}

// Counts up in global memory; returns what was there.
CTXPAR_DEVICE unsigned long long add_atomic(unsigned long long* place, unsigned long long value) {
    return atomicAdd(place, value);
}

} // namespace ctxpar::inline v0_1::cuda
