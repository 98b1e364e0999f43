// An engine's C++ code: holds a CUDA decoder and calls it. Where there is a GPU it decodes one token, whose output is
// its own value; where there is none the first launch says so.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "engine.hpp"

inline constexpr std::int64_t width = 64;
inline constexpr std::int64_t page = 16;

// Memory that the host and the device see.
template <class T>
std::unique_ptr<T[], void (*)(T*)> shared_memory(std::int64_t count) {
    void* memory = nullptr;
    ctxpar::cuda::check(cudaMallocManaged(&memory, static_cast<std::size_t>(count) * sizeof(T)), "cudaMallocManaged");
    return {static_cast<T*>(memory), [](T* old) { (void)cudaFree(old); }};
}

inline int decode_one_token(decoder& used) {
    const auto pool = shared_memory<ctxpar::bf16>(2 * page * width);
    const auto rows = shared_memory<ctxpar::bf16>(3 * width); // the new key, the new value, the query
    const auto out = shared_memory<ctxpar::bf16>(width);
    const auto numbers = shared_memory<std::int64_t>(2); // the length, the block id
    const auto bytes = static_cast<std::int64_t>(used.workspace_bytes());
    const auto memory = shared_memory<std::byte>(bytes);
    for (std::int64_t i = 0; i < 3 * width; ++i) rows[i] = ctxpar::bf16(static_cast<float>(i % 7) - 3.0F);
    numbers[0] = 1;
    numbers[1] = 0;

    ctxpar::decode_batch batch;
    batch.requests = 1;
    batch.lengths = ctxpar::index_of(&numbers[0]);
    batch.table = ctxpar::table_2d(&numbers[1], 1, 1, page);
    const auto cache = ctxpar::stacked_kv(pool.get(), 1, page, 1, width, width);
    const auto row = [&](std::int64_t i) {
        return ctxpar::dense_view<const ctxpar::bf16>(&rows[i * width], 1, 1, width);
    };
    const ctxpar::decode_step step =
        used.plan(batch, ctxpar::workspace{memory.get(), static_cast<std::size_t>(bytes)}, nullptr);
    used.append(step, row(0), row(1), cache, nullptr);
    used.decode(step, row(2), ctxpar::kv_view<const ctxpar::bf16>(cache), ctxpar::dense_view(out.get(), 1, 1, width),
                options{}, nullptr);
    ctxpar::cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    for (std::int64_t i = 0; i < width; ++i)
        if (static_cast<float>(out[i]) != static_cast<float>(rows[width + i])) return 1;
    std::puts("decoded one token");
    return 0;
}

// 0 where all is well.
inline int run_engine() {
    ctxpar::decode_shape shape;
    shape.longest = page;
    shape.pool_blocks = 1;
    decoder made{{nullptr}, shape};
    std::printf("a CUDA decoder with a workspace of %zu bytes\n", made.workspace_bytes());
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return decode_one_token(made);

    // Nothing is read before the launch of the plan's metadata, which has no device to go to.
    std::vector<std::byte> memory(made.workspace_bytes() + 256);
    void* start = memory.data();
    std::size_t space = memory.size();
    std::align(256, made.workspace_bytes(), start, space);
    try {
        made.plan({}, ctxpar::workspace{start, made.workspace_bytes()}, nullptr);
    } catch (const ctxpar::cuda_error& refused) {
        std::printf("no GPU here: %s\n", refused.what());
        return 0;
    }
    std::puts("there is no GPU and yet the launch was accepted");
    return 1;
}
