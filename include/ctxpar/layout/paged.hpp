// Paged KV: from a token's position to its row in a rank's pool.
//
//   slot(p, r) = owner(p) == r ? table[local(p) / B] * B + local(p) mod B : -1
//
// A block holds B tokens of one rank. The scheduler keeps one table per request whose block ids mean the same on every
// rank, so one id stands for a virtual block of B*N tokens. A slot is a token's row in the rank's own pool; -1 is "not
// on this rank" and "skip". The interleave I need not divide B. Ownership always follows from the law and B, never from
// the smaller blocks that a kernel may use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ctxpar/core/config.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>

namespace ctxpar::inline v0_1 {

enum class index_type : std::uint8_t { i32, u32, i64 };

// A typed view of an integer array, read as 64-bit numbers.
struct index_view {
    const void* data = nullptr; // null: there is no array; at() must not be called
    index_type type = index_type::i64;

    CTXPAR_HD std::int64_t at(std::int64_t i) const {
        if (type == index_type::i32) return static_cast<const std::int32_t*>(data)[i];
        if (type == index_type::u32) return static_cast<const std::uint32_t*>(data)[i];
        return static_cast<const std::int64_t*>(data)[i];
    }
};

CTXPAR_HD constexpr index_view index_of(const std::int32_t* data) {
    return {data, index_type::i32};
}
CTXPAR_HD constexpr index_view index_of(const std::uint32_t* data) {
    return {data, index_type::u32};
}
CTXPAR_HD constexpr index_view index_of(const std::int64_t* data) {
    return {data, index_type::i64};
}

// Blocks [first, last) of a request's table.
struct block_range {
    std::int64_t first = 0;
    std::int64_t last = 0;

    friend constexpr bool operator==(const block_range&, const block_range&) = default;
};

// The number of blocks of B tokens that hold `tokens` tokens of one rank.
CTXPAR_HD constexpr std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_size) {
    return tokens / block_size + (tokens % block_size != 0 ? 1 : 0);
}

// The block ids of every request on this rank.
//
//   2-D       request r's block b is blocks[r * row_stride + b], b < columns
//   CSR       request r's block b is blocks[row_offsets[r] + b], b < row_offsets[r + 1] - row_offsets[r]
//   identity  no array of blocks: request r's block b is r * columns + b, or row_offsets[r] + b
//
// The element functions check nothing: 0 <= request < requests and 0 <= block < blocks_of(request).
struct block_table {
    index_view blocks;           // null data: identity
    index_view row_offsets;      // [requests + 1]; null data: 2-D
    std::int64_t requests = 0;   // rows
    std::int64_t columns = 0;    // usable blocks of a row; unused with row_offsets
    std::int64_t row_stride = 0; // elements from one row to the next; 2-D only
    std::int64_t block_size = 1; // B, tokens of one rank in a block

    // The number of blocks a request has.
    CTXPAR_HD constexpr std::int64_t blocks_of(std::int64_t request) const {
        return row_offsets.data == nullptr ? columns : row_offsets.at(request + 1) - row_offsets.at(request);
    }

    CTXPAR_HD constexpr std::int64_t id(std::int64_t request, std::int64_t block) const {
        const bool has_blocks = blocks.data != nullptr;
        const std::int64_t first =
            row_offsets.data != nullptr ? row_offsets.at(request) : request * (has_blocks ? row_stride : columns);
        return has_blocks ? blocks.at(first + block) : first + block;
    }

    // The slot of one of the rank's own tokens, given by its index among them.
    CTXPAR_HD constexpr std::int64_t slot(std::int64_t request, std::int64_t local_index) const {
        return id(request, local_index / block_size) * block_size + local_index % block_size;
    }
};

static_assert(std::is_trivially_copyable_v<index_view> && std::is_trivially_copyable_v<block_table>);

// The slot of a global position, or -1 where it belongs to another rank or is negative (a pad). Unchecked otherwise.
CTXPAR_HD constexpr std::int64_t slot_of(const shard& part, const block_table& table, std::int64_t request,
                                         std::int64_t position) {
    return position >= 0 && part.owns(position) ? table.slot(request, part.local(position)) : -1;
}

// Refuses a block size below 1: config_error "block_size".
inline void check_block_size(std::int64_t block_size) {
    require(block_size >= 1, "block_size", "the block size is ", block_size, " tokens; it must be at least 1");
}

