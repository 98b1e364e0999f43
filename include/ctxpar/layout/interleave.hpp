// The law of ownership: which rank holds a token, and at which index among that rank's own tokens.
//
//   owner(p)       = (p / I) mod N
//   local(p)       = (p / (N*I)) * I + p mod I
//   global(j, r)   = (j / I) * (N*I) + r*I + j mod I
//   local_len(L,r) = (L / (N*I)) * I + clamp(L mod (N*I) - r*I, 0, I)
//
// N ranks share a sequence, I consecutive tokens go to one rank before the next rank's turn (the interleave), p is a
// global position, j an index among one rank's own tokens, L a length in tokens. True for every N >= 1, I >= 1, L >= 0.
//
// Local order is global order: of two tokens on one rank the later one has the larger local index. So the tokens of
// rank r in a global interval [a, b) are exactly its local interval [local_len(a, r), local_len(b, r)).
//
// No other file of the library writes any of these formulas. All arithmetic is 64-bit, on host and device.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include <ctxpar/core/config.hpp>
#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1 {

// A policy size that is known only at run time.
inline constexpr std::int64_t dynamic = -1;

// Who owns which token: N ranks, I consecutive tokens each. Functions expect 0 <= p, 0 <= j, 0 <= L, 0 <= r < N.
struct ownership {
    std::int64_t ranks = 1;      // N
    std::int64_t interleave = 1; // I

    // Tokens in one round of ownership, N*I.
    CTXPAR_HD constexpr std::int64_t unit() const { return ranks * interleave; }

    CTXPAR_HD constexpr std::int64_t owner(std::int64_t position) const { return position / interleave % ranks; }

    CTXPAR_HD constexpr std::int64_t local(std::int64_t position) const {
        return position / unit() * interleave + position % interleave;
    }

    CTXPAR_HD constexpr std::int64_t global(std::int64_t index, std::int64_t rank) const {
        return index / interleave * unit() + rank * interleave + index % interleave;
    }

    CTXPAR_HD constexpr std::int64_t local_len(std::int64_t length, std::int64_t rank) const {
        const std::int64_t rest = length % unit() - rank * interleave;
        const std::int64_t last = rest < 0 ? 0 : (rest > interleave ? interleave : rest);
        return length / unit() * interleave + last;
    }

    // A bound on local_len that needs no rank: ceil(L / (N*I)) * I.
    CTXPAR_HD constexpr std::int64_t local_bound(std::int64_t length) const {
        return (length / unit() + (length % unit() != 0 ? 1 : 0)) * interleave;
    }

    friend constexpr bool operator==(const ownership&, const ownership&) = default;
};

// One rank's part of a sequence; the form in which ownership reaches a kernel.
struct shard {
    std::int64_t ranks = 1;
    std::int64_t rank = 0;
    std::int64_t interleave = 1;

    CTXPAR_HD constexpr ownership law() const { return {ranks, interleave}; }
    CTXPAR_HD constexpr bool owns(std::int64_t position) const { return law().owner(position) == rank; }
    CTXPAR_HD constexpr std::int64_t local(std::int64_t position) const { return law().local(position); }
    CTXPAR_HD constexpr std::int64_t global(std::int64_t index) const { return law().global(index, rank); }
    CTXPAR_HD constexpr std::int64_t local_len(std::int64_t length) const { return law().local_len(length, rank); }

    friend constexpr bool operator==(const shard&, const shard&) = default;
};

static_assert(std::is_trivially_copyable_v<ownership> && std::is_trivially_copyable_v<shard>);

// An ownership law from untrusted numbers. config_error: "ranks" (N < 1), "interleave" (I < 1, or N*I past 63 bits).
inline ownership make_ownership(std::int64_t ranks, std::int64_t interleave) {
    require(ranks >= 1, "ranks", "the number of ranks that share the KV is ", ranks, "; it must be at least 1");
    require(interleave >= 1, "interleave", "the interleave is ", interleave, " tokens; it must be at least 1");
    require(interleave <= std::numeric_limits<std::int64_t>::max() / ranks, "interleave", "an interleave of ",
            interleave, " tokens over ", ranks,
            " ranks makes a round that does not fit 63 bits; the interleave may be at most ",
            std::numeric_limits<std::int64_t>::max() / ranks);
    return {ranks, interleave};
}

// A length from untrusted input: config_error "length" where it is negative.
inline void check_length(std::int64_t length) {
    require(length >= 0, "length", "a length of ", length, " tokens was given; lengths must be at least 0");
}

// The vector form of local_len: local[i] = local_len(lengths[i], rank). The spans have equal sizes and may be the same.
inline void local_lengths(const ownership& law, std::int64_t rank, std::span<const std::int64_t> lengths,
                          std::span<std::int64_t> local) {
    require(lengths.size() == local.size(), "length", "local_lengths was given ", lengths.size(),
            " lengths and room for ", local.size(), "; both must be equal");
    for (std::size_t i = 0; i < lengths.size(); ++i) local[i] = law.local_len(lengths[i], rank);
}

// Interleave policy: interleave<16> is an empty object, interleave<dynamic>{16} holds its value.
template <std::int64_t Size = dynamic>
struct interleave {
    static_assert(Size >= 1, "ctxpar::interleave needs a size of at least 1 token, or ctxpar::dynamic");
    static constexpr std::int64_t size() { return Size; }
};

template <>
struct interleave<dynamic> {
    std::int64_t tokens = 1;
    constexpr std::int64_t size() const { return tokens; }
};

// What a type must have to stand in a policy's interleave slot.
template <class T>
concept interleave_policy = requires(const T value) {
    { value.size() } -> std::convertible_to<std::int64_t>;
};

static_assert(interleave_policy<interleave<16>> && interleave_policy<interleave<>> && std::is_empty_v<interleave<16>>);

} // namespace ctxpar::inline v0_1
