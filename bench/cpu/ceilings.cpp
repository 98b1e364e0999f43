#include "ceilings.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>

#include "compute.hpp"
#include "machine.hpp"
#include "random.hpp"

#if defined(__x86_64__)
#define BENCH_AVX2 __attribute__((target("avx2")))
#if defined(__clang__) // does not know the width that GCC has to be told
#define BENCH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#else
#define BENCH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512")))
#endif
#else
#define BENCH_AVX2
#define BENCH_AVX512
#endif

namespace bench {
namespace {

std::atomic<std::uint64_t> read_sum{0}; // so that the reads are needed

// Adds up all words, from four places at once: that is a few percent faster than from one.
[[gnu::always_inline]] inline std::uint64_t read_body(const std::byte* bytes, std::size_t count) {
    const std::size_t words = count / sizeof(std::uint64_t) / 4;
    const auto word = [&](std::size_t part, std::size_t i) {
        std::uint64_t value;
        std::memcpy(&value, bytes + (part * words + i) * sizeof(value), sizeof(value));
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
std::uint64_t read_plain(const std::byte* bytes, std::size_t count) {
    return read_body(bytes, count);
}
BENCH_AVX2 std::uint64_t read_avx2(const std::byte* bytes, std::size_t count) {
    return read_body(bytes, count);
}
BENCH_AVX512 std::uint64_t read_avx512(const std::byte* bytes, std::size_t count) {
    return read_body(bytes, count);
}

using reader = std::uint64_t (*)(const std::byte*, std::size_t);

// All that this processor can run: which is fastest is seen by trying.
std::vector<reader> readers() {
    std::vector<reader> all{read_plain};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) all.push_back(read_avx2);
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) all.push_back(read_avx512);
#endif
    return all;
}

double best_read(const huge_memory& memory, int threads, int tries) {
    constexpr std::size_t piece = std::size_t{4} << 20;
    double best = 0.0;
    for (const reader read : readers())
        for (int i = 0; i < tries; ++i) {
            std::atomic<std::size_t> next{0};
            const double seconds = run_bound(threads, [&](int) {
                std::uint64_t sum = 0;
                for (std::size_t at = next.fetch_add(piece); at < memory.bytes(); at = next.fetch_add(piece))
                    sum += read(memory.data() + at, std::min(piece, memory.bytes() - at));
                read_sum += sum;
            });
            best = std::max(best, static_cast<double>(memory.bytes()) / seconds);
        }
    return best;
}

// The first half to the second, one memcpy a thread.
double best_copy(const huge_memory& memory, int threads, int tries) {
    const std::size_t half = memory.bytes() / 2;
    double best = 0.0;
    for (int i = 0; i < tries; ++i) {
        const double seconds = run_bound(threads, [&](int index) {
            const auto part = static_cast<std::size_t>(index), parts = static_cast<std::size_t>(threads);
            const std::size_t first = half * part / parts, last = half * (part + 1) / parts;
            std::memcpy(memory.data() + half + first, memory.data() + first, last - first);
        });
        best = std::max(best, 2.0 * static_cast<double>(half) / seconds);
    }
    return best;
}

double best_flops(int threads, int tries, double seconds_each) {
    const auto rounds = static_cast<std::int64_t>(seconds_each / round_seconds);
    double best = 0.0;
    for (int i = 0; i < tries; ++i) {
        std::vector<double> done(static_cast<std::size_t>(threads));
        const double seconds =
            run_bound(threads, [&](int index) { done[static_cast<std::size_t>(index)] = compute(rounds); });
        double sum = 0.0;
        for (const double each : done) sum += each;
        best = std::max(best, sum / seconds);
    }
    return best;
}

std::string ratio_text(const char* what, double ratio) {
    char text[96];
    std::snprintf(text, sizeof(text), "two threads %s only %.2f times as fast as one", what, ratio);
    return text;
}

} // namespace

const ceiling& ceilings::of(int threads) const {
    for (const ceiling& each : all)
        if (each.threads >= threads) return each;
    return all.back();
}

ceilings measure_ceilings(bool small) {
    // More than twice the largest cache that was seen to be reported, and so that half of it does not stay there.
    const std::size_t bytes = small ? std::size_t{8} << 20 : std::max(std::size_t{1} << 30, 2 * cache_bytes());
    const huge_memory memory(bytes);
    run_bound(cpus(), [&](int index) {
        const auto part = static_cast<std::size_t>(index), parts = static_cast<std::size_t>(cpus());
        for (std::size_t i = bytes / 8 * part / parts; i < bytes / 8 * (part + 1) / parts; ++i) {
            const std::uint64_t word = four_bf16(i);
            std::memcpy(memory.data() + i * 8, &word, 8);
        }
    });
    ceilings measured;
    measured.compute = compute_name();
    for (const int threads : std::set<int>{1, std::min(2, cpus()), cpus()}) {
        ceiling one;
        one.threads = threads;
        one.read_bytes = best_read(memory, threads, small ? 1 : 3);
        one.copy_bytes = best_copy(memory, threads, small ? 1 : 4);
        one.flops = best_flops(threads, small ? 1 : 4, small ? 1e-4 : 0.1);
        measured.all.push_back(one);
    }
    return measured;
}

std::string doubt(const ceilings& measured) {
    constexpr double least = 1.8;
    const ceiling& one = measured.of(1);
    const ceiling& two = measured.of(2);
    if (two.threads < 2) return "there is one CPU, so that nothing tells whether others use it";
    const double read = two.read_bytes / one.read_bytes;
    const double flops = two.flops / one.flops;
    if (read < least) return ratio_text("read", read);
    return flops < least ? ratio_text("multiply", flops) : std::string();
}

ceilings best_of(const ceilings& a, const ceilings& b) {
    ceilings best = a;
    for (std::size_t i = 0; i < best.all.size(); ++i) {
        best.all[i].read_bytes = std::max(a.all[i].read_bytes, b.all[i].read_bytes);
        best.all[i].copy_bytes = std::max(a.all[i].copy_bytes, b.all[i].copy_bytes);
        best.all[i].flops = std::max(a.all[i].flops, b.all[i].flops);
    }
    return best;
}

} // namespace bench
