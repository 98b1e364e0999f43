// How long to measure, and with how much memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace demo {

struct effort {
    int rounds = 5;           // of every median
    double sample_us = 4'000; // that one time takes at least, where it is made of many calls
    bool tiny = false;        // few and small points: only to see that it works
};

// How often to call what takes about `us`.
inline std::int64_t calls_in(const effort& how, double us) {
    return us <= 0 ? 1 : std::clamp<std::int64_t>(static_cast<std::int64_t>(how.sample_us / us), 1, 500);
}

// Bytes that each rank may fill with numbers. config_error "memory" where there is too little for all of them.
std::size_t pool_size(const effort& how, std::int64_t ranks);

} // namespace demo
