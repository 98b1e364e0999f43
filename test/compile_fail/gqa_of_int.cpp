// Queries, keys and values are floating point numbers.
// expect: ctxpar::gqa: Element must be float, bf16 or f16
#include <ctxpar/attention/gqa.hpp>

#if defined(CTXPAR_FIXED)
using attention = ctxpar::gqa<float, 128>;
#else
using attention = ctxpar::gqa<int, 128>;
#endif

static_assert(sizeof(attention) > 0);
