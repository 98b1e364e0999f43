// Softmax states of base e and base 2 do not merge.
// expect: (cannot convert|no viable conversion|no matching function|no known conversion)
#include <ctxpar/attention/softmax_state.hpp>

void merge(ctxpar::softmax_state<ctxpar::lse_base::natural>& into) {
#if defined(CTXPAR_FIXED)
    const ctxpar::softmax_state<ctxpar::lse_base::natural> other;
#else
    const ctxpar::softmax_state<ctxpar::lse_base::binary> other;
#endif
    into.merge(other);
}
