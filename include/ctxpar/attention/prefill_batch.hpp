// A batch with prefills as the engine states it, and the laws by which every rank cuts it up: which rows are its own,
// which of them travel and which stay, and what must be gathered for them. Lengths and counts that all ranks share
// decide everything, by formula, on host and device.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/rows.hpp>
#include <ctxpar/core/config.hpp>
#include <ctxpar/layout/gather.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/zigzag.hpp>

namespace ctxpar::inline v0_1 {

// One step of a batch in which some requests prefill while others decode, in any order. A request's new tokens follow
// its computed ones: they have positions computed .. computed + tokens - 1. Global batch rows are the new tokens of all
// requests in order. All numbers but the table are the same on every rank.
struct prefill_batch {
    std::int64_t requests = 0;
    index_view computed{};    // [requests] tokens that the cache holds already: earlier chunks, a shared prefix
    index_view tokens{};      // [requests] new tokens, 0 or more; null data: row_offsets says
    index_view row_offsets{}; // [requests + 1] global batch row of each request's first token, from 0; or null
    index_view kinds{};       // [requests] row_kind as a number; null data: all are prefills
    block_table table{};      // this rank's block ids
    mask_rule mask{};         // window, chunk, always-visible prefix
    const std::uint64_t* tree_bits = nullptr; // [rows of decode requests, in order] draft trees, as in decode_batch

    CTXPAR_HD std::int64_t tokens_of(std::int64_t request) const {
        return tokens.data != nullptr ? tokens.at(request) : row_offsets.at(request + 1) - row_offsets.at(request);
    }
    CTXPAR_HD bool decodes(std::int64_t request) const {
        return kinds.data != nullptr && kinds.at(request) == static_cast<std::int64_t>(row_kind::decode);
    }
};

// How rows meet the keys that other ranks hold.
//   gather_q   the queries travel: every rank attends the rows of all to its own shard, and partial results are merged
//   gather_kv  the keys travel: context is gathered in chunks through the workspace, every rank attends its own rows
//   automatic  for each request the one that sends fewer bytes; decode rows gather Q
enum class prefill_path : std::uint8_t { automatic, gather_q, gather_kv };

// The rows of one request, by what is done with them.
//   decode  replicated over the PCP ranks, queries travel over heads only: exactly a decode
//   spread  split over the PCP ranks, queries travel
//   kv      own rows stay, keys travel
enum class row_set : std::uint8_t { decode, spread, kv };

// A request by its numbers.
struct prefill_request {
    std::int64_t computed = 0;
    std::int64_t tokens = 0;
    bool decodes = false;
};

// All that a rank must know to cut up a batch; trivially copyable, so that it reaches a kernel.
struct prefill_law {
    zigzag_law split;  // over the W PCP ranks
    gather_law gather; // of context over the N ranks
    shard part;        // this rank's share of every sequence
    std::int64_t pcp_rank = 0;
    std::int64_t row_owners = 1; // PCP ranks of the KV group: pcp_rank / row_owners * row_owners is the first
    mask_rule mask;
    prefill_path prefill_rows = prefill_path::automatic;
    prefill_path decode_rows = prefill_path::automatic;
    std::int64_t query_bytes = 0;   // sent for one own row whose queries travel, there and back
    std::int64_t decode_bytes = 0;  // the same for a decode row
    std::int64_t context_bytes = 0; // sent for one row of context that a rank adds to a chunk

    CTXPAR_HD constexpr std::int64_t first_row_owner() const { return pcp_rank / row_owners * row_owners; }

    // The context that some new token of the request sees, from a multiple of U on.
    CTXPAR_HD constexpr context_range context_of(const prefill_request& request) const {
        if (request.tokens == 0 || request.computed == 0) return {};
        const visible_keys first = causal_row(request.computed + request.tokens, request.tokens, 0, mask);
        // Where the interval of the first row, and so of every row, begins behind the context, the prefix is left.
        if (first.lo >= request.computed) return {0, first.prefix < request.computed ? first.prefix : request.computed};
        const std::int64_t unit = gather.law.unit();
        return {mask.prefix > 0 ? 0 : first.lo / unit * unit, request.computed};
    }

    // Bytes that a rank sends for the request in one layer, one way or the other. A rank's rows of the context and of
    // the split are taken at their largest, so all ranks come to the same numbers.
    CTXPAR_HD constexpr std::int64_t bytes_of_queries(const prefill_request& request) const {
        return request.decodes ? decode_bytes * request.tokens : query_bytes * split.most_rows(request.tokens);
    }
    CTXPAR_HD constexpr std::int64_t bytes_of_context(const prefill_request& request) const {
        const context_range range = context_of(request);
        return context_bytes * gather.rows_for(range.end - range.begin);
    }

