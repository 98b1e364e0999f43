// Counts what is allocated: included by one file of a test executable, whose whole memory then comes through here. The
// executable's other files include allocation_count.hpp.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "allocation_count.hpp"

namespace {

using ctxpar_test::is_counting;
using ctxpar_test::num_allocations;

void* counted(std::size_t bytes, std::size_t alignment) {
    if (is_counting) ++num_allocations;
    void* const memory = alignment <= alignof(std::max_align_t)
                             ? std::malloc(bytes == 0 ? 1 : bytes)
                             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr) std::abort();
    return memory;
}

} // namespace

// Not inlined: where only one of a pair is, the compiler sees malloc meet delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    return counted(bytes, 0);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
