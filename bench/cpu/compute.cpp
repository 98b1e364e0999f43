#include "compute.hpp"

#include <array>
#include <cstring>

#include <ctxpar/backend/cpu/amx.hpp>
#include <ctxpar/backend/cpu/isa.hpp>

#include "random.hpp"

namespace bench {
namespace {

volatile float kept; // so that results are needed

#if defined(__x86_64__)

// Six sums of 16 x 16, two operands of 16 x 32: enough products are under way to hide their latency.
CTXPAR_TARGET_AMX double compute_amx(std::int64_t rounds) {
    using namespace ctxpar::cpu;
    constexpr int steps = 64; // of six products, each in 16 cycles
    alignas(64) std::array<std::uint64_t, 256> operands{};
    for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = four_bf16(i);
    alignas(64) std::array<float, 256> sums{};
    constexpr std::int64_t pitch = 64;
    amx_open();
    amx_load<6>(operands.data(), pitch);
    amx_load<7>(operands.data() + 128, pitch);
    for (std::int64_t round = 0; round < rounds; ++round) {
        amx_zero<0>();
        amx_zero<1>();
        amx_zero<2>();
        amx_zero<3>();
        amx_zero<4>();
        amx_zero<5>();
        for (int step = 0; step < steps; ++step) {
            amx_multiply<0, 6, 7>();
            amx_multiply<1, 6, 7>();
            amx_multiply<2, 6, 7>();
            amx_multiply<3, 6, 7>();
            amx_multiply<4, 6, 7>();
            amx_multiply<5, 6, 7>();
        }
    }
    amx_store<0>(sums.data(), pitch);
    amx_close();
    kept = sums[0];
    return static_cast<double>(rounds) * steps * 6 * (2.0 * amx_side * amx_side * amx_depth);
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
    if (ctxpar::cpu::may_use_amx()) return "amx bf16";
    if (__builtin_cpu_supports("avx512f")) return "avx512 fp32 fma";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2 fp32 fma";
#endif
    return "fp32";
}

double compute(std::int64_t rounds) {
#if defined(__x86_64__)
    if (ctxpar::cpu::may_use_amx()) return compute_amx(rounds);
    if (__builtin_cpu_supports("avx512f")) return compute_avx512(rounds);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return compute_avx2(rounds);
#endif
    return compute_plain(rounds);
}

} // namespace bench
