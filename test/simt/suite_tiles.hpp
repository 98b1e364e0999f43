// The attention kernels that several files of the suites launch are compiled once, in device_suite_tiles_*.cpp: they
// are half of what such a file takes to compile.
#pragma once

#include <ctxpar/cuda.cuh>

// Declares (`extern template`) or instantiates (`template`) the kernels of all widths for queries and a cache of these
// types, with probabilities as the sum of so many terms.
#define CTXPAR_SUITE_TILES(Declare, Q, Kv, terms)                                                                      \
    CTXPAR_SUITE_TILE(Declare, Q, Kv, 64, 64, false, terms)                                                            \
    CTXPAR_SUITE_TILE(Declare, Q, Kv, 96, 96, false, terms)                                                            \
    CTXPAR_SUITE_TILE(Declare, Q, Kv, 128, 128, false, terms)                                                          \
    CTXPAR_SUITE_TILE(Declare, Q, Kv, 192, 192, false, terms)                                                          \
    CTXPAR_SUITE_TILE(Declare, Q, Kv, 256, 256, false, terms)                                                          \
    CTXPAR_SUITE_TILE(Declare, Q, Kv, latent_key_width, latent_value_width, true, terms)

#define CTXPAR_SUITE_TILE(Declare, Q, Kv, key, value, shared, terms)                                                   \
    Declare void attend_tiles_kernel<tiles<key, value, shared, false, terms>, Q, Kv>(attend_call<Q, Kv>, int);         \
    Declare void attend_tiles_kernel<tiles<key, value, shared, true, terms>, Q, Kv>(attend_call<Q, Kv>, int);

#define CTXPAR_SUITE_TILES_BF16(Declare) CTXPAR_SUITE_TILES(Declare, bf16, bf16, 3)
#define CTXPAR_SUITE_TILES_FP8(Declare) CTXPAR_SUITE_TILES(Declare, bf16, fp8_e4m3, 3)

namespace ctxpar::inline v0_1::cuda {

CTXPAR_SUITE_TILES_BF16(extern template)
CTXPAR_SUITE_TILES_FP8(extern template)

} // namespace ctxpar::inline v0_1::cuda
