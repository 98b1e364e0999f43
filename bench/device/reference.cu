#include "reference.hpp"

#include <cmath>

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/reduce.h>

#include <ctxpar/backend/cuda.hpp>

namespace bench {
namespace {

constexpr unsigned threads = 256;

__global__ void scores_kernel(attention_numbers all, std::int64_t request, std::int64_t row, std::int64_t head,
                              std::int64_t tokens, double scale, double* scores) {
    const std::int64_t kv_head = head / (all.q_heads / all.kv_heads);
    for (std::int64_t token = blockIdx.x * std::int64_t{threads} + threadIdx.x; token < tokens;
         token += gridDim.x * std::int64_t{threads}) {
        double sum = 0.0;
        for (std::int64_t d = 0; d < all.query_width; ++d)
            sum += static_cast<double>(all.query(row, head, d)) * all.key(request, token, kv_head, d);
        scores[token] = sum * scale;
    }
}

__global__ void weights_kernel(double* scores, std::int64_t tokens, double highest) {
    for (std::int64_t token = blockIdx.x * std::int64_t{threads} + threadIdx.x; token < tokens;
         token += gridDim.x * std::int64_t{threads})
        scores[token] = exp(scores[token] - highest);
}

// A block a column.
__global__ void values_kernel(attention_numbers all, std::int64_t request, std::int64_t head, std::int64_t tokens,
                              const double* weights, double* out) {
    __shared__ double part[threads];
    const std::int64_t kv_head = head / (all.q_heads / all.kv_heads);
    double sum = 0.0;
    for (std::int64_t token = threadIdx.x; token < tokens; token += threads)
        sum += weights[token] * all.value(request, token, kv_head, blockIdx.x);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned step = threads / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

} // namespace

std::vector<double> attend_again(const attention_numbers& all, std::int64_t request, std::int64_t row,
                                 std::int64_t head, std::int64_t tokens, double scale) {
    thrust::device_vector<double> weights(static_cast<std::size_t>(tokens));
    thrust::device_vector<double> out(static_cast<std::size_t>(all.value_width));
    double* const at = thrust::raw_pointer_cast(weights.data());
    scores_kernel<<<512, threads>>>(all, request, row, head, tokens, scale, at);
    const double highest = *thrust::max_element(weights.begin(), weights.end());
    weights_kernel<<<512, threads>>>(at, tokens, highest);
    const double sum = thrust::reduce(weights.begin(), weights.end());
    values_kernel<<<static_cast<unsigned>(all.value_width), threads>>>(all, request, head, tokens, at,
                                                                       thrust::raw_pointer_cast(out.data()));
    ctxpar::cuda::check(cudaGetLastError(), "the reference");
    std::vector<double> result(out.size());
    thrust::copy(out.begin(), out.end(), result.begin());
    for (double& each : result) each /= sum;
    return result;
}

void comparison::add(double got, double expected) {
    difference_ += (got - expected) * (got - expected);
    size_ += expected * expected;
}

double comparison::relative_l2() const {
    return std::sqrt(difference_ / size_);
}

} // namespace bench
