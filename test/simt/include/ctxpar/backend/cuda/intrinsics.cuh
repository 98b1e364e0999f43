// The machine's part of kernels, emulated: what backend/cuda/intrinsics.cuh gives on a GPU. On the include path before
// the library.
#pragma once

#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

#include <simt/block.hpp>

#define CTXPAR_DEVICE inline
#define CTXPAR_KERNEL

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
    simt::meet_in_warp(
        0xffffffffU, "sync_warp", nullptr, [](void* const*, std::uint32_t) {}, where);
}

inline float from_lane_xor(float value, unsigned lane_mask, const place_of_call& where = place_of_call::current()) {
    struct exchange {
        float given;
        unsigned lane_mask;
        float taken;
    } mine{value, lane_mask, 0.0F};
    simt::meet_in_warp(
        0xffffffffU, "from_lane_xor", &mine,
        [](void* const* data, std::uint32_t) {
            for (unsigned lane = 0; lane < warp_size; ++lane) {
                auto* const own = static_cast<exchange*>(data[lane]);
                own->taken = static_cast<const exchange*>(data[(lane ^ own->lane_mask) % warp_size])->given;
            }
        },
        where);
    return mine.taken;
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

inline chunk16 load_chunk(const void* place, const place_of_call& where = place_of_call::current()) {
    check_aligned(place, sizeof(chunk16), "load", where);
    simt::counters().bytes_read += sizeof(chunk16);
    chunk16 chunk;
    std::memcpy(&chunk, place, sizeof(chunk));
    return chunk;
}
inline void store_chunk(void* place, const chunk16& chunk, const place_of_call& where = place_of_call::current()) {
    check_aligned(place, sizeof(chunk16), "store", where);
    simt::counters().bytes_written += sizeof(chunk16);
    std::memcpy(place, &chunk, sizeof(chunk));
}

inline unsigned long long add_atomic(unsigned long long* place, unsigned long long value) {
    const unsigned long long before = *place;
    *place += value;
    return before;
}

} // namespace ctxpar::inline v0_1::cuda