    CTXPAR_HD constexpr row_set set_of(const prefill_request& request) const {
        const prefill_path asked = request.decodes ? decode_rows : prefill_rows;
        const bool keys_travel =
            asked == prefill_path::gather_kv || (asked == prefill_path::automatic && !request.decodes &&
                                                 bytes_of_context(request) <= bytes_of_queries(request));
        if (keys_travel) return row_set::kv;
        return request.decodes ? row_set::decode : row_set::spread;
    }

    // Rows of the request on one PCP rank, pads of a padded split included.
    CTXPAR_HD constexpr std::int64_t rows_of(const prefill_request& request, std::int64_t pcp_rank_of_rows) const {
        return request.decodes ? request.tokens : split.rows(request.tokens, pcp_rank_of_rows);
    }

    // The request's new token of a rank's row i, at or past `tokens` for a pad.
    CTXPAR_HD constexpr std::int64_t token_of(const prefill_request& request, std::int64_t pcp_rank_of_rows,
                                              std::int64_t i) const {
        return request.decodes ? i : split.token(request.tokens, pcp_rank_of_rows, i);
    }

    // Whether a PCP rank has the request's last token; every rank has it of a decode.
    CTXPAR_HD constexpr bool has_last(const prefill_request& request, std::int64_t pcp_rank_of_rows) const {
        return request.tokens > 0 &&
               (request.decodes || split.place(request.tokens, request.tokens - 1).rank == pcp_rank_of_rows);
    }
};

static_assert(std::is_trivially_copyable_v<prefill_batch> && std::is_trivially_copyable_v<prefill_law>);

CTXPAR_HD inline prefill_request request_of(const prefill_batch& batch, std::int64_t request) {
    return {batch.computed.at(request), batch.tokens_of(request), batch.decodes(request)};
}

// Running sums over the requests of a batch, in order, for one PCP rank: where a request's rows begin.
struct prefill_offsets {
    std::int64_t batch = 0;   // global batch rows
    std::int64_t own = 0;     // rows of the rank
    std::int64_t prefill = 0; // those of prefills, whatever their path: their new keys and hidden rows travel
    std::int64_t spread = 0;  // rows of each set
    std::int64_t decode = 0;
    std::int64_t kv = 0;
    std::int64_t staged = 0; // new tokens of the requests whose keys travel
    std::int64_t tree = 0;   // rows of decode requests, on whichever path
    std::int64_t last = 0;   // prefills whose last token is on the rank
    std::int64_t spread_requests = 0;
    std::int64_t kv_requests = 0;

    CTXPAR_HD constexpr void pass(const prefill_law& law, const prefill_request& request, std::int64_t rank) {
        const row_set set = law.set_of(request);
        const std::int64_t rows = law.rows_of(request, rank);
        batch += request.tokens;
        own += rows;
        prefill += request.decodes ? 0 : rows;
        spread += set == row_set::spread ? rows : 0;
        decode += set == row_set::decode ? rows : 0;
        kv += set == row_set::kv ? rows : 0;
        staged += set == row_set::kv ? request.tokens : 0;
        tree += request.decodes ? rows : 0;
        last += !request.decodes && law.has_last(request, rank) ? 1 : 0;
        spread_requests += set == row_set::spread ? 1 : 0;
        kv_requests += set == row_set::kv ? 1 : 0;
    }
};

// The sizes of a step; all but own_rows and kv_rows are the same on every rank.
struct prefill_counts {
    std::int64_t requests = 0;
    std::int64_t rows = 0;         // M: rows of every rank, pads included
    std::int64_t batch_rows = 0;   // global batch rows
    std::int64_t prefill_rows = 0; // of every rank, pads included: the gather of new keys and of hidden rows
    std::int64_t spread_rows = 0;  // of every rank, pads included: the gather of queries
    std::int64_t decode_rows = 0;  // rows that are decoded, on every rank
    std::int64_t staged_rows = 0;  // new tokens of the requests whose keys travel
    std::int64_t last_rows = 0;    // last tokens of prefills on every rank, pads included
    std::int64_t spread_requests = 0;
    std::int64_t kv_requests = 0;
    std::int64_t own_rows = 0; // rows of this rank without the filling up to `rows`
    std::int64_t kv_rows = 0;  // of them, those whose keys travel
};

} // namespace ctxpar::inline v0_1
