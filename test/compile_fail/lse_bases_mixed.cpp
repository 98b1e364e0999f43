// A base-2 LSE is no natural LSE: without a conversion the softmax weights would silently be wrong.
// expect: (no match for .operator=.|no viable overloaded .=.)
#include <ctxpar/core/lse.hpp>

ctxpar::natural_lse assign(ctxpar::binary_lse from) {
    ctxpar::natural_lse to;
#if defined(CTXPAR_FIXED)
    to = ctxpar::to_natural(from);
#else
    to = from;
#endif
    return to;
}
