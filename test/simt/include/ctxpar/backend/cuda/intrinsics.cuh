// The machine's part of kernels, emulated: what backend/cuda/intrinsics.cuh gives on a GPU. On the include path before
// the library.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

#include <simt/block.hpp>
#include <simt/races.hpp>

#include <ctxpar/core/bits.hpp>
#include <ctxpar/core/numeric.hpp>

#define CTXPAR_DEVICE inline
#define CTXPAR_UNROLL_ALL
#define CTXPAR_ROLLED
#define CTXPAR_KERNEL
#define CTXPAR_KERNEL_OF(threads, blocks)

namespace ctxpar::inline v0_1::cuda {

using place_of_call = std::source_location;

inline constexpr unsigned warp_size = 32;

inline unsigned thread_index() {
    return simt::position().thread.x;
}
inline unsigned block_threads() {
    return simt::position().block_size.x;
}
inline unsigned block_x() {
    return simt::position().block.x;
}
inline unsigned block_y() {
    return simt::position().block.y;
}
inline unsigned grid_x() {
    return simt::position().grid_size.x;
}
inline unsigned grid_y() {
    return simt::position().grid_size.y;
}
inline unsigned lane_index() {
    return simt::position().rank % warp_size;
}

template <class T>
T* shared_array() {
    return reinterpret_cast<T*>(simt::shared_memory());
}

inline void sync_block(const place_of_call& where = place_of_call::current()) {
    simt::barrier(0, 0, "sync_block", where);
}

inline void sync_warp(const place_of_call& where = place_of_call::current()) {
    simt::sync_warp(where);
}

inline float from_lane_xor(float value, unsigned lane_mask, const place_of_call& where = place_of_call::current()) {
    struct exchange {
        float given;
        unsigned lane_mask;
        float taken;
    } mine{value, lane_mask, 0.0F};
    simt::meet_in_warp(
        0xffffffffU, "from_lane_xor", &mine,
        [](void* const* data, std::uint32_t) SIMT_UNSEEN {
            for (unsigned lane = 0; lane < warp_size; ++lane) {
                auto* const own = static_cast<exchange*>(data[lane]);
                own->taken = static_cast<const exchange*>(data[(lane ^ own->lane_mask) % warp_size])->given;
            }
        },
        where);
    return mine.taken;
}

inline unsigned from_lane(unsigned value, unsigned lane, const place_of_call& where = place_of_call::current()) {
    struct exchange {
        unsigned given;
        unsigned from;
        unsigned taken;
    } mine{value, lane, 0};
    simt::meet_in_warp(
        0xffffffffU, "from_lane", &mine,
        [](void* const* data, std::uint32_t) SIMT_UNSEEN {
            for (unsigned i = 0; i < warp_size; ++i) {
                auto* const own = static_cast<exchange*>(data[i]);
                own->taken = static_cast<const exchange*>(data[own->from % warp_size])->given;
            }
        },
        where);
    return mine.taken;
}

inline unsigned vote(bool yes, const place_of_call& where = place_of_call::current()) {
    struct ballot {
        bool yes;
        unsigned all;
    } mine{yes, 0};
    simt::meet_in_warp(
        0xffffffffU, "vote", &mine,
        [](void* const* data, std::uint32_t) SIMT_UNSEEN {
            unsigned all = 0;
            for (unsigned lane = 0; lane < warp_size; ++lane)
                all |= static_cast<unsigned>(static_cast<const ballot*>(data[lane])->yes) << lane;
            for (unsigned lane = 0; lane < warp_size; ++lane) static_cast<ballot*>(data[lane])->all = all;
        },
        where);
    return mine.all;
}

inline unsigned first_bit(unsigned bits) {
    return static_cast<unsigned>(std::countr_zero(bits));
}

inline float exp2_fast(float x) {
    return std::exp2(x);
}

struct alignas(16) chunk16 {
    std::uint32_t words[4];
};

// A wide access must lie on a multiple of its size; a GPU stops the program otherwise.
inline void check_aligned(const void* place, std::size_t bytes, const char* what, const place_of_call& where) {
    if (reinterpret_cast<std::uintptr_t>(place) % bytes != 0)
        simt::raise_fault(std::string(what) + " of " + std::to_string(bytes) +
                          " bytes at an address that is no multiple of it: " + simt::describe_here(where));
}

SIMT_UNSEEN inline chunk16 load_chunk(const void* place, const place_of_call& where = place_of_call::current()) {
    check_aligned(place, sizeof(chunk16), "load", where);
    simt::counters().bytes_read += sizeof(chunk16);
    simt::races::reads(place, sizeof(chunk16));
    chunk16 chunk;
    std::memcpy(&chunk, place, sizeof(chunk));
    return chunk;
}
inline chunk16 read_chunk(const void* place, const place_of_call& where = place_of_call::current()) {
    return load_chunk(place, where);
}
SIMT_UNSEEN inline void store_chunk(void* place, const chunk16& chunk,
                                    const place_of_call& where = place_of_call::current()) {
    check_aligned(place, sizeof(chunk16), "store", where);
    simt::counters().bytes_written += sizeof(chunk16);
    simt::races::writes(place, sizeof(chunk));
    std::memcpy(place, &chunk, sizeof(chunk));
}

// An access to shared memory outside what the launch asked for.
inline void check_shared(const void* place, std::size_t bytes, const char* what, const place_of_call& where) {
    check_aligned(place, bytes, what, where);
    if (!simt::is_shared(place, bytes))
        simt::raise_fault(std::string(what) + " outside the block's shared memory: " + simt::describe_here(where));
}

SIMT_UNSEEN inline chunk16 get_chunk(const std::uint8_t* shared,
                                     const place_of_call& where = place_of_call::current()) {
    check_shared(shared, sizeof(chunk16), "get_chunk", where);
    simt::races::reads(shared, sizeof(chunk16));
    chunk16 chunk;
    std::memcpy(&chunk, shared, sizeof(chunk));
    return chunk;
}
SIMT_UNSEEN inline void put_chunk(std::uint8_t* shared, const chunk16& chunk,
                                  const place_of_call& where = place_of_call::current()) {
    check_shared(shared, sizeof(chunk16), "put_chunk", where);
    simt::races::writes(shared, sizeof(chunk));
    std::memcpy(shared, &chunk, sizeof(chunk));
}

inline void copy_async(void* shared, const void* global, const place_of_call& where = place_of_call::current()) {
    check_shared(shared, 16, "copy_async", where);
    check_aligned(global, 16, "copy_async", where);
    simt::copy_later(shared, global, 16);
}
inline void commit_copies() {
    simt::commit_copies();
}
template <int Groups>
void wait_copies() {
    simt::wait_copies(Groups);
}

struct four_matrices {
    std::uint32_t at[4];
};

// What the lanes of a warp bring to a matrix operation.
struct matrix_load {
    const std::uint8_t* row;
    std::uint32_t* taken;
};
SIMT_UNSEEN inline std::uint32_t pair_of(const std::uint8_t* low, const std::uint8_t* high) {
    std::uint16_t halves[2];
    std::memcpy(&halves[0], low, 2);
    std::memcpy(&halves[1], high, 2);
    return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}

inline four_matrices load_rows(const void* shared_row, const place_of_call& where = place_of_call::current()) {
    check_shared(shared_row, 16, "load_rows", where);
    simt::races::reads(shared_row, 16);
    four_matrices m{};
    matrix_load mine{static_cast<const std::uint8_t*>(shared_row), m.at};
    simt::meet_in_warp(
        0xffffffffU, "load_rows", &mine,
        [](void* const* data, std::uint32_t) SIMT_UNSEEN {
            for (unsigned lane = 0; lane < warp_size; ++lane)
                for (unsigned i = 0; i < 4; ++i) {
                    const std::uint8_t* const row = static_cast<matrix_load*>(data[8 * i + lane / 4])->row;
                    static_cast<matrix_load*>(data[lane])->taken[i] =
                        pair_of(row + lane % 4 * 4, row + lane % 4 * 4 + 2);
                }
        },
        where);
    return m;
}
inline four_matrices load_columns(const void* shared_row, const place_of_call& where = place_of_call::current()) {
    check_shared(shared_row, 16, "load_columns", where);
    simt::races::reads(shared_row, 16);
    four_matrices m{};
    matrix_load mine{static_cast<const std::uint8_t*>(shared_row), m.at};
    simt::meet_in_warp(
        0xffffffffU, "load_columns", &mine,
        [](void* const* data, std::uint32_t) SIMT_UNSEEN {
            for (unsigned lane = 0; lane < warp_size; ++lane)
                for (unsigned i = 0; i < 4; ++i) {
                    const unsigned row = 8 * i + lane % 4 * 2;
                    static_cast<matrix_load*>(data[lane])->taken[i] =
                        pair_of(static_cast<matrix_load*>(data[row])->row + lane / 4 * 2,
                                static_cast<matrix_load*>(data[row + 1])->row + lane / 4 * 2);
                }
        },
        where);
    return m;
}

struct tile_sums {
    float at[4];
};

// One lane's part of a product; the last lane to come multiplies for all.
struct tile_product {
    float* sums;
    const std::uint32_t* a;
    std::uint32_t b[2];
};
template <class T>
float half_of_pair(std::uint32_t pair, unsigned half) {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(pair >> (16 * half))));
}
template <class T>
SIMT_UNSEEN void multiply_tile(void* const* data, std::uint32_t) {
    float a[16][16], b[16][8];
    for (unsigned lane = 0; lane < warp_size; ++lane) {
        const auto* const mine = static_cast<const tile_product*>(data[lane]);
        const unsigned row = lane / 4, column = lane % 4 * 2;
        for (unsigned half = 0; half < 2; ++half) {
            for (unsigned i = 0; i < 4; ++i)
                a[row + i % 2 * 8][column + i / 2 * 8 + half] = half_of_pair<T>(mine->a[i], half);
            for (unsigned i = 0; i < 2; ++i) b[column + i * 8 + half][row] = half_of_pair<T>(mine->b[i], half);
        }
    }
    for (unsigned lane = 0; lane < warp_size; ++lane) {
        auto* const mine = static_cast<tile_product*>(data[lane]);
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = static_cast<double>(mine->sums[i]); // rounded once, as by matrix units, which truncate
            for (unsigned k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * static_cast<double>(b[k][column]);
            mine->sums[i] = static_cast<float>(sum);
        }
    }
}

