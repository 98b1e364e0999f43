// What a decoder of grouped-query attention asks of the device; the decoder itself is left to a C++ file.
#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/cuda/decode_operations.cuh>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>

template struct ctxpar::decode_operations<
    ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 128>, ctxpar::interleave<16>, ctxpar::merge::a2a>>;
