// A head of no elements attends to nothing.
// expect: a head width is at least 1
#include <ctxpar/attention/gqa.hpp>

#if defined(CTXPAR_FIXED)
using attention = ctxpar::gqa<ctxpar::bf16, 1>;
#else
using attention = ctxpar::gqa<ctxpar::bf16, 0>;
#endif

static_assert(sizeof(attention) > 0);
