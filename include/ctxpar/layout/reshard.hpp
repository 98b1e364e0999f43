// Re-sharding: which cached tokens go where when the KV of a request changes its layout from (N1, I1) to (N2, I2).
//
// A plan is a list of runs [src_rank, src_local, dst_rank, dst_local, count]. A run belongs to one pair of ranks and is
// maximal: it goes on while both local indexes grow by one, over tokens of other pairs too. Runs are ordered by their
// first token. On top of them, block moves are the same plan in slots of two paged caches.
//
// No table is behind a plan. Cut where a chunk of I1 or of I2 tokens ends, the tokens of a piece have one owner on each
// side, and a run is one piece but for two cases:
//
//   the same layout          the run of a rank is all that it holds
//   (N1-1)*I1 == (N2-1)*I2   where both chunks end at one token, both ranks come back at one token: two pieces. There
//                            is no third, since I1 != I2 and so one chunk ends inside the other
//
// One rank owns all tokens whatever its interleave, and is taken to have the interleave of the other side. So the work
// is proportional to the number of runs. Everything is planned for tokens [first, end): what has been appended since is
// planned by itself, and a long cache can be moved chunk by chunk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1 {

// Tokens src_local, src_local + 1, ... of one rank become dst_local, dst_local + 1, ... of another or of the same.
struct reshard_run {
    std::int64_t src_rank = 0;
    std::int64_t src_local = 0; // index among the source rank's tokens of the request
    std::int64_t dst_rank = 0;
    std::int64_t dst_local = 0; // index among the target rank's tokens of the request
    std::int64_t count = 0;     // tokens, at least 1

    friend constexpr bool operator==(const reshard_run&, const reshard_run&) = default;
};

namespace detail {

// The owner's side of a walk over positions. It follows the law chunk by chunk, without a division.
struct chunk_walk {
    ownership law;
    std::int64_t rank = 0;  // owner of the position
    std::int64_t local = 0; // its local index
    std::int64_t left = 0;  // tokens of its chunk from there on

    constexpr chunk_walk(const ownership& owners, std::int64_t position)
        : law(owners), rank(owners.owner(position)), local(owners.local(position)),
          left(owners.interleave - position % owners.interleave) {}

    // Goes on by at most `left` tokens.
    constexpr void advance(std::int64_t count) {
        local += count;
        left -= count;
        if (left > 0) return;
        left = law.interleave;
        if (++rank == law.ranks) {
            rank = 0;
        } else {
            local -= law.interleave;
        }
    }
};

// Tokens from `position` on that lie in one chunk of either side.
struct reshard_piece {
    std::int64_t position = 0;
    chunk_walk src, dst;
    std::int64_t count = 0;

    constexpr reshard_run run() const { return {src.rank, src.local, dst.rank, dst.local, count}; }
};

// visit(piece) for each piece of the tokens [first, end), in order.
template <class Visit>
constexpr void for_each_piece(const ownership& from, const ownership& to, std::int64_t first, std::int64_t end,
                              const Visit& visit) {
    reshard_piece piece{first, {from, first}, {to, first}, 0};
    for (; piece.position < end; piece.position += piece.count) {
        piece.count = std::min({piece.src.left, piece.dst.left, end - piece.position});
        visit(static_cast<const reshard_piece&>(piece));
        piece.src.advance(piece.count);
        piece.dst.advance(piece.count);
    }
}

// lcm(a, b) for a, b >= 1, or the largest number where it does not fit 63 bits.
constexpr std::int64_t lcm_or_largest(std::int64_t a, std::int64_t b) {
    const std::int64_t times = a / std::gcd(a, b);
    return times > largest_index / b ? largest_index : times * b;
}

// Refuses what is no interval of positions: "range".
constexpr void check_token_range(std::int64_t first, std::int64_t end) {
    if (first < 0 || end < first)
        require(false, "range", "tokens [", first, ", ", end,
                ") were named; the first must be at least 0 and the end at least the first");
}

} // namespace detail

