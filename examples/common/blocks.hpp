// What an engine prepares for a paged cache: the ids of its blocks, and numbers in the cache's own type.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>

namespace demo {

// Converts numbers that are exact in E.
template <class E>
void store_exact(const std::vector<float>& from, E* to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
        if constexpr (std::is_same_v<E, ctxpar::bf16>) {
            to[i] = E::from_bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[i]) >> 16));
        } else {
            to[i] = static_cast<E>(from[i]);
        }
    }
}

// The block ids of all requests, in an order as a pool in use would have it; the same on every rank.
inline std::vector<std::int32_t> scattered_blocks(std::int64_t blocks) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    ctxpar::require(blocks <= most, "block_size", "the requests have ", blocks,
                    " blocks, and their ids have 32 bits: ", most, " are the most; take larger blocks");
    auto stride = static_cast<std::int64_t>(0.618 * static_cast<double>(blocks)) | 1;
    while (std::gcd(stride, blocks) != 1) stride += 2;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
    for (std::int64_t i = 0; i < blocks; ++i)
        ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * stride % blocks);
    return ids;
}

} // namespace demo
