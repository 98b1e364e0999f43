// The CPU kernels are compiled once for all tests, in cpu_kernels.cpp, rather than in every file that makes a decoder.
#pragma once

#include <ctxpar/backend/cpu.hpp>

#define CTXPAR_TEST_CPU_KERNELS(prefix)                                                                                \
    namespace ctxpar::inline v0_1::cpu {                                                                               \
    prefix template tile_kernels kernels_of<void>(isa);                                                                \
    prefix template stream_kernels<float> stream_kernels_of<float>(isa);                                               \
    prefix template stream_kernels<bf16> stream_kernels_of<bf16>(isa);                                                 \
    prefix template stream_kernels<f16> stream_kernels_of<f16>(isa);                                                   \
    prefix template stream_kernels<fp8_e4m3> stream_kernels_of<fp8_e4m3>(isa);                                         \
    prefix template stream_kernels<fp8_e5m2> stream_kernels_of<fp8_e5m2>(isa);                                         \
    prefix template widen_function<float> widen_of<float>(isa);                                                        \
    prefix template widen_function<bf16> widen_of<bf16>(isa);                                                          \
    prefix template widen_function<f16> widen_of<f16>(isa);                                                            \
    prefix template widen_function<fp8_e4m3> widen_of<fp8_e4m3>(isa);                                                  \
    prefix template widen_function<fp8_e5m2> widen_of<fp8_e5m2>(isa);                                                  \
    prefix template amx_kernels<bf16> amx_kernels_of<bf16>(bool);                                                      \
    prefix template amx_kernels<fp8_e4m3> amx_kernels_of<fp8_e4m3>(bool);                                              \
    prefix template amx_kernels<fp8_e5m2> amx_kernels_of<fp8_e5m2>(bool);                                              \
    prefix template combine_function<float, float> combine_of<float, float>(isa);                                      \
    prefix template combine_function<float, bf16> combine_of<float, bf16>(isa);                                        \
    prefix template combine_function<float, f16> combine_of<float, f16>(isa);                                          \
    prefix template combine_function<bf16, bf16> combine_of<bf16, bf16>(isa);                                          \
    prefix template combine_function<bf16, float> combine_of<bf16, float>(isa);                                        \
    prefix template combine_function<f16, f16> combine_of<f16, f16>(isa);                                              \
    prefix template combine_function<f16, float> combine_of<f16, float>(isa);                                          \
    }

CTXPAR_TEST_CPU_KERNELS(extern)
