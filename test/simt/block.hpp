// A grid of CUDA blocks, run one block after another; the threads of a block are fibers. What kernels may ask of the
// machine (barriers, warp operations, shared memory) ends here, and so does what they may do wrong with it.
//
// Nothing here is parallel: a run depends on the kernel, its inputs and the seed, and a fault can be seen again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

namespace simt {

// A kernel did what it must not, or its threads wait for one another. The text names threads and places.
class fault : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct extent {
    unsigned x = 1;
    unsigned y = 1;
    unsigned z = 1;

    std::size_t count() const { return std::size_t{x} * y * z; }
};

inline constexpr unsigned warp_size = 32;

// In which order threads go on where several can.
//   first_in  as they became ready: only this one is fair, and it hides faults
//   any       one at random
//   one_warp  threads of one warp until all of them wait, then another warp
enum class thread_order : std::uint8_t { first_in, any, one_warp };

struct grid_options {
    extent grid;
    extent block;
    std::size_t shared_bytes = 0;
    thread_order order = thread_order::any;
    std::uint64_t seed = 1; // of the order of threads and of blocks
};

// Runs kernel() on every thread of the grid. Throws fault.
void run_grid(const grid_options& options, const std::function<void()>& kernel);

// The thread that is running; only inside run_grid.
struct thread_position {
    extent thread; // index in its block
    extent block;  // index in the grid
    extent block_size;
    extent grid_size;
    unsigned rank = 0; // of the thread in its block, x fastest
};
namespace detail {

// Of the block that this OS thread runs, and its thread that is running.
struct running_block {
    const thread_position* at = nullptr;
    std::byte* shared = nullptr;
    std::size_t shared_bytes = 0;
};
inline constinit thread_local running_block here;

} // namespace detail

inline const thread_position& position() {
    return *detail::here.at;
}

// All threads of the block that have not exited (`threads` 0), or that many of them, meet at barrier `id` (0..15).
void barrier(unsigned id, unsigned threads, const char* what,
             const std::source_location& where = std::source_location::current());

// The lanes of `mask` meet; the last one to come does work(data, mask) with every lane's pointer, and all go on. The
// caller's lane must be in the mask. All lanes must ask for the same `what`, a text with static storage.
using warp_work = void (*)(void* const* data, std::uint32_t mask);
void meet_in_warp(std::uint32_t mask, const char* what, void* data, warp_work work,
                  const std::source_location& where = std::source_location::current());

// The 32 lanes of a warp meet, and what each wrote before is seen by all after; meet_in_warp orders no memory.
void sync_warp(const std::source_location& where = std::source_location::current());

// Lets other threads go on first.
void yield();

// The block's shared memory, aligned to 1,024 bytes; every byte is 0xff when the block starts.
inline std::byte* shared_memory() {
    return detail::here.shared;
}
inline std::size_t shared_bytes() {
    return detail::here.shared_bytes;
}

// An asynchronous copy into shared memory: its place is NaN until the thread has waited for it. Copies since the last
// commit are a group; wait_copies(n) ends all of the thread's groups but the last n.
void copy_later(void* shared, const void* global, std::size_t bytes);
void commit_copies();
void wait_copies(unsigned groups);

// Whether [place, place + bytes) lies in the block's shared memory.
inline bool is_shared(const void* place, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(place);
    return first >= shared_memory() && bytes <= shared_bytes() &&
           static_cast<std::size_t>(first - shared_memory()) <= shared_bytes() - bytes;
}

// What kernels of this OS thread have read and written in wide pieces, since it was last set to zero.
struct traffic {
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
};
inline traffic& counters() {
    constinit thread_local traffic counted;
    return counted;
}

// Ends the run: run_grid throws fault with this text, which should say what and where.
[[noreturn]] void raise_fault(const std::string& text);
// The same for an access that `what` names.
[[noreturn]] void raise_misaligned(const char* what, std::size_t bytes, const std::source_location& where);
[[noreturn]] void raise_outside_shared(const char* what, const std::source_location& where);

// "thread 5 (warp 0, lane 5) of block 2 at kernel.cuh:17"
std::string describe_here(const std::source_location& where);

} // namespace simt