// The change of one layout into another. Functions expect 0 <= first <= end.
struct reshard_law {
    ownership from;
    ownership to;

    // Whether every token stays where it is, at its local index.
    constexpr bool same_layout() const { return plain().from == plain().to; }

    // Tokens after which both layouts begin a round together; 2^63 - 1 where it does not fit 63 bits.
    constexpr std::int64_t period() const { return detail::lcm_or_largest(from.unit(), to.unit()); }

    // How many of the tokens [first, end) have one rank's number on both sides. Closed form where the interleaves are
    // equal or a side has one rank; else a walk over at most two periods.
    constexpr std::int64_t kept(std::int64_t first, std::int64_t end) const {
        const reshard_law law = plain();
        if (law.from.interleave == law.to.interleave) return law.kept_before(end) - law.kept_before(first);
        const std::int64_t periods = (end - first) / period();
        const std::int64_t rest = law.kept_by_walk(first, first + (end - first) % period());
        return periods == 0 ? rest : periods * law.kept_by_walk(first, first + period()) + rest;
    }

    // How many of them change rank.
    constexpr std::int64_t moved(std::int64_t first, std::int64_t end) const { return end - first - kept(first, end); }

    // A bound on the number of runs, in constant time; exact but where runs of two pieces are (top of the file).
    constexpr std::int64_t run_bound(std::int64_t first, std::int64_t end) const {
        if (first == end) return 0;
        const reshard_law law = plain();
        const std::int64_t src_ends = ends(law.from.interleave, first, end);
        if (law.from == law.to) return std::min(law.from.ranks, src_ends + 1);
        if (law.from.interleave == law.to.interleave) return src_ends + 1;
        const std::int64_t both = ends(detail::lcm_or_largest(law.from.interleave, law.to.interleave), first, end);
        return src_ends - both + ends(law.to.interleave, first, end) + 1;
    }

    // Calls visit(run) for each run of the tokens [first, end), in order.
    template <class Visit>
    constexpr void runs(std::int64_t first, std::int64_t end, Visit&& visit) const {
        const reshard_law law = plain();
        if (law.from == law.to) return law.runs_of_one_layout(first, end, visit);
        const std::int64_t gap = law.from.unit() - law.from.interleave; // tokens between two chunks of a rank
        if (gap == law.to.unit() - law.to.interleave) return law.runs_of_two_pieces(first, end, gap, visit);
        detail::for_each_piece(law.from, law.to, first, end,
                               [&](const detail::reshard_piece& piece) { visit(piece.run()); });
    }

    friend constexpr bool operator==(const reshard_law&, const reshard_law&) = default;

private:
    // The same change, where a side of one rank has the other's interleave.
    constexpr reshard_law plain() const {
        if (from.ranks == 1) return {{1, to.interleave}, to};
        if (to.ranks == 1) return {from, {1, from.interleave}};
        return *this;
    }

    // Multiples of `size` inside (first, end).
    static constexpr std::int64_t ends(std::int64_t size, std::int64_t first, std::int64_t end) {
        return (end - 1) / size - first / size;
    }

    // Tokens of [0, length) that are kept, for equal interleaves: of lcm(N1, N2) chunks the first min(N1, N2).
    constexpr std::int64_t kept_before(std::int64_t length) const {
        const std::int64_t each = std::min(from.unit(), to.unit());
        return length / period() * each + std::min(length % period(), each);
    }

    constexpr std::int64_t kept_by_walk(std::int64_t first, std::int64_t end) const {
        std::int64_t count = 0;
        detail::for_each_piece(from, to, first, end, [&](const detail::reshard_piece& piece) {
            count += piece.src.rank == piece.dst.rank ? piece.count : 0;
        });
        return count;
    }

