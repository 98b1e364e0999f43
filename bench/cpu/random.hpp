// Random numbers that follow from where they belong, so that they can be made again.
#pragma once

#include <bit>
#include <cstdint>

namespace bench {

constexpr std::uint64_t mixed(std::uint64_t x) {
    x = (x + 1) * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
    return x ^ (x >> 29);
}

// Four bf16 numbers: sign, lowest bit of the exponent and mantissa are random, the exponent is that of 0.25 or 0.5.
constexpr std::uint64_t four_bf16(std::uint64_t index) {
    return (mixed(index) & 0x80ff80ff80ff80ffU) + 0x3e803e803e803e80U;
}

// The bf16 at an index of a stream of its own, as fp32.
constexpr float random_number(std::uint64_t stream, std::uint64_t index) {
    const std::uint64_t word = four_bf16(mixed(stream) + index);
    return std::bit_cast<float>(static_cast<std::uint32_t>(word & 0xffff) << 16);
}

// The nearest bf16 of a finite number, by its bits.
constexpr std::uint16_t bf16_bits(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
constexpr float bf16_value(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

} // namespace bench
