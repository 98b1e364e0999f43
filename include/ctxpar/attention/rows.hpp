// Which keys a query row may see, and the law that makes every mask work on a shard.
//
// A row sees one interval of positions, an optional always-visible prefix before it, and, for draft trees, a bit for
// each of the last (at most 64) positions. Since local order is global order, the same three things in local indexes
// say what the row sees on one rank: localise() is the whole of context parallelism as far as masks are concerned.
// Decode, verify, chunked prefill, sliding windows and chunked attention differ only in the interval. Kernels know
// nothing else.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/core/config.hpp>
#include <ctxpar/layout/interleave.hpp>

namespace ctxpar::inline v0_1 {

inline constexpr std::int64_t max_tree_nodes = 64;

// The keys one row may see: index j is visible iff (j < prefix or lo <= j < hi), and, where j >= tail, bit j - tail of
// tail_bits is set. Positions before localise(), local indexes after it. A row that sees nothing has prefix 0 and lo =
// hi = tail.
struct visible_keys {
    std::int64_t prefix = 0;     // keys [0, prefix) are visible too
    std::int64_t lo = 0;         // first key of the interval; prefix <= lo
    std::int64_t hi = 0;         // one past the last key; lo <= hi
    std::int64_t tail = 0;       // first key under the bitmask; hi where there is none; hi - tail <= 64
    std::uint64_t tail_bits = 0; // bit x: key tail + x is visible

    CTXPAR_HD constexpr bool sees(std::int64_t key) const {
        if (key >= hi || (key < lo && key >= prefix)) return false;
        return key < tail || (tail_bits >> (key - tail) & 1U) != 0;
    }

    // How many keys the row sees.
    CTXPAR_HD constexpr std::int64_t count() const {
        const std::int64_t plain_end = tail < hi ? tail : hi;
        const std::int64_t plain = (plain_end > lo ? plain_end - lo : 0) + (prefix < plain_end ? prefix : plain_end);
        std::int64_t masked = 0;
        for (std::int64_t key = plain_end; key < hi; ++key) masked += sees(key) ? 1 : 0;
        return plain + masked;
    }

    // Bit x: key first + x is visible, for the 32 keys from `first`.
    CTXPAR_HD constexpr std::uint32_t tile_mask(std::int64_t first) const {
        const std::uint32_t all =
            below(hi - first) & (~below(lo - first) | below(prefix - first)); // the interval and the prefix
        if (first + 32 <= tail || tail >= hi) return all;
        const std::int64_t shift = tail - first; // the bitmask starts at bit `shift` of the tile
        const std::uint64_t bits =
            shift >= 0 ? tail_bits << shift : (shift > -max_tree_nodes ? tail_bits >> -shift : 0U);
        return all & (below(shift) | static_cast<std::uint32_t>(bits));
    }

    friend constexpr bool operator==(const visible_keys&, const visible_keys&) = default;

private:
    // Ones in the lowest n bits.
    CTXPAR_HD static constexpr std::uint32_t below(std::int64_t n) {
        return n <= 0 ? 0U : (n >= 32 ? ~0U : (1U << n) - 1U);
    }
};

// The mask of a step, in positions. With p = a row's position: [lo, p+1), lo = max(0, p+1-window) where there is a
// window, (p / chunk) * chunk where there is a chunk; the first `prefix` positions stay visible beside either.
struct mask_rule {
    std::int64_t window = 0; // tokens a row sees at most, its own included; 0 = no window
    std::int64_t chunk = 0;  // tokens of a chunk of chunked-local attention; 0 = none
    std::int64_t prefix = 0; // first tokens that every row sees (attention sinks that are tokens)

