// An LSE does not become a bare number unasked: the number would no longer tell its base.
// expect: (cannot convert|no viable conversion).*float
#include <ctxpar/core/lse.hpp>

float number_of(ctxpar::binary_lse from) {
#if defined(CTXPAR_FIXED)
    return from.value;
#else
    float number = from;
    return number;
#endif
}
