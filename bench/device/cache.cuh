// A paged cache on the device, filled with the numbers of its tokens.
#pragma once

#include <cstdint>
#include <numeric>

#include <thrust/device_vector.h>
#include <thrust/universal_vector.h>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/paged.hpp>

#include "numbers.cuh"

namespace bench {

// A thread a number.
static __global__ void fill_kernel(attention_numbers all, std::int64_t requests, const std::int64_t* ends,
                                   ctxpar::block_table table, ctxpar::kv_view<ctxpar::bf16> cache) {
    const std::int64_t count = requests * all.room * all.kv_heads * all.query_width;
    const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const std::int64_t d = i % all.query_width;
        const std::int64_t head = i / all.query_width % all.kv_heads;
        const std::int64_t token = i / all.query_width / all.kv_heads % all.room;
        const std::int64_t request = i / all.query_width / all.kv_heads / all.room;
        if (token >= ends[request]) continue;
        const std::int64_t slot = table.slot(request, token);
        cache.key(slot, head)[d] = ctxpar::bf16(all.key(request, token, head, d));
        if (d < all.value_width && !all.latent)
            cache.value(slot, head)[d] = ctxpar::bf16(all.value(request, token, head, d));
    }
}

static __global__ void new_rows_kernel(attention_numbers all, std::int64_t rows, const std::int64_t* requests,
                                       const std::int64_t* positions, ctxpar::bf16* q, ctxpar::bf16* k,
                                       ctxpar::bf16* v) {
    const std::int64_t count = rows * all.q_heads * all.query_width;
    const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const std::int64_t d = i % all.query_width;
        const std::int64_t head = i / all.query_width % all.q_heads;
        const std::int64_t row = i / all.query_width / all.q_heads;
        q[i] = ctxpar::bf16(all.query(row, head, d));
        if (head >= all.kv_heads) continue;
        const std::int64_t at = row * all.kv_heads + head;
        k[at * all.query_width + d] = ctxpar::bf16(all.key(requests[row], positions[row], head, d));
        if (d < all.value_width)
            v[at * all.value_width + d] = ctxpar::bf16(all.value(requests[row], positions[row], head, d));
    }
}

// The pool of one layer and the block table of its requests, in the order that a pool in use has.
class paged_cache {
public:
    static constexpr std::int64_t block = 16;

    paged_cache(const attention_numbers& all, std::int64_t requests)
        : all_(all), requests_(requests), blocks_((all.room + block - 1) / block),
          ids_(static_cast<std::size_t>(requests * blocks_)),
          pool_(static_cast<std::size_t>(requests * blocks_ * block * all.kv_heads *
                                         (all.latent ? all.query_width : all.query_width + all.value_width))) {
        const std::int64_t count = requests * blocks_;
        std::int64_t stride = static_cast<std::int64_t>(0.618 * static_cast<double>(count)) | 1;
        while (std::gcd(stride, count) != 1) stride += 2;
        for (std::int64_t i = 0; i < count; ++i)
            ids_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * stride % count);
    }

    std::int64_t pool_blocks() const { return requests_ * blocks_; }

    ctxpar::block_table table() const {
        return ctxpar::table_2d(thrust::raw_pointer_cast(ids_.data()), requests_, blocks_, block);
    }
    ctxpar::kv_view<ctxpar::bf16> view() {
        ctxpar::bf16* const base = thrust::raw_pointer_cast(pool_.data());
        return all_.latent
                   ? ctxpar::latent_kv(base, pool_blocks(), block, all_.value_width,
                                       all_.query_width - all_.value_width)
                   : ctxpar::stacked_kv(base, pool_blocks(), block, all_.kv_heads, all_.query_width, all_.value_width);
    }

    // Writes tokens [0, ends[r]) of every request r; what follows stays zero, for the library to write.
    void fill(const thrust::universal_vector<std::int64_t>& ends) {
        fill_kernel<<<4096, 256>>>(all_, requests_, thrust::raw_pointer_cast(ends.data()), table(), view());
        ctxpar::cuda::check(cudaGetLastError(), "fill_kernel");
        ctxpar::cuda::check(cudaDeviceSynchronize(), "fill_kernel"); // the host may use `ends` again
    }

private:
    attention_numbers all_;
    std::int64_t requests_;
    std::int64_t blocks_; // of a request
    thrust::universal_vector<std::int32_t> ids_;
    thrust::device_vector<ctxpar::bf16> pool_;
};

// New rows of a step: queries, keys and values of given tokens, one a row.
struct new_rows {
    thrust::device_vector<ctxpar::bf16> q, k, v;

    // Row i is token positions[i] of request requests[i]; both may be read by host and device.
    new_rows(const attention_numbers& all, const thrust::universal_vector<std::int64_t>& requests,
             const thrust::universal_vector<std::int64_t>& positions)
        : q(positions.size() * static_cast<std::size_t>(all.q_heads * all.query_width)),
          k(positions.size() * static_cast<std::size_t>(all.kv_heads * all.query_width)),
          v(positions.size() * static_cast<std::size_t>(all.kv_heads * all.value_width)) {
        new_rows_kernel<<<4096, 256>>>(all, static_cast<std::int64_t>(positions.size()),
                                       thrust::raw_pointer_cast(requests.data()),
                                       thrust::raw_pointer_cast(positions.data()), thrust::raw_pointer_cast(q.data()),
                                       thrust::raw_pointer_cast(k.data()), thrust::raw_pointer_cast(v.data()));
        ctxpar::cuda::check(cudaGetLastError(), "new_rows_kernel");
    }
};

} // namespace bench
