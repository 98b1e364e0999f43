// A step: what a plan makes of one batch. It is a trivially copyable value that refers to the workspace it was planned
// into; as long as that memory is left alone it stays valid, whatever other steps are planned elsewhere.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/merge/exchange.hpp>

namespace ctxpar::inline v0_1 {

struct decode_step {
    exchange_shape shape;          // facts all ranks share
    collective_schedule schedule;  // the collectives of every layer, in order
    decode_batch batch;            // lengths and tables, where the engine keeps them
    attention_plan attention;      // device memory: intervals, slots, local lengths, live shards; and the table
    shard part;                    // this rank's share of every sequence
    std::int64_t rows = 0;         // query rows, padding included
    std::int64_t slots_needed = 0; // the cache must have at least this many slots
    std::uint64_t digest = 0;      // of policy, shapes, schedule and host lengths; the same on every rank
    std::uint64_t decoder = 0;     // of the decoder that planned it
    void* scratch = nullptr;       // the workspace, carved again by every call
};

static_assert(std::is_trivially_copyable_v<decode_step>);

namespace detail {

// Carves the arrays of a step for the largest batch of a shape.
inline step_arrays carve_step(carver& memory, const decode_shape& shape, std::int64_t ranks) {
    step_arrays arrays;
    arrays.rows = memory.take<visible_keys>(shape.max_rows);
    arrays.segments = memory.take<segment>(shape.max_requests + 1);
    arrays.slots = memory.take<std::int64_t>(shape.max_rows);
    arrays.local_lengths = memory.take<std::int64_t>(shape.max_requests);
    arrays.live = memory.take<std::uint8_t>(ranks * shape.max_rows);
    arrays.row_lengths = memory.take<std::int64_t>(shape.max_rows);
    arrays.row_requests = memory.take<std::int64_t>(shape.max_rows);
    arrays.status = memory.take<step_status>(1);
    return arrays;
}

inline void check_mask(const mask_rule& mask) {
    require(mask.window >= 0, "window", "the window is ", mask.window, " tokens; it must be at least 1, or 0 for none");
    require(mask.chunk >= 0, "chunk", "the attention chunk is ", mask.chunk,
            " tokens; it must be at least 1, or 0 for none");
    require(mask.prefix >= 0, "prefix", "the always-visible prefix is ", mask.prefix, " tokens; it must be at least 0");
}

inline void check_requests(const decode_batch& batch, const decode_shape& shape) {
    require(batch.requests >= 0 && batch.requests <= shape.max_requests, "requests", "the batch has ", batch.requests,
            " requests; this decoder takes 0 to ", shape.max_requests);
    require(batch.lengths.data != nullptr || batch.requests == 0, "null", "the batch has ", batch.requests,
            " requests and a null pointer for their lengths");
    require(batch.table.block_size >= 1, "block_size", "the block size is ", batch.table.block_size,
            " tokens; it must be at least 1");
    require(batch.table.requests >= batch.requests, "table_too_short", "the block table has ", batch.table.requests,
            " rows and the batch ", batch.requests, " requests; the table must have one for each");
}

// Whether draft-tree bits of a request's rows stay inside the request's rows.
inline void check_tree(const decode_batch& batch, std::int64_t request, std::int64_t first_row, std::int64_t rows) {
    require(rows <= max_tree_nodes, "tree", "request ", request, " has ", rows,
            " rows with a draft tree; a tree has at most ", max_tree_nodes, " nodes");
    for (std::int64_t i = 0; i < rows; ++i) {
        const std::uint64_t outside = rows == max_tree_nodes ? 0 : batch.tree_bits[first_row + i] >> rows;
        require(outside == 0, "tree", "row ", i, " of request ", request, " has tree bits beyond its ", rows,
                " rows; bit x stands for the x-th row of the request");
    }
}

// The largest of some block ids, -1 for none; where one is negative, one that is too large.
template <class Id>
std::int64_t largest_id(const Id* ids, std::int64_t count) {
    std::int64_t largest = -1;
    bool negative = false;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto id = static_cast<std::int64_t>(ids[i]);
        negative = negative || id < 0;
        largest = id > largest ? id : largest;
    }
    return negative ? largest_index : largest;
}
inline std::int64_t largest_id(const block_table& table, std::int64_t request, std::int64_t first, std::int64_t count) {
    if (table.blocks.data == nullptr) { // one after another
        const std::int64_t id = table.id(request, first);
        return id < 0 ? largest_index : id + count - 1;
    }
    const std::int64_t at =
        table.row_offsets.data != nullptr ? table.row_offsets.at(request) : request * table.row_stride;
    switch (table.blocks.type) {
    case index_type::i32:
        return largest_id(static_cast<const std::int32_t*>(table.blocks.data) + at + first, count);
    case index_type::u32:
        return largest_id(static_cast<const std::uint32_t*>(table.blocks.data) + at + first, count);
    case index_type::i64:
        break;
    }
    return largest_id(static_cast<const std::int64_t*>(table.blocks.data) + at + first, count);
}

// Blocks [first, end) of a request must be in the pool; a long context has many. Returns one past their largest slot.
inline std::int64_t check_block_ids(const block_table& table, const decode_shape& shape, std::int64_t request,
                                    std::int64_t first, std::int64_t end) {
    if (first >= end) return 0;
    const std::int64_t largest = largest_id(table, request, first, end - first);
    const std::int64_t slots_fit = (largest_index - (table.block_size - 1)) / table.block_size;
    if (largest > slots_fit ||
        (shape.pool_blocks >= 0 && largest >= shape.pool_blocks)) // some block is wrong: say which
        for (std::int64_t block = first; block < end; ++block) check_block_id(table, request, block, shape.pool_blocks);
    return (largest + 1) * table.block_size;
}

// The blocks that request's rows read or write on this rank must exist. Returns one past the largest slot in them.
inline std::int64_t check_blocks(const decode_batch& batch, const decode_shape& shape, const shard& part,
                                 std::int64_t request, std::int64_t length, std::int64_t rows) {
    const block_table& table = batch.table;
    const std::int64_t held = part.local_len(length);
    const std::int64_t needed = blocks_for(held, table.block_size);
    require(needed <= table.blocks_of(request), "table_too_short", "request ", request, " has ", held,
            " tokens on this rank, which take ", needed, " blocks of ", table.block_size, " tokens; its table has ",
            table.blocks_of(request), " blocks");
    if (rows == 0 || held == 0) return 0;
    const visible_keys first = localise(causal_row(length, rows, 0, batch.mask), part);
    const visible_keys last = localise(causal_row(length, rows, rows - 1, batch.mask), part);
    const std::int64_t first_new = part.local_len(length > rows ? length - rows : 0);
    const std::int64_t from = std::min(first.lo, first_new);
    const std::int64_t ahead = std::min(needed, blocks_for(last.prefix, table.block_size)); // blocks of the prefix
    const std::int64_t behind = from < held ? std::max(ahead, from / table.block_size) : needed;
    return std::max(check_block_ids(table, shape, request, 0, ahead),
                    check_block_ids(table, shape, request, behind, needed));
}

// What a host-length plan knows of a batch.
struct batch_facts {
    std::int64_t rows = 0;
    std::int64_t slots = 0;   // one past the largest slot in use
    std::uint64_t digest = 0; // of the lengths and rows of all requests
};

// Validates a batch whose lengths and tables the host can read, before anything is written.
inline batch_facts check_batch(const decode_batch& batch, const decode_shape& shape, const shard& part) {
    check_requests(batch, shape);
    check_mask(batch.mask);
    batch_facts facts;
    digest agreed;
    for (std::int64_t request = 0; request < batch.requests; ++request) {
        const std::int64_t length = batch.lengths.at(request);
        const std::int64_t rows = batch.rows_of(request);
        require(length >= 0 && length <= shape.longest, "length", "request ", request, " has ", length,
                " tokens; this decoder takes 0 to ", shape.longest);
        require(rows >= 0 && rows <= shape.max_rows - facts.rows, "query_rows", "request ", request, " has ", rows,
                " query rows after ", facts.rows, " of earlier requests; this decoder takes 0 to ", shape.max_rows,
                " rows in all");
        if (batch.tree_bits != nullptr) check_tree(batch, request, facts.rows, rows);
        facts.slots = std::max(facts.slots, check_blocks(batch, shape, part, request, length, rows));
        for (std::int64_t i = 0; batch.tree_bits != nullptr && i < rows; ++i)
            agreed.add(batch.tree_bits[facts.rows + i]);
        agreed.add_signed(length).add_signed(rows);
        facts.rows += rows;
    }
    agreed.add_signed(batch.mask.window).add_signed(batch.mask.chunk).add_signed(batch.mask.prefix);
    facts.digest = agreed.value();
    return facts;
}

// Validates what the host holds of a batch whose lengths only the device knows.
inline batch_facts check_bounds(const decode_batch& batch, const step_bounds& bounds, const decode_shape& shape) {
    check_requests(batch, shape);
    check_mask(batch.mask);
    require(bounds.rows >= 0 && bounds.rows <= shape.max_rows, "query_rows", "the step is bounded by ", bounds.rows,
            " query rows; this decoder takes 0 to ", shape.max_rows);
    require(bounds.longest >= 0 && bounds.longest <= shape.longest, "length", "the step is bounded by ", bounds.longest,
            " tokens; this decoder takes 0 to ", shape.longest);
    require(shape.pool_blocks >= 0, "pool_blocks",
            "a plan from device lengths must know the size of the pool; give the shape its pool_blocks");
    digest agreed;
    agreed.add_signed(bounds.rows).add_signed(bounds.longest);
    agreed.add_signed(batch.mask.window).add_signed(batch.mask.chunk).add_signed(batch.mask.prefix);
    return {bounds.rows, shape.pool_blocks * batch.table.block_size, agreed.value()};
}

} // namespace detail

} // namespace ctxpar::inline v0_1
