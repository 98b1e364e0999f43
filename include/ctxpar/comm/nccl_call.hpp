// One rank's call of an NCCL collective, as errors speak of it; what is illegal about sums; and what ranks compare of
// their calls. Knows nothing of NCCL.
#pragma once

#include <algorithm>
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

// The calls of one rank so far, in the order in which its host made them. Ranks that made the same calls, whichever
// user of the communicator made them, have the same history; the digest of a note tells users and plans apart.
struct nccl_history {
    std::uint64_t num_calls = 0;
    std::uint64_t hash = 0;

    // Of `bytes`, which are the same on all ranks, or 0.
    void add(const nccl_call& call, std::size_t bytes) {
        ++num_calls;
        for (const char* letter = call.operation; *letter != '\0'; ++letter) mix(static_cast<unsigned char>(*letter));
        mix(bytes);
        mix(static_cast<std::uint64_t>(call.note.type));
        mix(call.note.digest);
    }
    bool operator==(const nccl_history&) const = default;

private:
    void mix(std::uint64_t value) {
        hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL + 1;
        hash ^= hash >> 29;
    }
};

// What ranks compare when they agree.
struct nccl_agreement {
    std::uint64_t digest = 0;
    std::uint64_t checks = 0; // the level
    nccl_history before;      // at check_level::collective, else empty

    bool operator==(const nccl_agreement&) const = default;
};

// Says who has what, and lays it to the first rank that has not what most ranks have.
template <class Field, class TextOf>
[[gnu::cold]] local_failure differing_ranks(const char* code, std::span<const nccl_agreement> all,
                                            Field nccl_agreement::*field, const char* verb, const TextOf& text_of) {
    std::vector<int> ranks, odd;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        ranks.push_back(static_cast<int>(rank));
        if (!(all[rank].*field == all.front().*field)) odd.push_back(static_cast<int>(rank));
    }
    const std::string text =
        grouped_text(ranks, verb, [&](int rank) { return text_of(all[static_cast<std::size_t>(rank)].*field); });
    return {code, text, "the same on every rank", text, 2 * odd.size() > ranks.size() ? 0 : odd.front()};
}

// Why ranks do not agree, where what they compare, in rank order, is not the same. `last` is what `rank` called before.
[[gnu::cold]] inline local_failure find_disagreement(const char* what, std::span<const nccl_agreement> all, int rank,
                                                     const nccl_call& last) {
    const auto is_same = [&](auto field) {
        return std::all_of(all.begin(), all.end(), [&](const auto& each) { return each.*field == all.front().*field; });
    };
    if (!is_same(&nccl_agreement::checks))
        return differing_ranks("mismatch", all, &nccl_agreement::checks, " had check level ",
                               [](std::uint64_t level) { return std::to_string(level); });
    if (is_same(&nccl_agreement::before))
        return differing_ranks("digest", all, &nccl_agreement::digest, " called agree on ",
                               [what](std::uint64_t value) { return sentence(what, " (", agreed_text(value), ")"); });
    local_failure failure =
        differing_ranks("mismatch", all, &nccl_agreement::before, " made ", [](const nccl_history& history) {
            return sentence(history.num_calls, " calls (history ", hex_text(history.hash), ")");
        });
    failure.text = sentence("other calls came before, or in another order: ", failure.text, "; the last of rank ", rank,
                            " was ", last.text());
    return failure;
}

inline std::int64_t milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
}

// What is known of a wait that has ended: the call, not who is late. `said` is what NCCL says of it.
[[gnu::cold]] inline local_failure nccl_lateness(int rank, std::chrono::steady_clock::time_point start,
                                                 std::uint64_t num_calls, const nccl_call& last,
                                                 const std::string& said) {
    const std::string what = sentence("call ", num_calls, " of this communicator, ", last.text());
    return {"timeout",
            sentence("the stream was not done when rank ", rank, " had waited ", milliseconds_since(start),
                     " ms; the last was ", what, said),
            what + " to be done", "nothing", -1};
}

} // namespace detail
} // namespace ctxpar::inline v0_1
