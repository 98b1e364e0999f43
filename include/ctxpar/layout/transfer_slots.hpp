// Which slots of a source shard's pool go to which slots of a target shard's: the runs of a reshard between one pair,
// in tokens or rounded out to whole blocks.
//
// Whole blocks can be sent where a block holds the same tokens on both sides: blocks of one size B, and one layout, or
// interleaves that are multiples of B (of one rank, any). Then every block with a token is sent and no other: 16 tokens
// in blocks of 16 on 4 ranks are 4 blocks with an interleave of 1, and one with an interleave of 16.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/reshard.hpp>

namespace ctxpar::inline v0_1 {

// What a transfer is cut into. In whole blocks the rest of a partly filled block travels too, and what it held in the
// target's block is overwritten.
enum class transfer_unit : std::uint8_t { tokens, blocks };

// Refuses with "whole_blocks" a change of layout that whole blocks can not make, and says why.
inline void check_whole_blocks(const reshard_law& law, std::int64_t src_block_size, std::int64_t dst_block_size) {
    check_block_size(src_block_size);
    check_block_size(dst_block_size);
    require(src_block_size == dst_block_size, "whole_blocks", "blocks of ", src_block_size,
            " tokens can not be sent whole into blocks of ", dst_block_size,
            " tokens; both must be equal, or the transfer be planned in tokens");
    if (law.same_layout()) return;
    const auto fits = [&](const ownership& side) { return side.ranks == 1 || side.interleave % src_block_size == 0; };
    require(fits(law.from) && fits(law.to), "whole_blocks", "blocks of ", src_block_size,
            " tokens can not be sent whole from ", law.from.ranks, " ranks with an interleave of ", law.from.interleave,
            " to ", law.to.ranks, " ranks with an interleave of ", law.to.interleave,
            ": a block holds other tokens on the other side; interleaves must be multiples of the block size, or the "
            "transfer be planned in tokens");
}

namespace detail {

// Division by the size of a block or page, by a shift where it is a power of two: lists are long, and divisions slow.
class size_divisor {
public:
    constexpr explicit size_divisor(std::int64_t size)
        : size_(size), shift_(std::has_single_bit(static_cast<std::uint64_t>(size))
                                  ? std::countr_zero(static_cast<std::uint64_t>(size))
                                  : -1) {}
    // One that is larger than any number.
    static constexpr size_divisor endless() {
        size_divisor all(largest_index);
        all.shift_ = 63;
        return all;
    }

    constexpr std::int64_t size() const { return size_; }
    constexpr std::int64_t quotient(std::int64_t number) const {
        return shift_ >= 0 ? number >> shift_ : number / size_;
    }
    // What is left of the number behind that many sizes.
    constexpr std::int64_t rest(std::int64_t number, std::int64_t quotient) const { return number - quotient * size_; }

private:
    std::int64_t size_;
    int shift_;
};

// A rank's chunks of tokens from some position on, the current one cut at that position and at the end.
class rank_chunks {
public:
    rank_chunks(const ownership& law, std::int64_t rank, std::int64_t first, std::int64_t end)
        : law_(law), end_(end), local_(law.local_len(first, rank)) {
        const std::int64_t ahead = (rank - law.owner(first) + law.ranks) % law.ranks; // chunks to the rank's turn
        const std::int64_t rest = law.interleave - first % law.interleave;            // of the chunk of `first`
        if (ahead == 0) {
            set(first, rest);
        } else if (rest >= end - first || ahead - 1 > (end - first - rest) / law.interleave) {
            set(end, 0);
        } else {
            set(first + rest + (ahead - 1) * law.interleave, law.interleave);
        }
    }

    bool done() const { return begin_ >= end_; }
    std::int64_t begin() const { return begin_; }
    std::int64_t last() const { return begin_ + count_; } // one past the chunk's last token
    std::int64_t local(std::int64_t position) const { return local_ + (position - begin_); }

    void next() { skip(1); }

    // Goes on to the first chunk with a token at `position` or behind it.
    void go_to(std::int64_t position) {
        const std::int64_t ahead = position - last();
        if (ahead >= 0) skip(ahead < law_.unit() ? 1 : ahead / law_.unit() + 1);
    }

private:
    void set(std::int64_t begin, std::int64_t room) {
        begin_ = begin;
        count_ = std::min(room, end_ - begin);
    }

    // Goes on by `turns` rounds.
    void skip(std::int64_t turns) {
        const std::int64_t gap = law_.unit() - law_.interleave; // tokens of the other ranks
        const std::int64_t left = end_ - last();
        if (gap >= left || turns - 1 > (left - gap) / law_.unit()) return set(end_, 0);
        local_ += count_ + (turns - 1) * law_.interleave;
        set(last() + gap + (turns - 1) * law_.unit(), law_.interleave);
    }