namespace detail {

inline constexpr std::int64_t largest_index = std::numeric_limits<std::int64_t>::max();

// The divisors of `number`, ascending; empty where the list would be long or slow to find.
inline std::vector<std::int64_t> divisors(std::int64_t number) {
    constexpr std::int64_t largest_number = std::int64_t{1} << 40;
    constexpr std::size_t longest_list = 64;
    std::vector<std::int64_t> found;
    if (number < 1 || number > largest_number) return found;
    for (std::int64_t i = 1; i * i <= number; ++i) {
        if (number % i != 0) continue;
        found.push_back(i);
        if (i != number / i) found.push_back(number / i);
    }
    if (found.size() > longest_list) found.clear();
    std::sort(found.begin(), found.end());
    return found;
}

// " (one of 1, 2, 4)", or nothing without a list.
inline std::string one_of(const std::vector<std::int64_t>& legal) {
    return legal.empty() ? std::string() : " (one of " + join(legal) + ")";
}

// Refuses a request outside the table ("request") and row offsets that can not be read through ("table").
inline void check_request(const block_table& table, std::int64_t request) {
    require(request >= 0 && request < table.requests, "request", "request ", request,
            " was named; the block table has ", table.requests, " requests, counted from 0");
    if (table.row_offsets.data == nullptr) return;
    const std::int64_t first = table.row_offsets.at(request);
    const std::int64_t last = table.row_offsets.at(request + 1);
    require(first >= 0 && first <= last, "table", "the blocks of request ", request, " are [", first, ", ", last,
            ") of the block list; row offsets must be at least 0 and must not decrease");
}

// Refuses a block id that is negative, outside a pool of known size, or whose slots pass 63 bits: "table".
inline void check_block_id(const block_table& table, std::int64_t request, std::int64_t block,
                           std::int64_t pool_blocks) {
    const std::int64_t id = table.id(request, block);
    require(id >= 0, "table", "block ", block, " of request ", request, " has the id ", id,
            "; block ids must be at least 0");
    require(pool_blocks < 0 || id < pool_blocks, "table", "block ", block, " of request ", request, " has the id ", id,
            "; the pool has ", pool_blocks, " blocks, so ids must be below ", pool_blocks);
    require(id <= (largest_index - (table.block_size - 1)) / table.block_size, "table", "block ", block, " of request ",
            request, " has the id ", id, "; with ", table.block_size,
            " tokens a block its slots do not fit 63 bits; ids may be at most ",
            (largest_index - (table.block_size - 1)) / table.block_size);
}

// Checks every position that `selected(position)` admits; negative ones are refused whoever would own them.
template <class Selected>
void check_positions(const ownership& law, const block_table& table, std::int64_t request,
                     std::span<const std::int64_t> positions, Selected selected) {
    check_block_size(table.block_size);
    check_request(table, request);
    const std::int64_t blocks = table.blocks_of(request);
    for (const std::int64_t position : positions) {
        if (position < 0 || !selected(position)) continue;
        const std::int64_t block = law.local(position) / table.block_size;
        require(block < blocks, "table_too_short", "position ", position, " of request ", request, " lies in block ",
                block, " of its rank (", table.block_size, " tokens a block, ", law.ranks, " ranks, interleave ",
                law.interleave, "); the table has ", blocks, " blocks");
    }
    for (const std::int64_t position : positions)
        require(position >= 0, "position", "position ", position, " of request ", request,
                " was given; positions must be at least 0");
    for (const std::int64_t position : positions)
        if (selected(position)) check_block_id(table, request, law.local(position) / table.block_size, -1);
}

template <class Slot>
void map_slots(const shard& part, const block_table& table, std::int64_t request,
               std::span<const std::int64_t> positions, std::span<Slot> slots) {
    require(slots.size() >= positions.size(), "slots", "map_slots was given ", positions.size(),
            " positions and room for ", slots.size(), " slots; there must be room for every position");
    check_positions(part.law(), table, request, positions, [&](std::int64_t position) { return part.owns(position); });
    constexpr std::int64_t largest_slot = std::numeric_limits<Slot>::max();
    if constexpr (largest_slot < largest_index) {
        for (const std::int64_t position : positions) {
            const std::int64_t slot = slot_of(part, table, request, position);
            require(slot <= largest_slot, "slots", "position ", position, " of request ", request, " has slot ", slot,
                    "; 32-bit slots may be at most ", largest_slot, ": use 64-bit slots");
        }
    }
    for (std::size_t i = 0; i < positions.size(); ++i)
        slots[i] = static_cast<Slot>(slot_of(part, table, request, positions[i]));
    std::fill(slots.begin() + static_cast<std::ptrdiff_t>(positions.size()), slots.end(), Slot{-1});
}

inline void check_table_shape(std::int64_t requests, std::int64_t columns, std::int64_t block_size) {
    require(requests >= 0 && columns >= 0, "size", "a block table of ", requests, " requests and ", columns,
            " columns was given; both must be at least 0");
    check_block_size(block_size);
}

} // namespace detail

