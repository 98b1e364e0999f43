// Loops of the example that are compiled twice, for any processor and for one with 8-lane vectors, so that one binary
// runs everywhere and is not the slow part.
#pragma once

#define DEMO_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__)
#define DEMO_WIDE __attribute__((target("avx2,fma")))
#else
#define DEMO_WIDE
#endif

namespace demo {

// Whether functions marked DEMO_WIDE may be called.
inline bool wide_is_there() {
#if defined(__x86_64__)
    static const bool there = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return there;
#else
    return true;
#endif
}

} // namespace demo
