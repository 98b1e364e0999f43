// Which instruction set the CPU kernels use: one binary holds a body for each and chooses at run time. The source of
// the body is the same; it is written in vectors of lanes that the compiler maps to what there is.
#pragma once

#include <cstdlib>
#include <string_view>

#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1::cpu {

enum class isa { portable, avx2, avx512 };

constexpr const char* name_of(isa set) {
    return set == isa::avx512 ? "avx512" : (set == isa::avx2 ? "avx2" : "portable");
}

// The widest one this processor has.
inline isa best_isa() {
#if defined(__x86_64__)
    static const isa best = [] {
        __builtin_cpu_init();
        const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        if (wide) return isa::avx512;
        bool narrow = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if !defined(__clang__) // which does not know the name, and uses none of these instructions
        narrow = narrow && __builtin_cpu_supports("f16c");
#endif
        return narrow ? isa::avx2 : isa::portable;
    }();
    return best;
#else
    return isa::portable;
#endif
}

// The one that the environment variable CTXPAR_CPU names, for tests and comparisons, or else the widest. config_error
// "instructions" where this processor has no such instructions.
inline isa default_isa() {
    const char* const name = std::getenv("CTXPAR_CPU");
    if (name == nullptr || *name == 0) return best_isa();
    for (const isa set : {isa::portable, isa::avx2, isa::avx512})
        if (set <= best_isa() && std::string_view(name) == name_of(set)) return set;
    raise(config_error("instructions",
                       sentence("CTXPAR_CPU is \"", name, "\", which this processor does not have; it has portable",
                                best_isa() >= isa::avx2 ? ", avx2" : "", best_isa() >= isa::avx512 ? ", avx512" : "")));
}

} // namespace ctxpar::inline v0_1::cpu

// Marks the bodies for the wider instruction sets; empty where the processor family has none.
#if defined(__x86_64__)
#define CTXPAR_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define CTXPAR_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#else
#define CTXPAR_TARGET_AVX2
#define CTXPAR_TARGET_AVX512
#endif