// A table of `requests` rows of `columns` usable block ids (int32, uint32 or int64), `row_stride` elements apart: 0 for
// one row that all requests share, -1 (default) for `columns`. Throws config_error "size", "block_size", "stride",
// "null".
template <class Int>
block_table table_2d(const Int* blocks, std::int64_t requests, std::int64_t columns, std::int64_t block_size,
                     std::int64_t row_stride = -1) {
    detail::check_table_shape(requests, columns, block_size);
    if (row_stride == -1) row_stride = columns;
    require(row_stride == 0 || row_stride >= columns, "stride", "a block table of ", columns,
            " columns has a row stride of ", row_stride, "; it must be 0 or at least ", columns);
    require(blocks != nullptr || requests == 0 || columns == 0, "null", "a block table of ", requests, " requests and ",
            columns, " columns has a null pointer; identity_table is the table without an array");
    return {index_of(blocks), {}, requests, columns, row_stride, block_size};
}

// A table whose request r has the blocks [offsets[r], offsets[r + 1]) of one list; offsets has requests + 1 entries.
// Throws config_error "size", "block_size", "null".
template <class Int, class OffsetInt>
block_table table_csr(const Int* blocks, const OffsetInt* offsets, std::int64_t requests, std::int64_t block_size) {
    detail::check_table_shape(requests, 0, block_size);
    require((blocks != nullptr && offsets != nullptr) || requests == 0, "null", "a block table of ", requests,
            " requests has a null pointer for its blocks or its offsets");
    return {index_of(blocks), index_of(offsets), requests, 0, 0, block_size};
}

// The table that needs no array of blocks: request r's block b is r * columns + b. With columns = 1 a request's KV is
// contiguous and block_size is its capacity in tokens. Throws config_error "size", "block_size".
inline block_table identity_table(std::int64_t requests, std::int64_t block_size, std::int64_t columns = 1) {
    detail::check_table_shape(requests, columns, block_size);
    return {{}, {}, requests, columns, 0, block_size};
}

// The same where requests have different numbers of blocks: request r's block b is offsets[r] + b. For arrays of page
// pointers that already list each request's pages. Throws config_error "size", "block_size", "null".
template <class OffsetInt>
block_table identity_table(const OffsetInt* offsets, std::int64_t requests, std::int64_t block_size) {
    detail::check_table_shape(requests, 0, block_size);
    require(offsets != nullptr || requests == 0, "null", "a block table of ", requests,
            " requests has a null pointer for its offsets");
    return {{}, index_of(offsets), requests, 0, 0, block_size};
}

// Refuses a request whose table row can not hold `local_len` tokens of this rank ("table_too_short"), or that names a
// block outside the pool ("table"). pool_blocks < 0: the pool's size is not known. For a plan made on the host.
inline void check_table(const block_table& table, std::int64_t request, std::int64_t local_len,
                        std::int64_t pool_blocks) {
    check_block_size(table.block_size);
    check_length(local_len);
    detail::check_request(table, request);
    const std::int64_t needed = blocks_for(local_len, table.block_size);
    const std::int64_t present = table.blocks_of(request);
    require(needed <= present, "table_too_short", "request ", request, " has ", local_len,
            " tokens on this rank, which take ", needed, " blocks of ", table.block_size, " tokens; its table has ",
            present, " blocks");
    for (std::int64_t block = 0; block < needed; ++block) detail::check_block_id(table, request, block, pool_blocks);
}

// Refuses positions that some rank can not map: "table_too_short" (its block is past the table), "position" (negative),
// "table" (negative block id). Takes the ranks together, so every rank gives the same answer.
inline void check_positions(const ownership& law, const block_table& table, std::int64_t request,
                            std::span<const std::int64_t> positions) {
    detail::check_positions(law, table, request, positions, [](std::int64_t) { return true; });
}

// slots[i] = slot of positions[i] on this rank, or -1; the rest of `slots` is filled with -1, so that a buffer used
// again holds nothing stale. Nothing is written where the call throws: config_error "slots" (too little room, or a slot
// that does not fit 32 bits), and the codes of check_positions for the positions this rank owns.
inline void map_slots(const shard& part, const block_table& table, std::int64_t request,
                      std::span<const std::int64_t> positions, std::span<std::int64_t> slots) {
    detail::map_slots(part, table, request, positions, slots);
}
inline void map_slots(const shard& part, const block_table& table, std::int64_t request,
                      std::span<const std::int64_t> positions, std::span<std::int32_t> slots) {
    detail::map_slots(part, table, request, positions, slots);
}

