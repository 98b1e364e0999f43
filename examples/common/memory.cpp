#include "memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace demo {
namespace {

constexpr std::size_t small_page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr double no_limit = std::numeric_limits<double>::infinity();

// The first number of a file; infinity where there is none, as in "max".
double number_in(const std::string& path) {
    std::ifstream file(path);
    double value = 0.0;
    return file >> value ? value : no_limit;
}

// The number behind `name` in a file of names and numbers.
double number_named(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string first;
        double value = 0.0;
        if (words >> first >> value && first == name) return value;
    }
    return 0.0;
}

// What a control group leaves: its limit less its usage; file pages that it can give back do not count.
double left_in_group(const std::string& folder, const char* limit, const char* usage, const char* reclaimable) {
    const double most = number_in(folder + "/" + limit);
    const double used = number_in(folder + "/" + usage);
    if (most == no_limit || used == no_limit) return no_limit;
    return most - used + number_named(folder + "/memory.stat", reclaimable);
}

// The least that this process's group and the groups around it leave. Lines of the file are id:controllers:path.
double left_in_groups() {
    std::ifstream file("/proc/self/cgroup");
    std::string line;
    double least = no_limit;
    while (std::getline(file, line)) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool unified = controllers.empty();
        if (!unified && controllers != "memory") continue;
        std::string path = line.substr(second + 1);
        for (;;) {
            const std::string folder = (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + path;
            least = std::min(least, unified ? left_in_group(folder, "memory.max", "memory.current", "inactive_file")
                                            : left_in_group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                                            "total_inactive_file"));
            if (path.empty() || path == "/") break;
            path.resize(path.rfind('/'));
        }
    }
    return least;
}

} // namespace

double available_memory() {
    const double machine = number_named("/proc/meminfo", "MemAvailable:") * 1024;
    return std::min(machine == 0.0 ? no_limit : machine, left_in_groups());
}

pool::pool(std::size_t bytes) : bytes_(bytes) {
    const std::size_t alignment = bytes >= huge_page ? huge_page : small_page;
    auto* memory = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{alignment}));
    memory_ = {memory, release{alignment}};
#if defined(__linux__)
    madvise(memory, bytes, MADV_HUGEPAGE); // advice only: without it every block costs page faults and look-ups
#endif
}

void pool::release::operator()(std::byte* memory) const {
    ::operator delete (memory, std::align_val_t{alignment});
}

} // namespace demo
