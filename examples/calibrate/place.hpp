// Where a rank works: one core of its own, and memory of numbers to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace demo {

// Keeps the calling thread to one of the cores that the process may use, the rank-th of them. Ranks may outnumber them.
void keep_to_core(int rank);

double now_us();

// Seconds of processor time: of the calling thread, and of all that ran on this host since it started, or 0 where that
// is not told.
double thread_seconds();
double host_seconds();

// As the processor calls itself; "unknown processor" where that is not told.
std::string processor_name();

// Memory that is used in turn, a piece after another.
class memory_in_turn {
public:
    memory_in_turn(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
    memory_in_turn(const memory_in_turn&) = delete;
    memory_in_turn& operator=(const memory_in_turn&) = delete;

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

    // The next so many bytes, from the beginning again where the end is near: the last to have been in a cache.
    std::byte* next(std::size_t bytes);

private:
    std::byte* data_;
    std::size_t bytes_;
    std::size_t next_ = 0;
};

// Memory in huge pages where the kernel gives them, full of bf16 numbers from 0.25 to 1 with random signs. Filled by
// the thread that makes it, so that it lies where that thread works.
class number_pool : public memory_in_turn {
public:
    explicit number_pool(std::size_t bytes);
    ~number_pool();

    // Reads as much as a core's own caches hold, so that what was in them is not any more.
    void read_through();

private:
    struct mapping {
        void* at = nullptr;
        std::size_t bytes = 0;
    };
    number_pool(const mapping& mapped, std::size_t bytes);
    static mapping map(std::size_t bytes);
    static std::byte* first_page(const mapping& mapped);

    mapping mapped_;
    std::uint64_t seen_ = 0;
};

// Four such numbers, always the same for a stream and index.
std::uint64_t four_numbers(std::uint64_t stream, std::uint64_t index);

// Fills memory with them, as a pool is.
void fill_with_numbers(std::byte* data, std::size_t bytes);

} // namespace demo
