// The only annotation macros of the library. None of them changes a type, a default argument or what a function does.
#pragma once

// A function that runs on the host and, in CUDA translation units, on the device too.
#if defined(__CUDACC__)
#define CTXPAR_HD __host__ __device__
#else
#define CTXPAR_HD
#endif

// Before a CTXPAR_HD template that calls what it is given: the callee may be a function of either side.
#if defined(__CUDACC__)
#define CTXPAR_ANY_CALLEE _Pragma("nv_exec_check_disable")
#else
#define CTXPAR_ANY_CALLEE
#endif

// A type that must be one and the same across shared libraries that hide their symbols: the error types.
#if defined(__GNUC__) || defined(__clang__)
#define CTXPAR_VISIBLE __attribute__((visibility("default")))
#else
#define CTXPAR_VISIBLE
#endif
