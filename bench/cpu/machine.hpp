// The machine that is measured: the CPUs that may be used, its last-level cache, and memory in huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace bench {

// Keeps the process to the first `most` of the CPUs it may use (0: all of them). Threads made later inherit that, so
// this is called before any is: the pool of a backend and the threads of ranks then run on these CPUs and no others.
void use_cpus(int most);

// How many there are.
int cpus();

// Calls work(index) on `threads` threads, each bound to a CPU of its own, and returns the seconds from the moment when
// all were ready until the last one was done.
double run_bound(int threads, const std::function<void(int)>& work);

// Bytes that the last-level cache has, as the processor reports it; 0 where it does not say.
std::size_t cache_bytes();

// Bytes that this process may still take.
double free_memory();

// Zeros from the kernel, in huge pages where it gives them, aligned to 2 MiB. Pages that nobody touched take nothing.
class huge_memory {
public:
    explicit huge_memory(std::size_t bytes);
    huge_memory(const huge_memory&) = delete;
    huge_memory& operator=(const huge_memory&) = delete;
    ~huge_memory();

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    void* mapped_ = nullptr;
    std::size_t mapped_bytes_ = 0;
};

// The first `bytes` bytes of the memory in which all benchmarks keep their caches. They hold bf16 numbers with random
// signs and magnitudes from 0.25 to 1, and so do they read as fp32, until a benchmark writes something else there.
std::byte* numbers(std::size_t bytes);

} // namespace bench
