// One rank's call of a collective among threads, as a value: whether its own arguments are legal, whether the calls of
// all ranks fit together, what to say when they do not, and the copying they ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/comm/communicator.hpp>

namespace ctxpar::inline v0_1 {
namespace detail {

enum class local_operation : std::uint8_t {
    all_gather,
    all_to_all,
    all_to_all_spans,
    agree,
    publish,
    release,
    split,
    wait // never met on; named in errors only
};

// What a rank posts. The memory it points to stays valid while the rank is inside the call.
struct local_call {
    local_operation operation = local_operation::wait;
    const void* send = nullptr;              // all_gather: [bytes]; all_to_all: [size][bytes]; publish: what is shown
    void* recv = nullptr;                    // [size][bytes]
    std::size_t bytes = 0;                   // of one part; all_to_all_spans: of all parts that are sent
    const std::size_t* send_bytes = nullptr; // [size], all_to_all_spans only
    const std::size_t* recv_bytes = nullptr; // [size], all_to_all_spans only
    int color = 0;                           // split only
    int key = 0;                             // split only
    collective_note note = {};
};

// Why a group of ranks is dead: the facts that are the same on every rank, and the sentence about them.
struct local_failure {
    std::string code; // empty: no failure
    std::string text;
    std::string expected;
    std::string got;
    int peer = -1;
};

// --- Legal arguments -------------------------------------------------------------------------------------------------

inline void require_memory(const char* operation, const char* name, const void* pointer, std::size_t bytes) {
    require(pointer != nullptr || bytes == 0, "null", operation, ": ", name, " is null, but holds ", bytes, " bytes");
}

inline bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
    const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
    return a_bytes > 0 && b_bytes > 0 && a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

// size * bytes, refused where it is beyond size_t.
inline std::size_t bytes_of_parts(const char* operation, int size, std::size_t bytes) {
    require(bytes <= std::numeric_limits<std::size_t>::max() / static_cast<std::size_t>(size), "sizes", operation, ": ",
            size, " parts of ", bytes, " bytes are more than memory can hold");
    return static_cast<std::size_t>(size) * bytes;
}

inline local_call all_gather_call(int rank, int size, const void* send, void* recv, std::size_t bytes,
                                  collective_note note) {
    const std::size_t total = bytes_of_parts("all_gather", size, bytes);
    require_memory("all_gather", "send", send, bytes);
    require_memory("all_gather", "recv", recv, total);
    if (overlap(send, bytes, recv, total)) {
        const void* own_part = static_cast<std::byte*>(recv) + static_cast<std::size_t>(rank) * bytes;
        require(send == own_part, "aliasing", "all_gather: send overlaps recv, but is not part ", rank,
                " of it (recv + ", rank, " * ", bytes, " bytes)");
    }
    local_call call{local_operation::all_gather, send, recv, bytes};
    call.note = note;
    return call;
}

inline local_call all_to_all_call(int size, const void* send, void* recv, std::size_t bytes, collective_note note) {
    const std::size_t total = bytes_of_parts("all_to_all", size, bytes);
    require_memory("all_to_all", "send", send, total);
    require_memory("all_to_all", "recv", recv, total);
    require(!overlap(send, total, recv, total), "aliasing", "all_to_all: send and recv overlap, it is never in place");
    local_call call{local_operation::all_to_all, send, recv, bytes};
    call.note = note;
    return call;
}

// The sum of one size for each rank.
inline std::size_t sum_of_sizes(const char* name, int size, std::span<const std::size_t> bytes) {
    require(bytes.size() == static_cast<std::size_t>(size), "sizes", "all_to_all: ", name, " has ", bytes.size(),
            " entries, it needs one for each of ", size, " ranks");
    std::size_t total = 0;
    for (const std::size_t part : bytes) {
        require(part <= std::numeric_limits<std::size_t>::max() - total, "sizes", "all_to_all: the sizes of ", name,
                " add up to more than memory can hold");
        total += part;
    }
    return total;
}

inline local_call all_to_all_call(int size, const void* send, std::span<const std::size_t> send_bytes, void* recv,
                                  std::span<const std::size_t> recv_bytes, collective_note note) {
    const std::size_t sent = sum_of_sizes("send_bytes", size, send_bytes);
    const std::size_t received = sum_of_sizes("recv_bytes", size, recv_bytes);
    require_memory("all_to_all", "send", send, sent);
    require_memory("all_to_all", "recv", recv, received);
    require(!overlap(send, sent, recv, received), "aliasing",
            "all_to_all: send and recv overlap, it is never in place");
    local_call call{local_operation::all_to_all_spans, send, recv, sent, send_bytes.data(), recv_bytes.data()};
    call.note = note;
    return call;
}

// --- Words for errors ------------------------------------------------------------------------------------------------

// "all_gather of queries"
[[gnu::cold]] inline std::string operation_text(const local_call& call) {
    const std::string what = call.note.what == nullptr ? "data" : call.note.what;
    switch (call.operation) {
    case local_operation::all_gather:
        return "all_gather of " + what;
    case local_operation::all_to_all:
        return "all_to_all of " + what;
    case local_operation::all_to_all_spans:
        return "all_to_all with sizes of " + what;
    case local_operation::agree:
        return "agree on " + what;
    case local_operation::publish:
        return "publish of " + what;
    case local_operation::release:
        return "release";
    case local_operation::split:
        return "split";
    case local_operation::wait:
        break;
    }
    return "wait";
}

[[gnu::cold]] inline std::string hex_text(std::uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

// What ranks agree on is a size or another small number, which a reader knows, or a digest.
[[gnu::cold]] inline std::string agreed_text(std::uint64_t value) {
    return value >> 32 == 0 ? "value " + std::to_string(value) : "digest " + hex_text(value);
}

// "all_gather of queries (4096 bytes, bf16)", and the digest where that is what the error is about.
[[gnu::cold]] inline std::string call_text(const local_call& call, bool with_digest) {
    const std::string digest = with_digest ? ", digest " + hex_text(call.note.digest) : "";
    switch (call.operation) {
    case local_operation::agree:
        return operation_text(call) + " (" + agreed_text(call.note.digest) + ")";
    case local_operation::release:
    case local_operation::split:
    case local_operation::wait:
        return operation_text(call);
    default:
        return operation_text(call) + " (" + std::to_string(call.bytes) + " bytes, " + name_of(call.note.type) +
               digest + ")";
    }
}

// "rank 3" or "ranks 0-2, 5" of ascending ranks.
[[gnu::cold]] inline std::string ranks_text(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t first = 0; first < ranks.size();) {
        std::size_t last = first;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
        text += (first == 0 ? "" : ", ") + std::to_string(ranks[first]);
        if (last > first) text += (last == first + 1 ? ", " : "-") + std::to_string(ranks[last]);
        first = last + 1;
    }
    return text;
}

// "ranks 0-2 called this, rank 3 called that" of the ranks listed, in order of their first rank; text_of(rank) is what
// each did.
template <class TextOf>
[[gnu::cold]] std::string grouped_text(const std::vector<int>& ranks, const char* did, const TextOf& text_of) {
    std::vector<std::pair<std::string, std::vector<int>>> groups;
    for (const int rank : ranks) {
        const std::string text = text_of(rank);
        std::size_t i = 0;
        while (i < groups.size() && groups[i].first != text) ++i;
        if (i == groups.size()) groups.emplace_back(text, std::vector<int>{});
        groups[i].second.push_back(rank);
    }
    std::string all;
    for (const auto& [text, members] : groups) all += (all.empty() ? "" : ", ") + ranks_text(members) + did + text;
    return all;
}

// "ranks 0-2 called all_gather of queries (4096 bytes, bf16), rank 3 called release" of the ranks listed.
[[gnu::cold]] inline std::string calls_text(std::span<const local_call> calls, const std::vector<int>& ranks,
                                            bool with_digest) {
    return grouped_text(ranks, " called ",
                        [&](int rank) { return call_text(calls[static_cast<std::size_t>(rank)], with_digest); });
}

// --- Calls of all ranks, in rank order -------------------------------------------------------------------------------

inline local_failure differing_calls(std::span<const local_call> calls, const char* code) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < calls.size(); ++rank) ranks.push_back(static_cast<int>(rank));
    const std::string text = calls_text(calls, ranks, std::strcmp(code, "digest") == 0);
    return {code, text, "the same call on every rank", text, -1};
}

