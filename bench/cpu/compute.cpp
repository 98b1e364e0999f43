#include "compute.hpp"

#include <array>
#include <cstring>

#include "random.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace bench {
namespace {

volatile float kept; // so that results are needed

#if defined(__x86_64__)

// Whether the processor has AMX with bf16, the kernel saves its registers, and this process may use them, which it has
// to ask for once.
bool may_use_amx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    constexpr unsigned bf16_and_tile = (1U << 22) | (1U << 24);
    if ((d & bf16_and_tile) != bf16_and_tile) return false;
    if (__get_cpuid_count(1, 0, &a, &b, &c, &d) == 0 || (c & (1U << 27)) == 0) return false; // xgetbv
    unsigned low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned tiles = (1U << 17) | (1U << 18);
    if ((low & tiles) != tiles) return false;
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

bool has_amx() {
    static const bool there = may_use_amx();
    return there;
}

// As the processor reads it: palette, rows and bytes of a row of each tile.
struct alignas(64) tile_config {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};
static_assert(sizeof(tile_config) == 64);

// Six sums of 16 x 16, two operands of 16 x 32: enough products are under way to hide their latency.
__attribute__((target("amx-tile,amx-bf16"))) double compute_amx(std::int64_t rounds) {
    constexpr int steps = 64; // of six products, each in 16 cycles
    tile_config config;
    for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = 16;
    }
    alignas(64) std::array<std::uint64_t, 256> operands{};
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = four_bf16(i);
    alignas(64) std::array<float, 256> sums{};
    const long pitch = 64;
    asm volatile("ldtilecfg %0" : : "m"(config));
    asm volatile("tileloadd (%0,%1,1), %%tmm6\n\t"
                 "tileloadd (%2,%1,1), %%tmm7"
                 :
                 : "r"(operands.data()), "r"(pitch), "r"(operands.data() + 128)
                 : "memory");
    for (std::int64_t round = 0; round < rounds; ++round) {
        asm volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"
                     "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5" ::
                         : "memory");
        for (int step = 0; step < steps; ++step)
            asm volatile("tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n\t"
                         "tdpbf16ps %%tmm7, %%tmm6, %%tmm1\n\t"
                         "tdpbf16ps %%tmm7, %%tmm6, %%tmm2\n\t"
                         "tdpbf16ps %%tmm7, %%tmm6, %%tmm3\n\t"
                         "tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n\t"
                         "tdpbf16ps %%tmm7, %%tmm6, %%tmm5" ::
                             : "memory");
    }
    asm volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilerelease" : : "r"(sums.data()), "r"(pitch) : "memory");
    kept = sums[0];
    return static_cast<double>(rounds) * steps * 6 * (2.0 * 16 * 16 * 32);
}

// Multiply-adds of Lanes fp32 numbers in 12 independent sums, which stay bounded as factors are less than 1. As inline
// assembly, so that no compiler makes anything else of them.
constexpr int fma_steps = 256;

std::array<float, 32> fma_operands() {
    std::array<float, 32> values{};
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.75F * random_number(1, i);
    return values;
}

#define BENCH_LOAD(set, i) "vmovups (%1), %%" set "mm" #i "\n\t"
#define BENCH_FMA(set, i) "vfmadd213ps %%" set "mm15, %%" set "mm14, %%" set "mm" #i "\n\t"
#define BENCH_SIX(each, set) each(set, 0) each(set, 1) each(set, 2) each(set, 3) each(set, 4) each(set, 5)
#define BENCH_MORE(each, set) each(set, 6) each(set, 7) each(set, 8) each(set, 9) each(set, 10) each(set, 11)
// clang-format off
#define BENCH_FMA_LOOP(set)                                                                                            \
    const std::array<float, 32> values = fma_operands();                                                               \
    std::int64_t left = rounds * fma_steps;                                                                            \
    asm volatile(BENCH_SIX(BENCH_LOAD, set) BENCH_MORE(BENCH_LOAD, set) BENCH_LOAD(set, 14)                            \
                 "vmovups 64(%1), %%" set "mm15\n\t"                                                                   \
                 "1:\n\t"                                                                                              \
                 BENCH_SIX(BENCH_FMA, set) BENCH_MORE(BENCH_FMA, set)                                                  \
                 "dec %0\n\t"                                                                                          \
                 "jnz 1b\n\t"                                                                                          \
                 "vzeroupper"                                                                                          \
                 : "+r"(left)                                                                                          \
                 : "r"(values.data())                                                                                  \
                 : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
                   "xmm10", "xmm11", "xmm14", "xmm15")
// clang-format on

__attribute__((target("avx512f"))) double compute_avx512(std::int64_t rounds) {
    BENCH_FMA_LOOP("z");
    return static_cast<double>(rounds) * fma_steps * 12 * (2.0 * 16);
}
__attribute__((target("avx2,fma"))) double compute_avx2(std::int64_t rounds) {
    BENCH_FMA_LOOP("y");
    return static_cast<double>(rounds) * fma_steps * 12 * (2.0 * 8);
}
#undef BENCH_FMA_LOOP
#undef BENCH_MORE
#undef BENCH_SIX
#undef BENCH_FMA
#undef BENCH_LOAD

#endif

// Any processor: as good as the compiler makes it.
double compute_plain(std::int64_t rounds) {
    constexpr int steps = 256;
    std::array<float, 64> sums{}, x{}, y{};
    for (std::size_t i = 0; i < sums.size(); ++i) {
        x[i] = 0.75F * random_number(1, i);
        y[i] = random_number(2, i);
    }
    for (std::int64_t round = 0; round < rounds * steps; ++round)
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] * x[i] + y[i];
    for (const float sum : sums) kept = sum;
    return static_cast<double>(rounds) * steps * static_cast<double>(sums.size()) * 2.0;
}

} // namespace

std::string compute_name() {
#if defined(__x86_64__)
    if (has_amx()) return "amx bf16";
    if (__builtin_cpu_supports("avx512f")) return "avx512 fp32 fma";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2 fp32 fma";
#endif
    return "fp32";
}

double compute(std::int64_t rounds) {
#if defined(__x86_64__)
    if (has_amx()) return compute_amx(rounds);
    if (__builtin_cpu_supports("avx512f")) return compute_avx512(rounds);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return compute_avx2(rounds);
#endif
    return compute_plain(rounds);
}

} // namespace bench
