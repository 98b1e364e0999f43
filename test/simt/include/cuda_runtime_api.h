/* The part of the CUDA runtime that the library calls, emulated: memory is the host's, and work is done when it is given to
   a stream. What is declared as the real header declares it; what the library calls beside it does not compile. */
#pragma once

#include <cstddef>
#include <cstring>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

inline const char* cudaGetErrorName(cudaError_t result) {
    switch (result) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
        break;
    }
    return "cudaErrorInvalidConfiguration";
}
inline const char* cudaGetErrorString(cudaError_t result) {
    return result == cudaSuccess ? "no error" : "a value or a launch that is not legal";
}

inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    if (bytes > 0 && (to == nullptr || from == nullptr)) return cudaErrorInvalidValue;
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