// Strict mode, for engines whose slot formula works inside one block: refuses B mod I != 0 with
// "interleave_divides_block"; legal() lists the interleaves that divide B.
inline void check_interleave_divides_block(const ownership& law, std::int64_t block_size) {
    check_block_size(block_size);
    if (block_size % law.interleave == 0) return;
    std::vector<std::int64_t> legal = detail::divisors(block_size);
    const std::string text =
        sentence("the interleave of ", law.interleave, " tokens does not divide the block size of ", block_size,
                 " tokens; strict mode needs an interleave that divides it", detail::one_of(legal));
    raise(config_error("interleave_divides_block", text, std::move(legal)));
}

// Tokens that one block id stands for on all ranks together: B*N. Throws config_error "block_size".
constexpr std::int64_t virtual_block_size(const ownership& law, std::int64_t block_size) {
    if (block_size < 1) check_block_size(block_size);
    if (block_size > detail::largest_index / law.ranks)
        require(false, "block_size", "blocks of ", block_size, " tokens on ", law.ranks,
                " ranks make a virtual block that does not fit 63 bits; the block size may be at most ",
                detail::largest_index / law.ranks);
    return block_size * law.ranks;
}

// The step at which a prefix can be shared: N * lcm(I, B) tokens, where every rank has whole blocks and a round of
// ownership ends. Throws config_error "block_size".
constexpr std::int64_t prefix_unit(const ownership& law, std::int64_t block_size) {
    if (block_size < 1) check_block_size(block_size);
    const std::int64_t rounds = block_size / std::gcd(law.interleave, block_size); // lcm(I, B) / I
    if (rounds > detail::largest_index / law.unit())
        require(false, "block_size", "blocks of ", block_size, " tokens with an interleave of ", law.interleave, " on ",
                law.ranks, " ranks make a prefix unit that does not fit 63 bits");
    return rounds * law.unit();
}

// How many tokens of a common prefix can be shared: the whole prefix units in it.
constexpr std::int64_t prefix_hit(const ownership& law, std::int64_t block_size, std::int64_t common_prefix) {
    if (common_prefix < 0) check_length(common_prefix);
    const std::int64_t unit = prefix_unit(law, block_size);
    return common_prefix / unit * unit;
}

// The blocks that each rank needs for `length` tokens: ceil(local_len / B).
inline std::vector<std::int64_t> blocks_per_rank(const ownership& law, std::int64_t block_size, std::int64_t length) {
    check_length(length);
    check_block_size(block_size);
    std::vector<std::int64_t> blocks;
    for (std::int64_t rank = 0; rank < law.ranks; ++rank)
        blocks.push_back(blocks_for(law.local_len(length, rank), block_size));
    return blocks;
}

// The width of the table all ranks share: the largest of blocks_per_rank, which is rank 0's.
inline std::int64_t table_width(const ownership& law, std::int64_t block_size, std::int64_t length) {
    check_length(length);
    check_block_size(block_size);
    return blocks_for(law.local_len(length, 0), block_size);
}

// The table in kernel blocks of k tokens: block b of B tokens becomes b*B/k, b*B/k + 1, ... Slots do not change. Throws
// config_error "block_size", "kernel_block" (k does not divide B; legal() lists those that do), "table".
inline std::vector<std::int64_t> kernel_table(std::span<const std::int64_t> table, std::int64_t block_size,
                                              std::int64_t kernel_block) {
    check_block_size(block_size);
    if (kernel_block < 1 || block_size % kernel_block != 0) {
        std::vector<std::int64_t> legal = detail::divisors(block_size);
        const std::string text = sentence("kernel blocks of ", kernel_block, " tokens do not divide blocks of ",
                                          block_size, " tokens; a kernel block must divide it", detail::one_of(legal));
        raise(config_error("kernel_block", text, std::move(legal)));
    }
    const std::int64_t parts = block_size / kernel_block;
    std::vector<std::int64_t> result;
    for (std::size_t i = 0; i < table.size(); ++i) {
        require(table[i] >= 0 && table[i] <= (detail::largest_index - (parts - 1)) / parts, "table", "block ", i,
                " has the id ", table[i], "; block ids must be at least 0 and, with ", parts,
                " kernel blocks a block, at most ", (detail::largest_index - (parts - 1)) / parts);
        for (std::int64_t part = 0; part < parts; ++part) result.push_back(table[i] * parts + part);
    }
    return result;
}

} // namespace ctxpar::inline v0_1
