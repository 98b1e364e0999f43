// The choice of an instruction set.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include <support/instruction_sets.hpp>
#include <support/refusal.hpp>

#include <ctxpar/backend/cpu.hpp>

using namespace ctxpar::cpu;

TEST_CASE("Instruction sets have names") {
    CHECK(std::string(name_of(isa::portable)) == "portable");
    CHECK(std::string(name_of(isa::avx2)) == "avx2");
    CHECK(std::string(name_of(isa::avx512)) == "avx512");
    CHECK(std::string(name_of(isa::amx)) == "amx");
}

TEST_CASE("The chosen instruction set is the widest that the processor has, each time") {
    const isa best = best_isa();
    CHECK(best_isa() == best);
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    CHECK(best_vector_isa() == (avx512 ? isa::avx512 : (avx2 ? isa::avx2 : isa::portable)));
    CHECK(best == (avx512 && may_use_amx() ? isa::amx : best_vector_isa()));
#else
    CHECK(best == isa::portable);
#endif
}

TEST_CASE("The environment may ask for fewer instructions, and not for what there is not") {
    const char* const before = std::getenv("CTXPAR_CPU");
    const std::string kept = before == nullptr ? "" : before;
    for (const isa set : ctxpar_test::instruction_sets()) {
        setenv("CTXPAR_CPU", name_of(set), 1);
        CHECK(default_isa() == set);
        CHECK(ctxpar::cpu_backend().instructions() == set);
    }
    setenv("CTXPAR_CPU", "sse9", 1);
    const auto refusal = ctxpar_test::refusal_of([] { ctxpar::cpu_backend(); });
    CHECK(ctxpar_test::says(refusal, "instructions", {"sse9", "portable"}));
    const bool emulated = std::exchange(amx_is_emulated, false);
    if (!may_use_amx()) {
        setenv("CTXPAR_CPU", "amx", 1);
        const auto no_tiles = ctxpar_test::refusal_of([] { ctxpar::cpu_backend(); });
        CHECK(ctxpar_test::says(no_tiles, "instructions", {"\"amx\"", name_of(best_isa())}));
    }
    amx_is_emulated = emulated;
    setenv("CTXPAR_CPU", "", 1);
    CHECK(default_isa() == best_isa());
    before == nullptr ? unsetenv("CTXPAR_CPU") : setenv("CTXPAR_CPU", kept.c_str(), 1);
}
