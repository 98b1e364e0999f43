// A group of one rank: what is measured is a device's own work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include <ctxpar/comm/communicator.hpp>

namespace bench {

struct alone {
    using stream_type = cudaStream_t;
    int rank() const { return 0; }
    int size() const { return 1; }
    void all_gather(const void*, void*, std::size_t, cudaStream_t, ctxpar::collective_note = {}) {}
    void all_to_all(const void*, void*, std::size_t, cudaStream_t, ctxpar::collective_note = {}) {}
    void all_to_all(const void*, std::span<const std::size_t>, void*, std::span<const std::size_t>, cudaStream_t,
                    ctxpar::collective_note = {}) {}
    void agree(std::uint64_t, const char*, cudaStream_t) {}
    void check() {}
    void wait(cudaStream_t) {}
    std::uint64_t bytes_sent() const { return 0; }
    ctxpar::check_level checks() const { return ctxpar::check_level::off; }
};

} // namespace bench
