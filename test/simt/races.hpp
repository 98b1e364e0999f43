// What the thread sanitizer is told, so that it finds races between the threads of a grid: every thread is a fiber of
// its own, ordered after another only by barriers, by meetings of a warp that order memory, and by the end of the grid.
//
// Built with SIMT_RACES for tests that are compiled with the sanitizer; the emulator itself is compiled without it.
// Elsewhere all of this is empty.
#pragma once

#include <cstddef>

#if defined(SIMT_RACES)
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* place);
void __tsan_release(void* place);
void __tsan_read_range(void* place, unsigned long bytes);
void __tsan_write_range(void* place, unsigned long bytes);
}
#endif

namespace simt::races {

#if defined(SIMT_RACES)
inline constexpr bool are_looked_for = true;
inline void* create_fiber() {
    return __tsan_create_fiber(0);
}
inline void destroy_fiber(void* fiber) {
    __tsan_destroy_fiber(fiber);
}
inline void* this_fiber() {
    return __tsan_get_current_fiber();
}
inline void switch_to_fiber(void* fiber) {
    __tsan_switch_to_fiber(fiber, 1); // and nothing is ordered by that
}
// What was done before release(place) is done before what follows acquire(place).
inline void acquire(void* place) {
    __tsan_acquire(place);
}
inline void release(void* place) {
    __tsan_release(place);
}
inline void reads(const void* place, std::size_t bytes) {
    __tsan_read_range(const_cast<void*>(place), bytes);
}
inline void writes(void* place, std::size_t bytes) {
    __tsan_write_range(place, bytes);
}
#else
inline constexpr bool are_looked_for = false;
inline void* create_fiber() {
    return nullptr;
}
inline void destroy_fiber(void*) {}
inline void* this_fiber() {
    return nullptr;
}
inline void switch_to_fiber(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
inline void reads(const void*, std::size_t) {}
inline void writes(void*, std::size_t) {}
#endif

} // namespace simt::races

// A function that does the work of other threads: their accesses are told, its own are not looked at.
#if defined(SIMT_RACES)
#define SIMT_UNSEEN __attribute__((no_sanitize("thread")))
#else
#define SIMT_UNSEEN
#endif
