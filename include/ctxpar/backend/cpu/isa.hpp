// Which instruction set the CPU kernels use: one binary holds a body for each and chooses at run time. The source of
// the body is the same; it is written in vectors of lanes that the compiler maps to what there is.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1::cpu {

// In rising order: a processor that has one has those before it. `amx` is AVX-512 with the matrix unit of bf16.
enum class isa { portable, avx2, avx512, amx };

constexpr const char* name_of(isa set) {
    if (set == isa::amx) return "amx";
    return set == isa::avx512 ? "avx512" : (set == isa::avx2 ? "avx2" : "portable");
}

// Set by a program that carries out the matrix unit's instructions itself where the processor refuses them, as a test
// may, which then has `amx` wherever there is AVX-512. It is not chosen by itself.
inline bool amx_is_emulated = false;

// Whether the processor has the matrix unit and this process may use it. Linux wants to be asked once for the 8 KB that
// a thread's tiles take in signal frames, and refuses where the process has an alternate signal stack that is too small
// for them.
inline bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
    static const bool may = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        constexpr unsigned tiles_of_bf16 = 1U << 22 | 1U << 24;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & tiles_of_bf16) != tiles_of_bf16) return false;
        if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
        std::uint32_t kept = 0;
        asm volatile("xgetbv" : "=a"(kept) : "c"(0) : "edx");
        constexpr std::uint32_t tile_state = 1U << 17 | 1U << 18;
        constexpr int request_permission = 0x1023; // ARCH_REQ_XCOMP_PERM
        constexpr int tile_data = 18;              // XFEATURE_XTILEDATA
        return (kept & tile_state) == tile_state && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return may;
#else
    return false;
#endif
}

// The widest one this processor has without the matrix unit.
inline isa best_vector_isa() {
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

// The widest one this processor has.
inline isa best_isa() {
    return best_vector_isa() == isa::avx512 && may_use_amx() ? isa::amx : best_vector_isa();
}

inline bool has(isa set) {
    if (set == isa::amx) return best_vector_isa() == isa::avx512 && (amx_is_emulated || may_use_amx());
    return set <= best_vector_isa();
}

// The one that the environment variable CTXPAR_CPU names, for tests and comparisons, or else the widest. config_error
// "instructions" where this processor has no such instructions.
inline isa default_isa() {
    const char* const name = std::getenv("CTXPAR_CPU");
    if (name == nullptr || *name == 0) return best_isa();
    for (const isa set : {isa::portable, isa::avx2, isa::avx512, isa::amx})
        if (std::string_view(name) == name_of(set) && has(set)) return set;
    raise(config_error("instructions",
                       sentence("CTXPAR_CPU is \"", name, "\", which this processor does not have; it has portable",
                                has(isa::avx2) ? ", avx2" : "", has(isa::avx512) ? ", avx512" : "",
                                has(isa::amx) ? ", amx" : "")));
}

} // namespace ctxpar::inline v0_1::cpu

// Marks the bodies for the wider instruction sets; empty where the processor family has none.
#if defined(__x86_64__)
#define CTXPAR_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define CTXPAR_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define CTXPAR_TARGET_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#else
#define CTXPAR_TARGET_AVX2
#define CTXPAR_TARGET_AVX512
#define CTXPAR_TARGET_AMX
#endif
