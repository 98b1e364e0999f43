#include "machine.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "random.hpp"

namespace bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t most_numbers = std::size_t{64} << 30; // of addresses, not of memory

std::vector<int>& cpu_list() {
    static std::vector<int> list;
    return list;
}

void bind_to(const std::vector<int>& list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : list) CPU_SET(static_cast<unsigned>(cpu), &set);
    sched_setaffinity(0, sizeof(set), &set);
}

} // namespace

void use_cpus(int most) {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    std::vector<int>& list = cpu_list();
    list.clear();
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(static_cast<unsigned>(cpu), &set)) list.push_back(cpu);
    if (most > 0 && static_cast<std::size_t>(most) < list.size()) list.resize(static_cast<std::size_t>(most));
    bind_to(list);
}

int cpus() {
    return static_cast<int>(cpu_list().size());
}

double run_bound(int threads, const std::function<void(int)>& work) {
    using clock = std::chrono::steady_clock;
    std::vector<clock::time_point> begins(static_cast<std::size_t>(threads)), ends(begins);
    std::barrier<> ready(threads);
    std::vector<std::thread> all;
    for (int index = 0; index < threads; ++index)
        all.emplace_back([&, index] {
            bind_to({cpu_list()[static_cast<std::size_t>(index) % cpu_list().size()]});
            ready.arrive_and_wait();
            begins[static_cast<std::size_t>(index)] = clock::now();
            work(index);
            ends[static_cast<std::size_t>(index)] = clock::now();
        });
    for (std::thread& thread : all) thread.join();
    return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) -
                                         *std::min_element(begins.begin(), begins.end()))
        .count();
}

std::size_t cache_bytes() {
    long most = 0;
    for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
        most = std::max(most, sysconf(level));
    return static_cast<std::size_t>(most);
}

double free_memory() {
    std::ifstream file("/proc/meminfo");
    std::string name, unit;
    double kib = 0.0;
    while (file >> name >> kib && std::getline(file, unit))
        if (name == "MemAvailable:") return kib * 1024;
    return 0.0;
}

huge_memory::huge_memory(std::size_t bytes) : bytes_(bytes), mapped_bytes_(bytes + huge_page) {
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    const auto at = reinterpret_cast<std::uintptr_t>(mapped_);
    data_ = static_cast<std::byte*>(mapped_) + ((at + huge_page - 1) / huge_page * huge_page - at);
    madvise(data_, bytes, MADV_HUGEPAGE); // advice only
}

huge_memory::~huge_memory() {
    munmap(mapped_, mapped_bytes_);
}

std::byte* numbers(std::size_t bytes) {
    static huge_memory memory(most_numbers);
    static std::size_t filled = 0;
    if (bytes > memory.bytes()) throw std::bad_alloc();
    if (bytes <= filled) return memory.data();
    const std::size_t end = std::min(memory.bytes(), (bytes + huge_page - 1) / huge_page * huge_page);
    const auto parts = static_cast<std::size_t>(cpus());
    const std::size_t words = (end - filled) / sizeof(std::uint64_t);
    run_bound(cpus(), [&](int index) {
        const auto part = static_cast<std::size_t>(index);
        const std::size_t first = words * part / parts, last = words * (part + 1) / parts;
        for (std::size_t i = first; i < last; ++i) {
            const std::uint64_t word = four_bf16(filled / sizeof(word) + i);
            std::memcpy(memory.data() + filled + i * sizeof(word), &word, sizeof(word));
        }
    });
    filled = end;
    return memory.data();
}

} // namespace bench
