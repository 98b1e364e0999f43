#include "effort.hpp"

#include <algorithm>

#include <ctxpar/core/error.hpp>

#include "common/memory.hpp"

namespace demo {

std::size_t pool_size(const effort& how, std::int64_t ranks) {
    constexpr std::size_t mib = std::size_t{1} << 20;
    const auto there =
        static_cast<std::size_t>(std::min(available_memory() / 2, 0x1p50)) / static_cast<std::size_t>(ranks);
    const std::size_t least = (how.tiny ? 32 : 256) * mib, most = how.tiny ? least : 1024 * mib;
    ctxpar::require(there >= least, "memory", "there are ", there / mib, " MiB of memory for each of ", ranks,
                    " ranks; there must be ", least / mib);
    return std::min(most, there) / (2 * mib) * (2 * mib);
}

} // namespace demo
