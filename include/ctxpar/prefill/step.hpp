// A prefill step: what a plan makes of one batch. Like a decode step it is a trivially copyable value that refers to
// the workspace it was planned into.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/decode/step.hpp>
#include <ctxpar/merge/exchange.hpp>
#include <ctxpar/prefill/shape.hpp>

namespace ctxpar::inline v0_1 {

// What was decided about the rows of one kind, and why. Bytes are those that every rank sends in one layer; rows of the
// cache are taken at their largest over the ranks.
struct path_choice {
    std::int64_t requests_gather_q = 0;
    std::int64_t requests_gather_kv = 0;
    std::uint64_t bytes_gather_q = 0;  // if the queries of all of them travelled
    std::uint64_t bytes_gather_kv = 0; // if their context did
    std::uint64_t bytes = 0;           // as decided
    const char* reason = "";           // static storage
};

struct prefill_step {
    prefill_counts counts;        // sizes: rows, batch rows, ...
    prefill_law law;              // by which the batch is cut up
    collective_schedule schedule; // the collectives of append and attend of every layer, in order
    path_choice prefill_rows;
    path_choice decode_rows;
    prefill_batch batch;           // lengths and tables, where the engine keeps them
    prefill_arrays arrays;         // device memory: positions, slots and places of all rows
    exchange_shape spread;         // of the rows whose queries travel
    attention_plan spread_plan;    // over this rank's shard
    decode_step decode;            // of the rows that are decoded
    std::int64_t slots_needed = 0; // the cache must have at least this many slots
    std::uint64_t digest = 0;      // the same on every rank
    std::uint64_t prefiller = 0;   // of the prefiller that planned it
    void* scratch = nullptr;       // the workspace, carved again by every call

