// Memory: how much there is, and pools to spend it on.
#pragma once

#include <cstddef>
#include <memory>

namespace demo {

// Bytes that this process may still take: the kernel's MemAvailable, or less where a control group has a limit.
double available_memory();

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
