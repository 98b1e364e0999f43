// Workspaces are the caller's memory; carving tells how much is needed and where each buffer lies, in one function.
//
// A class that needs scratch memory writes one `carve` function that takes() its buffers in order. Run over a null
// base it computes the size, run over a real one it yields the pointers: the two can not disagree. Every buffer starts
// on a 256-byte boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1 {

inline constexpr std::size_t workspace_alignment = 256;

// Memory that the caller owns and lends: at least `bytes` bytes at `data`, aligned to workspace_alignment.
struct workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
};

// Hands out consecutive aligned buffers; with a null base it only counts.
class carver {
public:
    explicit carver(void* base) : base_(static_cast<std::byte*>(base)) {}

    // `count` elements of T, uninitialised; null while counting. config_error "workspace" for a count that is
    // negative or takes 2^62 bytes or more.
    template <class T>
    T* take(std::int64_t count) {
        constexpr auto most = static_cast<std::int64_t>((std::size_t{1} << 62) / sizeof(T));
        require(count >= 0 && count <= most, "workspace", "a workspace buffer of ", count, " elements of ", sizeof(T),
                " bytes was asked for; a buffer has 0 to ", most);
        std::byte* place = base_ == nullptr ? nullptr : base_ + used_;
        const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
        used_ += (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
        return reinterpret_cast<T*>(place);
    }

    std::size_t bytes() const { return used_; }

private:
    std::byte* base_;
    std::size_t used_ = 0;
};

// Host memory that owns itself, for CPU ranks: converts to the workspace it is. Not initialised.
class host_workspace {
public:
    explicit host_workspace(std::size_t bytes)
        : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{workspace_alignment}))),
          bytes_(bytes) {}

    operator workspace() const { return {memory_.get(), bytes_}; }

private:
    struct release {
        void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{workspace_alignment}); }
    };
    std::unique_ptr<std::byte, release> memory_;
    std::size_t bytes_;
};

// Refuses a workspace that is null, misaligned or smaller than `needed` bytes, naming both sizes.
inline void check_workspace(const workspace& lent, std::size_t needed, const char* user) {
    require(lent.data != nullptr || needed == 0, "workspace", user, " needs a workspace of ", needed,
            " bytes and was given a null pointer");
    require(lent.bytes >= needed, "workspace", user, " needs a workspace of ", needed, " bytes and was given ",
            lent.bytes);
    require(reinterpret_cast<std::uintptr_t>(lent.data) % workspace_alignment == 0, "workspace", user,
            " needs a workspace aligned to ", workspace_alignment, " bytes");
}

} // namespace ctxpar::inline v0_1
