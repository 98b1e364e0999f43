// The numbers of a benchmark, made from where they belong: the cache is filled with them, and the reference makes them
// again. They are exact in bf16. Queries are four times as long as keys, so that a few keys have most of the weight:
// with short ones attention is close to a plain mean, and looks right with wrong weights.
#pragma once

#include <cstdint>

namespace bench {

// [-127, 127] / 64, evenly.
__host__ __device__ inline float number(std::uint32_t use, std::int64_t place) {
    auto x =
        static_cast<std::uint32_t>(place) ^ static_cast<std::uint32_t>(place >> 32) * 0x9e3779b9U ^ use * 0x85ebca6bU;
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15)) * 0x846ca68bU;
    x ^= x >> 16;
    return (static_cast<float>(x % 255U) - 127.0F) / 64.0F;
}

// Sizes of an attention and of its requests; trivially copyable, for kernels.
struct attention_numbers {
    std::int64_t q_heads;
    std::int64_t kv_heads;
    std::int64_t query_width;
    std::int64_t value_width;
    bool latent;       // values are the first part of the keys
    std::int64_t room; // tokens that a request may have

    __host__ __device__ float key(std::int64_t request, std::int64_t token, std::int64_t head, std::int64_t d) const {
        return number(1, ((request * room + token) * kv_heads + head) * query_width + d);
    }
    __host__ __device__ float value(std::int64_t request, std::int64_t token, std::int64_t head, std::int64_t d) const {
        return latent ? key(request, token, head, d)
                      : number(2, ((request * room + token) * kv_heads + head) * value_width + d);
    }
    __host__ __device__ float query(std::int64_t row, std::int64_t head, std::int64_t d) const {
        return 4.0F * number(3, (row * q_heads + head) * query_width + d);
    }
};

} // namespace bench