// What rank i sends to rank j must be what j expects from i.
inline local_failure find_size_mismatch(std::span<const local_call> calls) {
    for (std::size_t from = 0; from < calls.size(); ++from)
        for (std::size_t to = 0; to < calls.size(); ++to) {
            const std::size_t sent = calls[from].send_bytes[to];
            const std::size_t expected = calls[to].recv_bytes[from];
            if (sent == expected) continue;
            return {"mismatch",
                    sentence(operation_text(calls[from]), ": rank ", from, " sends ", sent, " bytes to rank ", to,
                             ", which expects ", expected, " bytes from it"),
                    sentence(expected, " bytes from rank ", from, " on rank ", to), sentence(sent, " bytes"),
                    static_cast<int>(from)};
        }
    return {};
}

// The reason why these calls are not one collective, or a failure without a code. Operations and sizes are always
// compared, because copying relies on them. Allocates only where there is a failure.
inline local_failure find_mismatch(std::span<const local_call> calls, check_level checks) {
    const local_call& first = calls.front();
    const bool sized = first.operation == local_operation::all_gather || first.operation == local_operation::all_to_all;
    for (const local_call& call : calls) {
        if (call.operation != first.operation) return differing_calls(calls, "mismatch");
        if (sized && call.bytes != first.bytes) return differing_calls(calls, "mismatch");
        if (checks == check_level::collective && call.note.type != first.note.type)
            return differing_calls(calls, "mismatch");
    }
    if (first.operation == local_operation::all_to_all_spans) {
        local_failure failure = find_size_mismatch(calls);
        if (!failure.code.empty()) return failure;
    }
    if (first.operation == local_operation::agree || checks == check_level::collective)
        for (const local_call& call : calls)
            if (call.note.digest != first.note.digest) return differing_calls(calls, "digest");
    return {};
}

