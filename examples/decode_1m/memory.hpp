// Memory: how much there is, how much the example needs, and the pools it is spent on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "problem.hpp"

namespace demo {

// Bytes that this process may still take: the kernel's MemAvailable, or less where a control group has a limit.
double available_memory();

// About how many bytes the whole run takes.
double needed_memory(const problem& all);

// The largest power of two of tokens, at most `all.tokens`, that fits `bytes`; 0 where not even 1024 tokens do.
std::int64_t fitting_tokens(problem all, double bytes);

// Memory of its own for one rank and layer, aligned to pages. bytes() is what the allocator was asked for.
class pool {
public:
    pool() = default;
    explicit pool(std::size_t bytes);

    std::byte* data() const { return memory_.get(); }
    std::size_t bytes() const { return bytes_; }

private:
    struct release {
        std::size_t alignment;
        void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte[], release> memory_{nullptr, release{0}};
    std::size_t bytes_ = 0;
};

} // namespace demo
