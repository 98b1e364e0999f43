#include "ceiling.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/wide.hpp"

namespace demo {
namespace {

// Adds up all words, from four places at once: that is a few percent faster than from one.
DEMO_INLINE std::uint64_t read_body(std::span<const std::byte> bytes) {
    const std::size_t words = bytes.size() / sizeof(std::uint64_t) / 4;
    const auto word = [&](std::size_t part, std::size_t i) {
        std::uint64_t value;
        std::memcpy(&value, bytes.data() + (part * words + i) * sizeof(value), sizeof(value));
        return value;
    };
    std::uint64_t sum[4] = {};
    for (std::size_t i = 0; i < words; ++i) {
        sum[0] += word(0, i);
        sum[1] += word(1, i);
        sum[2] += word(2, i);
        sum[3] += word(3, i);
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}
DEMO_WIDE std::uint64_t read_wide(std::span<const std::byte> bytes) {
    return read_body(bytes);
}

} // namespace

double read_bandwidth(const std::vector<std::span<const std::byte>>& pools, std::int64_t threads) {
    constexpr std::size_t piece = std::size_t{4} << 20;
    std::vector<std::span<const std::byte>> pieces;
    double bytes = 0.0;
    for (const auto& pool : pools) {
        bytes += static_cast<double>(pool.size());
        for (std::size_t at = 0; at < pool.size(); at += piece)
            pieces.push_back(pool.subspan(at, std::min(piece, pool.size() - at)));
    }
    double best = 0.0;
    std::atomic<std::uint64_t> total{0}; // so that the reads are needed
    for (int run = 0; run < 4; ++run) {
        std::atomic<std::size_t> next{0};
        const auto work = [&] {
            std::uint64_t sum = 0;
            for (std::size_t i = next++; i < pieces.size(); i = next++)
                sum += wide_is_there() ? read_wide(pieces[i]) : read_body(pieces[i]);
            total += sum;
        };
        const auto start = std::chrono::steady_clock::now();
        std::vector<std::thread> others;
        for (std::int64_t i = 1; i < threads; ++i) others.emplace_back(work);
        work();
        for (std::thread& other : others) other.join();
        best = std::max(best, bytes / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

} // namespace demo
