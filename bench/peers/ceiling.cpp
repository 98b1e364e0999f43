// The speed at which this machine reads memory, by one thread and by all: what a decode step is compared with.
#include <atomic>
#include <thread>

#include "problem.hpp"

namespace {

// Adds up the words of a piece in many sums, which a compiler turns into wide loads on any machine.
std::uint64_t sum_of(const std::uint64_t* words, std::int64_t count) {
    constexpr std::int64_t lanes = 32;
    std::uint64_t sums[lanes] = {};
    for (std::int64_t i = 0; i + lanes <= count; i += lanes)
        for (std::int64_t lane = 0; lane < lanes; ++lane) sums[lane] += words[i + lane];
    std::uint64_t sum = 0;
    for (const std::uint64_t one : sums) sum += one;
    return sum;
}

// Bytes a second; threads take pieces of 1 MiB in turn.
double read_once(const peers::memory<std::uint64_t>& words, std::int64_t threads) {
    constexpr std::int64_t piece = (1 << 20) / sizeof(std::uint64_t);
    const auto pieces = static_cast<std::int64_t>(words.bytes() / sizeof(std::uint64_t)) / piece;
    std::atomic<std::int64_t> next{0};
    std::atomic<std::uint64_t> total{0}; // so that the reads are needed
    const auto work = [&] {
        for (std::int64_t i = next++; i < pieces; i = next++) total += sum_of(words.data() + i * piece, piece);
    };
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (std::int64_t i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    return static_cast<double>(words.bytes()) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

// ceiling BYTES THREADS: the best of some readings of so many bytes, one thread and all in turn, as JSON.
int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: ceiling BYTES THREADS\n");
        return 2;
    }
    const peers::memory<std::uint64_t> words(std::atoll(argv[1]) / std::int64_t{sizeof(std::uint64_t)});
    const std::int64_t threads = std::max(1LL, std::atoll(argv[2]));
    std::memset(words.data(), 1, words.bytes());
    double one = 0.0;
    double all = 0.0;
    for (int run = 0; run < 5; ++run) {
        one = std::max(one, read_once(words, 1));
        all = std::max(all, read_once(words, threads));
    }
    std::printf("{\"bytes\": %zu, \"one_thread\": %.6g, \"all_threads\": %.6g}\n", words.bytes(), one, all);
}
