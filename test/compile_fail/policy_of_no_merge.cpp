// The third part of a policy says how partial outputs are merged.
// expect: ctxpar::policy: the third argument must be a merge policy
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>

#if defined(CTXPAR_FIXED)
using merge = ctxpar::merge::a2a;
#else
using merge = ctxpar::interleave<16>;
#endif

static_assert(sizeof(ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 128>, ctxpar::interleave<16>, merge>) > 0);