    template <class Visit>
    constexpr void runs_of_one_layout(std::int64_t first, std::int64_t end, Visit& visit) const {
        detail::chunk_walk at(from, first);
        std::int64_t position = first;
        for (std::int64_t turn = 0; turn < from.ranks && position < end; ++turn) {
            visit(reshard_run{at.rank, at.local, at.rank, at.local, from.local_len(end, at.rank) - at.local});
            const std::int64_t step = std::min(at.left, end - position);
            position += step;
            at.advance(step);
        }
    }

    template <class Visit>
    constexpr void runs_of_two_pieces(std::int64_t first, std::int64_t end, std::int64_t gap, Visit& visit) const {
        detail::for_each_piece(from, to, first, end, [&](const detail::reshard_piece& piece) {
            const bool both_begin = piece.src.left == from.interleave && piece.dst.left == to.interleave;
            if (both_begin && piece.position - gap > first) return; // the second piece of a run
            reshard_run run = piece.run();
            const std::int64_t after = end - piece.position - piece.count;
            if (piece.src.left == piece.count && piece.dst.left == piece.count && after > gap)
                run.count += std::min({from.interleave, to.interleave, after - gap});
            visit(static_cast<const reshard_run&>(run));
        });
    }
};

static_assert(std::is_trivially_copyable_v<reshard_run> && std::is_trivially_copyable_v<reshard_law>);

// A change of layout from untrusted numbers: config_error "ranks", "interleave", as make_ownership.
inline reshard_law make_reshard(const ownership& from, const ownership& to) {
    require(from.ranks >= 1 && to.ranks >= 1, "ranks", "a reshard from ", from.ranks, " ranks to ", to.ranks,
            " ranks was asked for; both must be at least 1");
    require(from.interleave >= 1 && to.interleave >= 1, "interleave", "a reshard from an interleave of ",
            from.interleave, " tokens to one of ", to.interleave, " was asked for; both must be at least 1");
    return {make_ownership(from.ranks, from.interleave), make_ownership(to.ranks, to.interleave)};
}

// Calls visit(const reshard_run&) for each run of the tokens [first, end), in order of their first tokens. Allocates
// nothing. Runs of neighbouring ranges together hold the same tokens as those of the whole, at the same places; a run
// is cut where a range ends. config_error "range" before the first call.
template <class Visit>
constexpr void for_each_run(const reshard_law& law, std::int64_t first, std::int64_t end, Visit&& visit) {
    detail::check_token_range(first, end);
    law.runs(first, end, visit);
}

// The same as a list. config_error "range".
inline std::vector<reshard_run> reshard_runs(const reshard_law& law, std::int64_t first, std::int64_t end) {
    detail::check_token_range(first, end);
    std::vector<reshard_run> all;
    all.reserve(static_cast<std::size_t>(law.run_bound(first, end)));
    law.runs(first, end, [&](const reshard_run& run) { all.push_back(run); });
    return all;
}

// The paged cache of one request in one layout. The block ids of its table mean the same on every rank.
struct paged_request {
    ownership law;
    block_table table;
    std::int64_t request = 0;      // row of the table
    std::int64_t pool_blocks = -1; // blocks of a rank's pool; -1: not known
};

// Rows src_slot, src_slot + 1, ... of one rank's pool go to dst_slot, dst_slot + 1, ... of another's or of its own.
struct block_move {
    std::int64_t src_rank = 0;
    std::int64_t src_slot = 0; // row in the source rank's pool
    std::int64_t dst_rank = 0;
    std::int64_t dst_slot = 0; // row in the target rank's pool
    std::int64_t count = 0;    // tokens, at least 1

    friend constexpr bool operator==(const block_move&, const block_move&) = default;
};

static_assert(std::is_trivially_copyable_v<paged_request> && std::is_trivially_copyable_v<block_move>);

