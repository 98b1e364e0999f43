// The second part of a policy is an interleave, not a number.
// expect: ctxpar::policy: the second argument must be an interleave policy
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>

#if defined(CTXPAR_FIXED)
using interleave = ctxpar::interleave<16>;
#else
using interleave = int;
#endif

static_assert(sizeof(ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 128>, interleave, ctxpar::merge::a2a>) > 0);