    ownership law_;
    std::int64_t end_;
    std::int64_t local_; // local index of begin_
    std::int64_t begin_ = 0;
    std::int64_t count_ = 0;
};

// visit(src_local, dst_local, count) for each maximal run of the tokens [first, end) from one shard to another.
template <class Visit>
void for_each_run_between(const reshard_law& law, std::int64_t src, std::int64_t dst, std::int64_t first,
                          std::int64_t end, const Visit& visit) {
    if (law.same_layout()) {
        if (src != dst) return;
        const std::int64_t begin = law.from.local_len(first, src), last = law.from.local_len(end, src);
        if (begin < last) visit(begin, begin, last - begin);
        return;
    }
    ownership from = law.from, to = law.to; // one rank's tokens follow one another, whatever its interleave
    if (from.ranks == 1) from.interleave = to.interleave;
    if (to.ranks == 1) to.interleave = from.interleave;
    std::int64_t src_local = 0, dst_local = 0, count = 0;
    rank_chunks a(from, src, first, end), b(to, dst, first, end);
    while (!a.done() && !b.done()) {
        const std::int64_t begin = std::max(a.begin(), b.begin()), last = std::min(a.last(), b.last());
        if (begin < last) {
            if (a.local(begin) != src_local + count || b.local(begin) != dst_local + count) {
                if (count > 0) visit(src_local, dst_local, count);
                src_local = a.local(begin);
                dst_local = b.local(begin);
                count = 0;
            }
            count += last - begin;
            const bool a_ends = a.last() == last, b_ends = b.last() == last;
            if (a_ends) a.next();
            if (b_ends) b.next();
        } else if (a.last() <= b.begin()) {
            a.go_to(b.begin());
        } else {
            b.go_to(a.begin());
        }
    }
    if (count > 0) visit(src_local, dst_local, count);
}

// The tokens of one request in two paged caches. Checked by its user.
struct slot_plan {
    reshard_law law;
    paged_request from, to;
    std::int64_t first = 0, end = 0;
    transfer_unit unit = transfer_unit::tokens;

    // visit(src_slot, dst_slot, count) for each maximal run of slots that follow one another on both sides, in token
    // order, from one shard to another.
    template <class Visit>
    void for_each(std::int64_t src_shard, std::int64_t dst_shard, const Visit& visit) const {
        const size_divisor src_size(from.table.block_size), dst_size(to.table.block_size);
        std::int64_t src_slot = 0, dst_slot = 0, count = 0;
        const auto add = [&](std::int64_t src, std::int64_t dst, std::int64_t tokens) {
            if (unit == transfer_unit::blocks) { // both indexes are as far inside their blocks
                const std::int64_t before = src_size.rest(src, src_size.quotient(src));
                src -= before;
                dst -= before;
                tokens = blocks_for(before + tokens, src_size.size()) * src_size.size();
            }
            for (std::int64_t step = 0; tokens > 0; tokens -= step, src += step, dst += step) {
                const std::int64_t src_block = src_size.quotient(src), dst_block = dst_size.quotient(dst);
                const std::int64_t src_at = src_size.rest(src, src_block), dst_at = dst_size.rest(dst, dst_block);
                step = std::min({tokens, src_size.size() - src_at, dst_size.size() - dst_at});
                const std::int64_t a = from.table.id(from.request, src_block) * src_size.size() + src_at;
                const std::int64_t b = to.table.id(to.request, dst_block) * dst_size.size() + dst_at;
                if (a - count != src_slot || b - count != dst_slot) {
                    if (count > 0) visit(src_slot, dst_slot, count);
                    src_slot = a;
                    dst_slot = b;
                    count = 0;
                }
                count += step;
            }
        };
        for_each_run_between(law, src_shard, dst_shard, first, end, add);
        if (count > 0) visit(src_slot, dst_slot, count);
    }
};

} // namespace detail

// A whole block of one rank's pool that goes to another's or to its own.
struct whole_block {
    std::int64_t src_shard = 0;
    std::int64_t src_block = 0; // block id
    std::int64_t dst_shard = 0;
    std::int64_t dst_block = 0;

    friend constexpr bool operator==(const whole_block&, const whole_block&) = default;
};

// Calls visit(const whole_block&) for each block that holds one of the tokens [first, end), shard by source shard and
// in token order between two shards. Allocates nothing. config_error "whole_blocks", and as for_each_block_move.
template <class Visit>
void for_each_whole_block(const paged_request& from, const paged_request& to, std::int64_t first, std::int64_t end,
                          Visit&& visit) {
    detail::check_token_range(first, end);
    const detail::slot_plan slots{make_reshard(from.law, to.law), from, to, first, end, transfer_unit::blocks};
    const std::int64_t size = from.table.block_size;
    check_whole_blocks(slots.law, size, to.table.block_size);
    detail::check_paged_request(from, first, end);
    detail::check_paged_request(to, first, end);
    for (std::int64_t src = 0; src < from.law.ranks; ++src)
        for (std::int64_t dst = 0; dst < to.law.ranks; ++dst)
            slots.for_each(src, dst, [&](std::int64_t src_slot, std::int64_t dst_slot, std::int64_t count) {
                for (std::int64_t at = 0; at < count; at += size)
                    visit(whole_block{src, (src_slot + at) / size, dst, (dst_slot + at) / size});
            });
}

} // namespace ctxpar::inline v0_1
