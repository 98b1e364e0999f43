// The LSEs of base 2 are no part of a merge of base e.
// expect: (cannot convert|no viable conversion|no matching function|could not convert)
#include <ctxpar/attention/softmax_state.hpp>

void see(ctxpar::merge_weights<ctxpar::lse_base::natural>& weights, ctxpar::binary_lse part) {
#if defined(CTXPAR_FIXED)
    weights.see(ctxpar::to_natural(part));
#else
    weights.see(part);
#endif
}
