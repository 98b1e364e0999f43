// The choice of an instruction set.
#include <doctest/doctest.h>

#include <string>

#include <ctxpar/backend/cpu/isa.hpp>

using namespace ctxpar::cpu;

TEST_CASE("Instruction sets have names") {
    CHECK(std::string(name_of(isa::portable)) == "portable");
    CHECK(std::string(name_of(isa::avx2)) == "avx2");
    CHECK(std::string(name_of(isa::avx512)) == "avx512");
}

TEST_CASE("The chosen instruction set is the widest that the processor has, each time") {
    const isa best = best_isa();
    CHECK(best_isa() == best);
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    CHECK(best == (avx512 ? isa::avx512 : (avx2 ? isa::avx2 : isa::portable)));
#else
    CHECK(best == isa::portable);
#endif
}
