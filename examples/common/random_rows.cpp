#include "random_rows.hpp"

#include "wide.hpp"

namespace demo {
namespace {

std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

// Sums of four bytes of a hash of (row, i): close to normal, and exact in eight bits.
DEMO_INLINE void random_body(std::uint32_t row, std::int64_t count, float scale, float* to) {
    const auto size = static_cast<std::uint32_t>(count);
    for (std::uint32_t i = 0; i < size; ++i) {
        std::uint32_t x = row + i * 0x9e3779b9U;
        x = (x ^ (x >> 16)) * 0x7feb352dU;
        x = (x ^ (x >> 15)) * 0x846ca68bU;
        x ^= x >> 16;
        const std::uint32_t pairs = (x & 0x00ff00ffU) + ((x >> 8) & 0x00ff00ffU);
        const std::uint32_t sum = (pairs + (pairs >> 16)) & 0x7ffU;
        to[i] = static_cast<float>((static_cast<std::int32_t>(sum) - 510) >> 1) * scale;
    }
}
DEMO_WIDE void random_wide(std::uint32_t row, std::int64_t count, float scale, float* to) {
    random_body(row, count, scale, to);
}

} // namespace

std::uint32_t row_hash(std::uint64_t seed, row_use use, std::int64_t layer, std::int64_t request, std::int64_t place,
                       std::int64_t head) {
    const auto part = [](std::int64_t value, std::uint64_t factor) {
        return static_cast<std::uint64_t>(value) * factor;
    };
    const std::uint64_t sum = mix(seed) + static_cast<std::uint64_t>(use) * 0x9e3779b97f4a7c15U +
                              part(layer, 0xd6e8feb86659fd93U) + part(request, 0xa0761d6478bd642fU) +
                              part(place, 0xe7037ed1a0b428dbU) + part(head, 0x8ebc6af09c88c6e3U);
    return static_cast<std::uint32_t>(mix(sum) >> 32);
}

void random_row(std::uint32_t row, std::int64_t count, float scale, float* to) {
    if (wide_is_there()) return random_wide(row, count, scale, to);
    random_body(row, count, scale, to);
}

} // namespace demo
