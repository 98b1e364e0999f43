// The machine's part of kernels, emulated: what backend/cuda/intrinsics.cuh gives on a GPU. On the include path before
// the library.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>

#include <simt/block.hpp>
#include <simt/races.hpp>
#include <simt/warp.hpp>

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
    return std::bit_cast<float>(
        simt::word_of_lane(std::bit_cast<std::uint32_t>(value), lane_index() ^ lane_mask, "from_lane_xor", where));
}

inline unsigned from_lane(unsigned value, unsigned lane, const place_of_call& where = place_of_call::current()) {
    return simt::word_of_lane(value, lane, "from_lane", where);
}

inline unsigned vote(bool yes, const place_of_call& where = place_of_call::current()) {
    return simt::lanes_of(yes, "vote", where);
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
template <std::size_t Bytes>
[[gnu::always_inline]] inline void check_aligned(const void* place, const char* what, const place_of_call& where) {
    if (reinterpret_cast<std::uintptr_t>(place) % Bytes != 0) simt::raise_misaligned(what, Bytes, where);
}

SIMT_UNSEEN inline chunk16 load_chunk(const void* place, const place_of_call& where = place_of_call::current()) {
    check_aligned<sizeof(chunk16)>(place, "load", where);
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
    check_aligned<sizeof(chunk16)>(place, "store", where);
    simt::counters().bytes_written += sizeof(chunk16);
    simt::races::writes(place, sizeof(chunk));
    std::memcpy(place, &chunk, sizeof(chunk));
}

// An access to shared memory outside what the launch asked for.
template <std::size_t Bytes>
[[gnu::always_inline]] inline void check_shared(const void* place, const char* what, const place_of_call& where) {
    check_aligned<Bytes>(place, what, where);
    if (!simt::is_shared(place, Bytes)) simt::raise_outside_shared(what, where);
}

SIMT_UNSEEN inline chunk16 get_chunk(const std::uint8_t* shared,
                                     const place_of_call& where = place_of_call::current()) {
    check_shared<sizeof(chunk16)>(shared, "get_chunk", where);
    simt::races::reads(shared, sizeof(chunk16));
    chunk16 chunk;
    std::memcpy(&chunk, shared, sizeof(chunk));
    return chunk;
}
SIMT_UNSEEN inline void put_chunk(std::uint8_t* shared, const chunk16& chunk,
                                  const place_of_call& where = place_of_call::current()) {
    check_shared<sizeof(chunk16)>(shared, "put_chunk", where);
    simt::races::writes(shared, sizeof(chunk));
    std::memcpy(shared, &chunk, sizeof(chunk));
}

inline void copy_async(void* shared, const void* global, const place_of_call& where = place_of_call::current()) {
    check_shared<16>(shared, "copy_async", where);
    check_aligned<16>(global, "copy_async", where);
    simt::copy_later(shared, global, 16);
}
inline void commit_copies() {
    simt::commit_copies();
}
template <int Groups>
void wait_copies() {
    simt::wait_copies(Groups);
}

using four_matrices = simt::four_words;

inline four_matrices load_rows(const void* shared_row, const place_of_call& where = place_of_call::current()) {
    check_shared<16>(shared_row, "load_rows", where);
    simt::races::reads(shared_row, 16);
    return simt::load_matrices(shared_row, false, "load_rows", where);
}
inline four_matrices load_columns(const void* shared_row, const place_of_call& where = place_of_call::current()) {
    check_shared<16>(shared_row, "load_columns", where);
    simt::races::reads(shared_row, 16);
    return simt::load_matrices(shared_row, true, "load_columns", where);
}

using tile_sums = simt::lane_sums;

template <class T>
void multiply_add(tile_sums& sums, const four_matrices& a, std::uint32_t b0, std::uint32_t b1,
                  const place_of_call& where = place_of_call::current()) {
    const auto format = T::exponent_bits == 8 ? simt::half_format::bf16 : simt::half_format::f16;
    sums = simt::multiply(sums, a, b0, b1, format, "multiply_add", where);
}

template <class T>
float half_of_pair(std::uint32_t pair, unsigned half) {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(pair >> (16 * half))));
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
