// One rank's call of an NCCL collective, as errors speak of it, and what is illegal about sums. Knows nothing of NCCL.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local_call.hpp>

namespace ctxpar::inline v0_1 {
namespace detail {

// Made for every call, so it holds no text of its own.
struct nccl_call {
    const char* operation = "wait";
    std::size_t bytes = 0; // as the caller has said them
    collective_note note = {};
    const char* link = " of "; // between the operation and what it is about; null where it is about nothing

    // "all_gather of queries"
    [[gnu::cold]] std::string name() const {
        if (link == nullptr) return operation;
        return std::string(operation) + link + (note.what == nullptr ? "data" : note.what);
    }
    // "all_gather of queries (4096 bytes, bf16)"
    [[gnu::cold]] std::string text() const {
        return bytes == 0 ? name() : sentence(name(), " (", bytes, " bytes, ", name_of(note.type), ")");
    }
};

// The bytes of `count` numbers of a type that NCCL adds.
inline std::size_t bytes_of_sum(const char* operation, std::size_t count, scalar_type type) {
    return bytes_of_parts(operation, type == scalar_type::f32 ? 4 : 2, count);
}

// Sums may lie where their first summand does, at send + own_bytes, and overlap nothing else.
inline void require_sum_memory(const char* operation, const void* send, std::size_t send_bytes, const void* recv,
                               std::size_t recv_bytes, std::size_t own_bytes) {
    require_memory(operation, "send", send, send_bytes);
    require_memory(operation, "recv", recv, recv_bytes);
    if (!overlap(send, send_bytes, recv, recv_bytes)) return;
    require(recv == static_cast<const std::byte*>(send) + own_bytes, "aliasing", operation,
            ": recv overlaps send, but does not begin at send + ", own_bytes, " bytes, where it may be in place");
}

// Values of all ranks that should have been one.
[[gnu::cold]] inline local_failure digest_failure(const char* what, std::span<const std::uint64_t> digests) {
    std::vector<local_call> calls;
    for (const std::uint64_t digest : digests) {
        local_call call{local_operation::agree};
        call.note = {what, scalar_type::bytes, digest};
        calls.push_back(call);
    }
    return differing_calls(calls, "digest");
}

inline std::int64_t milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
}

} // namespace detail
} // namespace ctxpar::inline v0_1