namespace detail {

// Refuses a cache whose table does not hold the tokens [first, end): "block_size", "request", "table_too_short",
// "table". Blocks of other tokens may be anything.
inline void check_paged_request(const paged_request& cache, std::int64_t first, std::int64_t end) {
    const std::int64_t size = cache.table.block_size;
    check_block_size(size);
    check_request(cache.table, cache.request);
    const std::int64_t present = cache.table.blocks_of(cache.request);
    reshard_law{cache.law, cache.law}.runs(first, end, [&](const reshard_run& held) {
        const std::int64_t needed = blocks_for(held.src_local + held.count, size);
        require(needed <= present, "table_too_short", "tokens [", first, ", ", end, ") of request ", cache.request,
                " end in block ", needed - 1, " of rank ", held.src_rank, " (", size, " tokens a block, ",
                cache.law.ranks, " ranks, interleave ", cache.law.interleave, "); the table has ", present, " blocks");
        for (std::int64_t block = held.src_local / size; block < needed; ++block)
            check_block_id(cache.table, cache.request, block, cache.pool_blocks);
    });
}

// Cuts a run where a block of either side ends and the next one does not follow it in the pool.
template <class Visit>
void cut_at_blocks(const reshard_run& run, const paged_request& from, const paged_request& to, Visit& visit) {
    block_move move{run.src_rank, 0, run.dst_rank, 0, 0};
    for (std::int64_t done = 0; done < run.count;) {
        const std::int64_t src = run.src_local + done, dst = run.dst_local + done;
        const std::int64_t src_slot = from.table.slot(from.request, src), dst_slot = to.table.slot(to.request, dst);
        const std::int64_t count = std::min({run.count - done, from.table.block_size - src % from.table.block_size,
                                             to.table.block_size - dst % to.table.block_size});
        const bool follows = src_slot - move.count == move.src_slot && dst_slot - move.count == move.dst_slot;
        if (done > 0 && !follows) visit(static_cast<const block_move&>(move));
        if (done == 0 || !follows) move = {run.src_rank, src_slot, run.dst_rank, dst_slot, 0};
        move.count += count;
        done += count;
    }
    visit(static_cast<const block_move&>(move));
}

} // namespace detail

// Calls visit(const block_move&) for each part of a run of the tokens [first, end) whose slots follow one another on
// both sides, run by run and in order; the block sizes may differ. Parts of two runs stay two moves. Allocates nothing.
// Where the two tables share no block of a rank's pool, moves may be carried out in any order. Before the first call:
// config_error "range", "ranks", "interleave", "block_size", "request", "table_too_short", "table", for either side.
template <class Visit>
void for_each_block_move(const paged_request& from, const paged_request& to, std::int64_t first, std::int64_t end,
                         Visit&& visit) {
    detail::check_token_range(first, end);
    const reshard_law law = make_reshard(from.law, to.law);
    detail::check_paged_request(from, first, end);
    detail::check_paged_request(to, first, end);
    law.runs(first, end, [&](const reshard_run& run) { detail::cut_at_blocks(run, from, to, visit); });
}

// The same as a list, with the same errors.
inline std::vector<block_move> block_moves(const paged_request& from, const paged_request& to, std::int64_t first,
                                           std::int64_t end) {
    std::vector<block_move> all;
    for_each_block_move(from, to, first, end, [&](const block_move& move) { all.push_back(move); });
    return all;
}

// How many blocks leave the ranks of a layout when a cache of `length` tokens is sent in whole blocks, full or partly
// filled; a block without a token is never sent. The sum of blocks_per_rank, in constant time: 16 tokens in blocks of
// 16 on 4 ranks are 4 blocks with an interleave of 1, and one with an interleave of 16. Throws config_error "length",
// "block_size".
constexpr std::int64_t blocks_sent(const ownership& law, std::int64_t block_size, std::int64_t length) {
    if (length < 0) check_length(length);
    if (block_size < 1) check_block_size(block_size);
    // Ranks before the owner of the next token hold as much as rank 0, those after it as much as the last rank.
    const std::int64_t next = law.owner(length), last = law.ranks - 1;
    return next * blocks_for(law.local_len(length, 0), block_size) +
           blocks_for(law.local_len(length, next), block_size) +
           (last - next) * blocks_for(law.local_len(length, last), block_size);
}

} // namespace ctxpar::inline v0_1
