/* What the real header adds to cuda_runtime_api.h for C++, as far as it is called: typed pointers and functions. */
#pragma once

#include <cuda_runtime_api.h>

template <class T>
cudaError_t cudaMalloc(T** devPtr, size_t size) {
    return ::cudaMalloc(static_cast<void**>(static_cast<void*>(devPtr)), size);
}
template <class T>
cudaError_t cudaMallocHost(T** ptr, size_t size) {
    return ::cudaMallocHost(static_cast<void**>(static_cast<void*>(ptr)), size);
}
template <class T>
cudaError_t cudaFuncSetAttribute(T* func, enum cudaFuncAttribute attr, int value) {
    return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(func), attr, value);
}
template <class T>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, T func, int blockSize,
                                                          size_t dynamicSMemSize) {
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, reinterpret_cast<const void*>(func), blockSize,
                                                           dynamicSMemSize);
}
