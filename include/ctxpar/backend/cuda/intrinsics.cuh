// All that kernels ask of the machine itself: where a thread is, how threads meet, how memory is read in wide pieces.
// The only file with PTX and built-in device functions; kernels are plain C++ on top of it, and a test that runs
// kernels without a GPU puts its own version of this file in front of it.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>

#include <ctxpar/core/bits.hpp>
#include <ctxpar/core/numeric.hpp>

#define CTXPAR_DEVICE __device__ __forceinline__
// Before a loop over registers, and before one that shall not take more registers than one turn needs.
#define CTXPAR_UNROLL_ALL _Pragma("unroll")
#define CTXPAR_ROLLED _Pragma("unroll 1")
// A kernel, always a template. Hidden, so that two shared libraries with the same kernels do not
// launch each other's.
#define CTXPAR_KERNEL __attribute__((visibility("hidden"))) __global__
// The same for blocks of that many threads, no more, of which so many shall fit a processor at once.
#define CTXPAR_KERNEL_OF(threads, blocks) CTXPAR_KERNEL __launch_bounds__(threads, blocks)

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

// The value of another lane; all lanes of the warp call it.
CTXPAR_DEVICE unsigned from_lane(unsigned value, unsigned lane) {
    return __shfl_sync(0xffffffffU, value, static_cast<int>(lane));
}

// Bit i: what lane i says; all lanes of the warp call it.
CTXPAR_DEVICE unsigned vote(bool yes) {
    return __ballot_sync(0xffffffffU, yes);
}

// The lowest bit that is set, of a number that is not 0.
CTXPAR_DEVICE unsigned first_bit(unsigned bits) {
    return static_cast<unsigned>(__ffs(static_cast<int>(bits))) - 1;
}

// 2 to the power of x, within 2 units in the last place; 0 for -inf.
CTXPAR_DEVICE float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
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
// Memory that this kernel may write too.
CTXPAR_DEVICE chunk16 read_chunk(const void* place) {
    chunk16 chunk;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.words[0]), "=r"(chunk.words[1]), "=r"(chunk.words[2]), "=r"(chunk.words[3])
                 : "l"(place)
                 : "memory");
    return chunk;
}
CTXPAR_DEVICE void store_chunk(void* place, const chunk16& chunk) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(chunk.words[0]), "r"(chunk.words[1]),
                 "r"(chunk.words[2]), "r"(chunk.words[3])
                 : "memory");
}

// The same in shared memory.
CTXPAR_DEVICE chunk16 get_chunk(const std::uint8_t* shared) {
    return *reinterpret_cast<const chunk16*>(shared);
}
CTXPAR_DEVICE void put_chunk(std::uint8_t* shared, const chunk16& chunk) {
    *reinterpret_cast<chunk16*>(shared) = chunk;
}

// Copies 16 bytes of global memory into shared memory, both at multiples of 16, while the thread goes on. Copies since
// the last commit_copies() are one group; wait_copies<N>() returns when all of the thread's groups but the last N have
// arrived. Other threads see them after they have met this one.
CTXPAR_DEVICE void copy_async(void* shared, const void* global) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
CTXPAR_DEVICE void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Groups>
CTXPAR_DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8i + r points at row r of matrix i (16 bytes, at a
// multiple of 16). Lane l gets elements 2(l mod 4) and the next of row l / 4 of each; with load_columns of column l
// / 4.
struct four_matrices {
    std::uint32_t at[4];
};
CTXPAR_DEVICE four_matrices load_rows(const void* shared_row) {
    four_matrices m;
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.at[0]), "=r"(m.at[1]), "=r"(m.at[2]), "=r"(m.at[3])
                 : "r"(from)
                 : "memory");
    return m;
}
CTXPAR_DEVICE four_matrices load_columns(const void* shared_row) {
    four_matrices m;
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.at[0]), "=r"(m.at[1]), "=r"(m.at[2]), "=r"(m.at[3])
                 : "r"(from)
                 : "memory");
    return m;
}

// The sums of a 16 x 8 tile: a lane has (l / 4, 2(l mod 4)) and the next column, and the same of row l / 4 + 8.
struct tile_sums {
    float at[4];
};

// sums += A B, A being 16 x 16 with the matrices {rows 0-7, rows 8-15} of columns 0-7, then of columns 8-15, and B
// 16 x 8 with rows 0-7 in b0 and rows 8-15 in b1, a lane having two elements of one of its columns. T is bf16 or f16.
template <class T>
CTXPAR_DEVICE void multiply_add(tile_sums& sums, const four_matrices& a, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bf16>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
            : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
                     : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
    }
}

// Two numbers rounded to T (bf16 or f16), `low` in the lower half of the word; and back.
template <class T>
CTXPAR_DEVICE std::uint32_t pack_pair(float low, float high) {
    std::uint32_t pair;
    if constexpr (std::is_same_v<T, bf16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}
struct float_pair {
    float low;
    float high;
};
template <class T>
CTXPAR_DEVICE float_pair unpack_pair(std::uint32_t pair) {
    if constexpr (std::is_same_v<T, bf16>) {
        return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
    } else {
        float_pair both;
        asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
            : "=f"(both.low), "=f"(both.high)
            : "r"(pair));
        return both;
    }
}

// Two fp8 numbers, the lower byte first, as a pair of T, without rounding.
template <class T, class Fp8>
CTXPAR_DEVICE std::uint32_t widen_pair(std::uint32_t two_bytes) {
#if __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    if constexpr (std::is_same_v<Fp8, fp8_e4m3>) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(two_bytes)));
    } else {
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(two_bytes)));
    }
    if constexpr (std::is_same_v<T, f16>) return halves;
    const float_pair both = unpack_pair<f16>(halves);
    return pack_pair<T>(both.low, both.high);
#else
    const auto number = [](std::uint32_t byte) {
        return static_cast<float>(Fp8::from_bits(static_cast<std::uint8_t>(byte)));
    };
    return pack_pair<T>(number(two_bytes & 0xffU), number(two_bytes >> 8 & 0xffU));
#endif
}

// Counts up in global memory; returns what was there.
CTXPAR_DEVICE unsigned long long add_atomic(unsigned long long* place, unsigned long long value) {
    return atomicAdd(place, value);
}

} // namespace ctxpar::inline v0_1::cuda