template <class T>
void multiply_add(tile_sums& sums, const four_matrices& a, std::uint32_t b0, std::uint32_t b1,
                  const place_of_call& where = place_of_call::current()) {
    tile_product mine{sums.at, a.at, {b0, b1}};
    simt::meet_in_warp(0xffffffffU, "multiply_add", &mine, multiply_tile<T>, where);
}

template <class T>
std::uint32_t pack_pair(float low, float high) {
    return static_cast<std::uint32_t>(T(low).bits) | static_cast<std::uint32_t>(T(high).bits) << 16;
}
struct float_pair {
    float low;
    float high;
};
template <class T>
float_pair unpack_pair(std::uint32_t pair) {
    return {half_of_pair<T>(pair, 0), half_of_pair<T>(pair, 1)};
}
template <class T, class Fp8>
std::uint32_t widen_pair(std::uint32_t two_bytes) {
    const auto number = [](std::uint32_t byte) {
        return static_cast<float>(Fp8::from_bits(static_cast<std::uint8_t>(byte)));
    };
    return pack_pair<T>(number(two_bytes & 0xffU), number(two_bytes >> 8 & 0xffU));
}

inline unsigned long long add_atomic(unsigned long long* place, unsigned long long value) {
    return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}

} // namespace ctxpar::inline v0_1::cuda
