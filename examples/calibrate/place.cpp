#include "place.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

namespace demo {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t core_cache = std::size_t{2} << 20;
constexpr std::size_t cache_line = 64;

std::uint64_t mixed(std::uint64_t x) {
    x = (x + 1) * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
    return x ^ (x >> 29);
}

} // namespace

void keep_to_core(int rank) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return;
    std::vector<unsigned> cores;
    for (unsigned core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    CPU_ZERO(&set);
    CPU_SET(cores[static_cast<std::size_t>(rank) % cores.size()], &set);
    sched_setaffinity(0, sizeof(set), &set);
}

double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_seconds() {
    timespec spent{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

double host_seconds() {
    std::ifstream file("/proc/stat");
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, more_interrupts = 0, stolen = 0;
    file >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> more_interrupts >> stolen;
    if (!file) return 0;
    return (user + nice + system + interrupts + more_interrupts + stolen) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown processor";
}

std::uint64_t four_numbers(std::uint64_t stream, std::uint64_t index) {
    // The sign, the lowest bit of the exponent and the mantissa are random.
    return (mixed(mixed(stream) + index) & 0x80ff80ff80ff80ffU) + 0x3e803e803e803e80U;
}

void fill_with_numbers(std::byte* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
        const std::uint64_t word = four_numbers(0, i);
        std::memcpy(data + i * sizeof(word), &word, sizeof(word));
    }
}

number_pool::mapping number_pool::map(std::size_t bytes) {
    const mapping made{
        mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
        bytes + huge_page};
    if (made.at == MAP_FAILED) throw std::bad_alloc();
    return made;
}

std::byte* number_pool::first_page(const mapping& mapped) {
    const auto at = reinterpret_cast<std::uintptr_t>(mapped.at);
    return static_cast<std::byte*>(mapped.at) + ((at + huge_page - 1) / huge_page * huge_page - at);
}

number_pool::number_pool(std::size_t bytes) : number_pool(map(bytes), bytes) {}

number_pool::number_pool(const mapping& mapped, std::size_t bytes)
    : memory_in_turn(first_page(mapped), bytes), mapped_(mapped) {
    madvise(data(), bytes, MADV_HUGEPAGE); // advice only
    fill_with_numbers(data(), bytes);
}

std::byte* memory_in_turn::next(std::size_t bytes) {
    if (bytes > bytes_ - next_) next_ = 0;
    std::byte* const at = data_ + next_;
    next_ += bytes;
    return at;
}

void number_pool::read_through() {
    const std::size_t bytes = std::min(this->bytes(), core_cache);
    const std::byte* const at = next(bytes);
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= bytes; i += cache_line) {
        std::uint64_t word = 0;
        std::memcpy(&word, at + i, sizeof(word));
        seen_ += word;
    }
}

number_pool::~number_pool() {
    munmap(mapped_.at, mapped_.bytes);
}

} // namespace demo
