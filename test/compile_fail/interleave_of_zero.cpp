// An interleave of no tokens owns nothing.
// expect: ctxpar::interleave needs a size of at least 1 token
#include <ctxpar/layout/interleave.hpp>

#if defined(CTXPAR_FIXED)
using size = ctxpar::interleave<1>;
#else
using size = ctxpar::interleave<0>;
#endif

static_assert(size::size() >= 0);
