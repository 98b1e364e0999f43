// The first part of a policy says what attention it is.
// expect: ctxpar::policy: the first argument must be an attention policy
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>

#if defined(CTXPAR_FIXED)
using attention = ctxpar::gqa<ctxpar::bf16, 128>;
#else
struct attention {
    using element = ctxpar::bf16;
};
#endif

static_assert(sizeof(ctxpar::policy<attention, ctxpar::interleave<16>, ctxpar::merge::a2a>) > 0);
