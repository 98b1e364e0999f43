// The shared memory of a block: pages of its own, and what lies behind its last byte is poisoned where the address
// sanitizer looks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "races.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace simt {

class arena {
public:
    static constexpr std::size_t page = 4096; // more than the 1,024 that are promised

    explicit arena(std::size_t bytes) : bytes_(bytes), memory_(map(room())) {
#if defined(__SANITIZE_ADDRESS__)
        __asan_poison_memory_region(memory_ + bytes_, room() - bytes_);
#endif
    }
    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;
    ~arena() {
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(memory_, room());
#endif
        munmap(memory_, room());
    }

    // Makes every byte 0xff, which is NaN in every floating point type.
    void forget() {
        std::memset(memory_, 0xff, bytes_);
    }
    std::byte* data() const {
        return memory_;
    }
    std::size_t bytes() const {
        return bytes_;
    }

private:
    static std::byte* map(std::size_t bytes) {
        void* const place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) throw std::bad_alloc();
        return static_cast<std::byte*>(place);
    }
    std::size_t room() const {
        return (bytes_ + 2 * page - 1) / page * page;
    }

    std::size_t bytes_;
    std::byte* memory_;
};

// Arenas of the sizes that were asked for last: kernels ask for the same few again. For all OS threads.
class arena_pool {
public:
    static arena_pool& shared() {
        static auto& pool = *new arena_pool; // OS threads may end later than static objects
        return pool;
    }

    std::unique_ptr<arena> take(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        const auto found =
            std::find_if(free_.begin(), free_.end(), [&](const auto& each) { return each->bytes() == bytes; });
        if (found == free_.end()) return std::make_unique<arena>(bytes);
        std::unique_ptr<arena> taken = std::move(*found);
        free_.erase(found);
        return taken;
    }
    void give(std::unique_ptr<arena> given) {
        if (races::are_looked_for) return; // what is mapped anew has no past that the sanitizer would remember
        const std::lock_guard lock(mutex_);
        if (free_.size() == most) free_.erase(free_.begin());
        free_.push_back(std::move(given));
    }

private:
    static constexpr std::size_t most = 8;
    std::mutex mutex_;
    std::vector<std::unique_ptr<arena>> free_;
};

} // namespace simt
