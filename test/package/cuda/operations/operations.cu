// The operations of all cases, and no decoder.
#include <ctxpar/backend/cuda/decode_operations.cuh>

#include "cases.hpp"

#define CTXPAR_USE(name)                                                                                               \
    template struct ctxpar::decode_operations<cases::name::policy_type, cases::name::out_type, cases::name::base,      \
                                              cases::name::backend_type>;
CTXPAR_CASES(CTXPAR_USE)