    std::int64_t rows() const { return counts.rows; }
    // [rows()] positions of this rank's rows, for the rotary embedding; memory of the backend.
    const std::int64_t* positions() const { return arrays.positions; }
};

static_assert(std::is_trivially_copyable_v<prefill_step>);

namespace detail {

inline void check_prefill_requests(const prefill_batch& batch, const prefill_shape& shape) {
    require(batch.requests >= 0 && batch.requests <= shape.max_requests, "requests", "the batch has ", batch.requests,
            " requests; this prefiller takes 0 to ", shape.max_requests);
    const bool counted = batch.tokens.data != nullptr || batch.row_offsets.data != nullptr;
    require((batch.computed.data != nullptr && counted) || batch.requests == 0, "null", "the batch has ",
            batch.requests, " requests; it must say their computed tokens, and their new tokens or row offsets");
    require(batch.table.block_size >= 1, "block_size", "the block size is ", batch.table.block_size,
            " tokens; it must be at least 1");
    require(batch.table.requests >= batch.requests, "table_too_short", "the block table has ", batch.table.requests,
            " rows and the batch ", batch.requests, " requests; the table must have one for each");
    if (batch.tokens.data != nullptr || batch.requests == 0) return;
    require(batch.row_offsets.at(0) == 0, "rows", "the rows of request 0 begin at ", batch.row_offsets.at(0),
            "; row offsets begin at 0");
    for (std::int64_t r = 0; r < batch.requests; ++r)
        require(batch.row_offsets.at(r + 1) >= batch.row_offsets.at(r), "rows", "the rows of request ", r, " begin at ",
                batch.row_offsets.at(r), " and end at ", batch.row_offsets.at(r + 1),
                "; row offsets must be in order, so that requests follow one another");
}

inline void check_prefill_request(const prefill_batch& batch, const prefill_shape& shape, std::int64_t index) {
    const prefill_request request = request_of(batch, index);
    require(request.computed >= 0 && request.tokens >= 0, "length", "request ", index, " has ", request.tokens,
            " new tokens after ", request.computed, " computed ones; both must be at least 0");
    require(request.tokens <= shape.longest && request.computed <= shape.longest - request.tokens, "length", "request ",
            index, " has ", request.computed, " computed and ", request.tokens,
            " new tokens; this prefiller takes at most ", shape.longest, " in all");
    const std::int64_t kind = batch.kinds.data == nullptr ? 0 : batch.kinds.at(index);
    require(kind == 0 || kind == 1, "kind", "request ", index, " has rows of kind ", kind,
            "; it must be 0 (prefill) or 1 (decode)");
}

// What the host learns of a batch while it validates it.
struct prefill_facts {
    prefill_counts counts;
    path_choice prefill_rows;
    path_choice decode_rows;
    std::int64_t slots = 0;          // one past the largest slot in use
    std::int64_t decode_tokens = 0;  // rows of decode requests
    std::int64_t context_bytes = 0;  // sent to each other rank by all gathers of context
    std::int64_t context_chunks = 0; // how many there are
    std::uint64_t digest = 0;
};

inline void note_path(path_choice& choice, const prefill_law& law, const prefill_request& request) {
    if (request.tokens == 0) return;
    const bool keys = law.set_of(request) == row_set::kv;
    const auto queries = static_cast<std::uint64_t>(law.bytes_of_queries(request));
    const auto context = static_cast<std::uint64_t>(law.bytes_of_context(request));
    (keys ? choice.requests_gather_kv : choice.requests_gather_q) += 1;
    choice.bytes_gather_q += queries;
    choice.bytes_gather_kv += context;
    choice.bytes += keys ? context : queries;
}

// The largest sums over the PCP ranks, and those of this rank.
inline prefill_counts count_rows(const prefill_batch& batch, const prefill_law& law) {
    prefill_counts counts;
    counts.requests = batch.requests;
    for (std::int64_t rank = 0; rank < law.split.pcp; ++rank) {
        prefill_offsets sum;
        for (std::int64_t r = 0; r < batch.requests; ++r) sum.pass(law, request_of(batch, r), rank);
        counts.rows = std::max(counts.rows, sum.own);
        counts.prefill_rows = std::max(counts.prefill_rows, sum.prefill);
        counts.spread_rows = std::max(counts.spread_rows, sum.spread);
        counts.last_rows = std::max(counts.last_rows, sum.last);
        counts.batch_rows = sum.batch;
        counts.decode_rows = sum.decode;
        counts.staged_rows = sum.staged;
        counts.spread_requests = sum.spread_requests;
        counts.kv_requests = sum.kv_requests;
        if (rank != law.pcp_rank) continue;
        counts.own_rows = sum.own;
        counts.kv_rows = sum.kv;
    }
    return counts;
}

// Validates a batch whose lengths and tables the host can read, before anything is written.
inline prefill_facts check_prefill_batch(const prefill_batch& batch, const prefill_shape& shape,
                                         const prefill_law& law) {
    check_prefill_requests(batch, shape);
    check_mask(batch.mask);
    prefill_facts facts;
    digest agreed;
    decode_batch blocks; // what check_blocks looks at
    blocks.table = batch.table;
    blocks.mask = batch.mask;
    blocks.tree_bits = batch.tree_bits;
    decode_shape limits;
    limits.pool_blocks = shape.pool_blocks;
    for (std::int64_t r = 0; r < batch.requests; ++r) {
        check_prefill_request(batch, shape, r);
        const prefill_request request = request_of(batch, r);
        const std::int64_t total = request.computed + request.tokens;
        const std::int64_t most = request.decodes ? request.tokens : law.split.most_rows(request.tokens);
        require(most <= shape.max_rows, "rows", "request ", r, " alone gives a rank ", most, " rows over pcp ",
                law.split.pcp, "; this prefiller takes at most ", shape.max_rows);
        if (request.decodes && batch.tree_bits != nullptr) check_tree(blocks, r, facts.decode_tokens, request.tokens);
        if (request.tokens > 0)
            facts.slots = std::max(facts.slots, check_blocks(blocks, limits, law.part, r, total, request.tokens));
        note_path(request.decodes ? facts.decode_rows : facts.prefill_rows, law, request);
        for (std::int64_t i = 0; request.decodes && batch.tree_bits != nullptr && i < request.tokens; ++i)
            agreed.add(batch.tree_bits[facts.decode_tokens + i]);
        facts.decode_tokens += request.decodes ? request.tokens : 0;
        agreed.add_signed(request.computed).add_signed(request.tokens).add(request.decodes ? 1U : 0U);
    }
    facts.counts = count_rows(batch, law);
    require(facts.counts.rows <= shape.max_rows, "rows", "the batch gives a rank ", facts.counts.rows,
            " rows over pcp ", law.split.pcp, "; this prefiller takes at most ", shape.max_rows);
    require(facts.decode_tokens <= shape.decode_rows_limit(), "decode_rows", "the batch has ", facts.decode_tokens,
            " rows of decode requests; this prefiller takes at most ", shape.decode_rows_limit());
    agreed.add_signed(batch.mask.window).add_signed(batch.mask.chunk).add_signed(batch.mask.prefix);
    facts.digest = agreed.value();
    return facts;
}

} // namespace detail

} // namespace ctxpar::inline v0_1