    friend constexpr bool operator==(const mask_rule&, const mask_rule&) = default;
};

// What row i of the last `rows` tokens of a sequence of `length` tokens may see, in positions. A row before the start
// of the sequence sees nothing. `tree_bits` (draft trees): bit x = the row sees the x-th of the last `rows` tokens.
CTXPAR_HD constexpr visible_keys causal_row(std::int64_t length, std::int64_t rows, std::int64_t i,
                                            const mask_rule& rule, const std::uint64_t* tree_bits = nullptr) {
    const std::int64_t end = length - rows + i + 1;
    if (end <= 0 || (tree_bits != nullptr && rows > max_tree_nodes)) return {};
    visible_keys row;
    row.lo = rule.window > 0 && end > rule.window ? end - rule.window : 0;
    if (rule.chunk > 0 && (end - 1) / rule.chunk * rule.chunk > row.lo) row.lo = (end - 1) / rule.chunk * rule.chunk;
    row.prefix = rule.prefix < row.lo ? rule.prefix : row.lo;
    row.hi = end;
    row.tail = end;
    if (tree_bits != nullptr) {
        row.hi = length;
        row.tail = length > rows ? length - rows : 0;
        row.tail_bits = length >= rows ? *tree_bits : *tree_bits >> (rows - length);
        if (row.lo > row.tail) row.lo = row.tail; // the window is about the context; the tree decides on its own nodes
        if (row.prefix > row.lo) row.prefix = row.lo;
    }
    return row;
}

// The same keys as local indexes of one rank: bounds by local_len, tail bits one by one.
CTXPAR_HD constexpr visible_keys localise(const visible_keys& row, const shard& part) {
    visible_keys local;
    local.prefix = part.local_len(row.prefix);
    local.lo = part.local_len(row.lo);
    local.hi = part.local_len(row.hi);
    local.tail = part.local_len(row.tail);
    for (std::int64_t key = local.tail; key < local.hi; ++key) {
        const std::uint64_t bit = row.tail_bits >> (part.global(key) - row.tail) & 1U;
        local.tail_bits |= bit << (key - local.tail);
    }
    return local;
}

// What is left of a row's keys within [start, start + length), counted from start: the row as it sees a part of the
// sequence that was copied elsewhere.
CTXPAR_HD constexpr visible_keys within(const visible_keys& row, std::int64_t start, std::int64_t length) {
    const auto inside = [&](std::int64_t key) {
        return key <= start ? std::int64_t{0} : (key - start < length ? key - start : length);
    };
    visible_keys part;
    part.prefix = inside(row.prefix);
    part.lo = inside(row.lo);
    part.hi = inside(row.hi);
    part.tail = inside(row.tail);
    const std::int64_t skipped = start > row.tail ? start - row.tail : 0;
    if (skipped < max_tree_nodes) part.tail_bits = row.tail_bits >> skipped;
    if (part.tail == part.hi) part.tail_bits = 0;
    return part;
}

// A run of rows that read the same request's keys; inside it lo and hi never decrease. Local indexes.
struct segment {
    std::int64_t request = 0;   // row of the block table
    std::int64_t first_row = 0; // its rows are [first_row, first_row + rows)
    std::int64_t rows = 0;
    std::int64_t begin = 0;        // no row sees a key before begin (0 where a prefix is visible)
    std::int64_t end = 0;          // no row sees a key at or past end
    std::int64_t split_tokens = 1; // keys one split covers, a multiple of the grain; splits start at multiples of it
    std::int64_t first_split = 0;  // begin / split_tokens

    // Splits [first_split, first_split + splits()).
    CTXPAR_HD constexpr std::int64_t splits() const {
        return end > begin ? (end + split_tokens - 1) / split_tokens - first_split : 0;
    }
};

// On the host split boundaries are multiples of this many keys, and no fp32 accumulator takes more keys than this
// before it is folded into the next level.
inline constexpr std::int64_t split_grain = 1024;

// Below this many keys a split is not worth its combine, on the host.
inline constexpr std::int64_t min_split_tokens = 4 * split_grain;

// How the keys of a request are split: a backend's own numbers, from the shape and its device alone.
struct split_rule {
    std::int64_t most = 8;                 // splits of a request
    std::int64_t least = min_split_tokens; // keys of a split, a multiple of the grain
    std::int64_t grain = split_grain;      // splits begin at multiples of this many keys
};

// What such a rule may depend on: the largest step of a shape.
struct split_work {
    std::int64_t rows = 1; // query rows
    std::int64_t rows_per_request = 1;
    std::int64_t heads = 1; // gathered query heads
    std::int64_t kv_heads = 1;
    std::int64_t value_width = 1;
};

// Sets the split schedule of a segment: at most rule.most splits of equal length. It depends on the segment's own
// keys and the rule only, so a request's bits do not depend on its batch or on the number of threads.
CTXPAR_HD constexpr void schedule_splits(segment& part, const split_rule& rule) {
    const std::int64_t keys = part.end - part.begin;
    std::int64_t tokens = (keys + rule.most - 1) / rule.most;
    tokens = (tokens + rule.grain - 1) / rule.grain * rule.grain;
    part.split_tokens = tokens < rule.least ? rule.least : tokens;
    part.first_split = part.begin / part.split_tokens;
    // A first split that starts before `begin` may push the count past the most: widen until it fits.
    while (part.splits() > rule.most) {
        part.split_tokens += rule.grain;
        part.first_split = part.begin / part.split_tokens;
    }
}
CTXPAR_HD constexpr void schedule_splits(segment& part, std::int64_t most) {
    split_rule rule;
    rule.most = most;
    schedule_splits(part, rule);
}

static_assert(std::is_trivially_copyable_v<visible_keys> && std::is_trivially_copyable_v<segment>);

} // namespace ctxpar::inline v0_1