// Bytes that are written to the receive buffers of all ranks.
inline std::size_t copied_bytes(std::span<const local_call> calls) {
    std::size_t total = 0;
    for (const local_call& call : calls) {
        if (call.operation == local_operation::all_to_all_spans) total += call.bytes;
        if (call.operation == local_operation::all_gather || call.operation == local_operation::all_to_all)
            total += call.bytes * calls.size();
    }
    return total;
}

inline void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes); // the same place: rank's own part of a gather in place
}

// Fills the receive buffer of `rank` from the send buffers of all ranks. Takes no lock and waits for nothing.
inline void copy_to(std::span<const local_call> calls, std::size_t rank) {
    const local_operation operation = calls[rank].operation;
    std::byte* to = static_cast<std::byte*>(calls[rank].recv);
    for (std::size_t peer = 0; peer < calls.size(); ++peer) {
        const local_call& source = calls[peer];
        const std::byte* from = static_cast<const std::byte*>(source.send);
        if (operation == local_operation::all_gather && source.bytes > 0)
            copy_part(to + peer * source.bytes, from, source.bytes);
        if (operation == local_operation::all_to_all && source.bytes > 0)
            copy_part(to + peer * source.bytes, from + rank * source.bytes, source.bytes);
        if (operation == local_operation::all_to_all_spans && source.send_bytes[rank] > 0) {
            for (std::size_t before = 0; before < rank; ++before) from += source.send_bytes[before];
            copy_part(to, from, source.send_bytes[rank]);
            to += source.send_bytes[rank];
        }
    }
}

} // namespace detail
} // namespace ctxpar::inline v0_1
