// The arrays of a prefill step on one rank, and how they are written: where every own row belongs, where new keys go,
// and what each row sees, of this rank's shard or of a piece of keys that was brought here.
//
// Writing goes request by request with running sums, so that a host loops and a device scans.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/attention/rows.hpp>
#include <ctxpar/core/config.hpp>
#include <ctxpar/layout/gather.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1 {

// Index arrays hold rows, slots or requests, and -1 where there is none.
struct prefill_arrays {
    // [M] of every own row
    std::int64_t* positions = nullptr;  // its position in the sequence, for the rotary embedding; 0 for the filling
    std::int64_t* batch_rows = nullptr; // its global batch row
    std::int64_t* slots = nullptr;      // where its keys are written, for rows whose keys do not travel
    std::int64_t* stage = nullptr;      // the same in the staged new keys
    std::int64_t* last_of = nullptr;    // the request of which it is the last token
    // own rows, by what is done with them
    std::int64_t* prefill_rows = nullptr; // [prefill_rows] rows whose new keys and hidden values travel
    std::int64_t* spread_rows = nullptr;  // [spread_rows]
    std::int64_t* decode_rows = nullptr;  // [decode_rows]
    std::int64_t* kv_rows = nullptr;      // [kv_rows]
    std::int64_t* last_rows = nullptr;    // [last_rows]
    // [W][prefill_rows] of every gathered row of a prefill; unused where W = 1
    std::int64_t* new_batch_rows = nullptr;
    std::int64_t* new_slots = nullptr;
    std::int64_t* new_stage = nullptr;
    std::int64_t* last_requests = nullptr; // [W][last_rows]
    // [requests] the requests that are decoded, as a decode batch; 0 for all others
    std::int64_t* decode_lengths = nullptr;
    std::int64_t* decode_counts = nullptr;
    // [row_owners * spread_rows] the rows of all ranks of the KV group, over this rank's shard
    step_arrays spread;
};

struct prefill_metadata_args {
    prefill_batch batch;
    prefill_law law;
    prefill_counts counts;
    prefill_arrays out;
};

// Segments of the spread rows: head and tail of every request, and the filling, for each rank they come from.
CTXPAR_HD constexpr std::int64_t spread_segments(const prefill_law& law, std::int64_t spread_requests) {
    return law.row_owners * (2 * spread_requests + 1);
}

// What a request's new token sees, in positions; a pad sees nothing, behind all that the request has.
CTXPAR_HD inline visible_keys keys_of_token(const prefill_law& law, const prefill_request& request, std::int64_t token,
                                            const std::uint64_t* tree_bits = nullptr) {
    const std::int64_t total = request.computed + request.tokens;
    if (token >= request.tokens) return {0, total, total, total, 0};
    return causal_row(total, request.tokens, token, law.mask, tree_bits);
}

namespace detail {

// The own rows of one request: where each belongs.
CTXPAR_HD inline void write_own_rows(const prefill_metadata_args& args, std::int64_t index,
                                     const prefill_request& request, const prefill_offsets& at) {
    const prefill_law& law = args.law;
    const prefill_arrays& out = args.out;
    const row_set set = law.set_of(request);
    const bool travels = law.split.pcp > 1 && !request.decodes;
    for (std::int64_t i = 0; i < law.rows_of(request, law.pcp_rank); ++i) {
        const std::int64_t token = law.token_of(request, law.pcp_rank, i);
        const std::int64_t row = at.own + i;
        const bool real = token < request.tokens;
        const bool stays = real && !travels;
        out.positions[row] = request.computed + token;
        out.batch_rows[row] = real ? at.batch + token : -1;
        out.last_of[row] = token == request.tokens - 1 ? index : -1;
        out.slots[row] = stays ? slot_of(law.part, args.batch.table, index, request.computed + token) : -1;
        out.stage[row] = stays && set == row_set::kv ? at.staged + token : -1;
        if (!request.decodes) out.prefill_rows[at.prefill + i] = row;
        if (set == row_set::spread) out.spread_rows[at.spread + i] = row;
        if (set == row_set::decode) out.decode_rows[at.decode + i] = row;
        if (set == row_set::kv) out.kv_rows[at.kv + i] = row;
    }
    if (!request.decodes && law.has_last(request, law.pcp_rank))
        out.last_rows[at.last] = at.own + law.split.place(request.tokens, request.tokens - 1).row;
    out.decode_lengths[index] = set == row_set::decode ? request.computed + request.tokens : 0;
    out.decode_counts[index] = set == row_set::decode ? request.tokens : 0;
}

// One prefill's rows on one PCP rank as they arrive here: where their keys and hidden values go.
CTXPAR_HD inline void write_new_rows(const prefill_metadata_args& args, std::int64_t index,
                                     const prefill_request& request, const prefill_offsets& at, std::int64_t rank) {
    const prefill_law& law = args.law;
    const bool staged = law.set_of(request) == row_set::kv;
    for (std::int64_t i = 0; i < law.rows_of(request, rank); ++i) {
        const std::int64_t token = law.token_of(request, rank, i);
        const std::int64_t row = rank * args.counts.prefill_rows + at.prefill + i;
        const bool real = token < request.tokens;
        args.out.new_batch_rows[row] = real ? at.batch + token : -1;
        args.out.new_slots[row] = real ? slot_of(law.part, args.batch.table, index, request.computed + token) : -1;
        args.out.new_stage[row] = real && staged ? at.staged + token : -1;
    }
    if (law.has_last(request, rank)) args.out.last_requests[rank * args.counts.last_rows + at.last] = index;
}

// The spread rows of one request from one rank of the KV group: what they see of this rank's shard.
CTXPAR_HD inline void write_spread_rows(const prefill_metadata_args& args, std::int64_t index,
                                        const prefill_request& request, const prefill_offsets& at, std::int64_t rank) {
    const prefill_law& law = args.law;
    const step_arrays& out = args.out.spread;
    const std::int64_t owner = rank - law.first_row_owner();
    std::int64_t row = owner * args.counts.spread_rows + at.spread;
    const std::int64_t first_segment = owner * (2 * args.counts.spread_requests + 1) + 2 * at.spread_requests;
    for (int part = 0; part < 2; ++part) {
        const token_run run = part == 0 ? law.split.head(request.tokens, rank) : law.split.tail(request.tokens, rank);
        segment group;
        group.request = index;
        group.first_row = row;
        group.rows = run.count;
        for (std::int64_t i = 0; i < run.count; ++i, ++row) {
            write_row(out, law.part, law.row_owners * args.counts.spread_rows, row, index,
                      keys_of_token(law, request, run.first + i));
            widen(group, out.rows[row]);
        }
        schedule_splits(group, 1);
        out.segments[first_segment + part] = group;
    }
}

// Rows that fill a rank's spread rows up to those of the largest rank.
CTXPAR_HD inline void write_spread_filling(const prefill_metadata_args& args, const prefill_offsets& end,
                                           std::int64_t rank) {
    const std::int64_t owner = rank - args.law.first_row_owner();
    segment filling;
    filling.first_row = owner * args.counts.spread_rows + end.spread;
    filling.rows = args.counts.spread_rows - end.spread;
    const std::int64_t all = args.law.row_owners * args.counts.spread_rows;
    for (std::int64_t i = 0; i < filling.rows; ++i)
        write_row(args.out.spread, args.law.part, all, filling.first_row + i, -1, {});
    const std::int64_t per_owner = 2 * args.counts.spread_requests + 1;
    args.out.spread.segments[owner * per_owner + per_owner - 1] = filling;
}

} // namespace detail

// One request, as far as the rows of one PCP rank go; `at` says where they begin. Every pair of request and rank is
// independent of the others.
CTXPAR_HD inline void write_prefill_request(const prefill_metadata_args& args, std::int64_t index,
                                            const prefill_offsets& at, std::int64_t rank) {
    const prefill_law& law = args.law;
    const prefill_request request = request_of(args.batch, index);
    if (rank == law.pcp_rank) {
        detail::write_own_rows(args, index, request, at);
        const bool spread = law.set_of(request) == row_set::spread;
        args.out.spread.local_lengths[index] = spread ? law.part.local_len(request.computed + request.tokens) : 0;
    }
    if (law.split.pcp > 1 && !request.decodes) detail::write_new_rows(args, index, request, at, rank);
    const bool owner = rank >= law.first_row_owner() && rank < law.first_row_owner() + law.row_owners;
    if (owner && law.set_of(request) == row_set::spread) detail::write_spread_rows(args, index, request, at, rank);
}

// What is left of a PCP rank's arrays behind its last request; `end` has the sums over all requests.
CTXPAR_HD inline void write_prefill_filling(const prefill_metadata_args& args, const prefill_offsets& end,
                                            std::int64_t rank) {
    const prefill_law& law = args.law;
    const prefill_counts& counts = args.counts;
    const prefill_arrays& out = args.out;
    if (rank == law.pcp_rank) {
        for (std::int64_t row = end.own; row < counts.rows; ++row) {
            out.positions[row] = 0;
            out.batch_rows[row] = out.slots[row] = out.stage[row] = out.last_of[row] = -1;
        }
        for (std::int64_t row = end.prefill; row < counts.prefill_rows; ++row) out.prefill_rows[row] = -1;
        for (std::int64_t row = end.spread; row < counts.spread_rows; ++row) out.spread_rows[row] = -1;
        for (std::int64_t row = end.last; row < counts.last_rows; ++row) out.last_rows[row] = -1;
        *out.spread.status = {};
    }
    if (law.split.pcp > 1) {
        const std::int64_t first = rank * counts.prefill_rows;
        for (std::int64_t row = first + end.prefill; row < first + counts.prefill_rows; ++row)
            out.new_batch_rows[row] = out.new_slots[row] = out.new_stage[row] = -1;
        for (std::int64_t i = end.last; i < counts.last_rows; ++i) out.last_requests[rank * counts.last_rows + i] = -1;
    }
    const bool owner = rank >= law.first_row_owner() && rank < law.first_row_owner() + law.row_owners;
    if (owner) detail::write_spread_filling(args, end, rank);
}

// Keys that were brought to this rank: a chunk of gathered context, or new tokens of this step.
struct kv_piece {
    gather_law law; // of context: that of the step; of new tokens: one rank
    gather_cursor from;
    gather_chunk chunk;    // what the law makes of it
    bool context = false;  // of context or of new tokens
    bool all_rows = false; // rows of every request are attended, also of those without keys in this piece
};

// The arrays of one piece.
struct piece_arrays {
    step_arrays rows;                     // of the attended own rows; live is [2][rows]: the sum so far, and the piece
    std::int64_t* starts = nullptr;       // [requests] the first token of the request's span
    std::int64_t* page_offsets = nullptr; // [requests + 1] its first page in `pages`
    std::int64_t* pages = nullptr;        // pages of the piece in token order
    std::int64_t* slots = nullptr;        // [rows_per_rank] where this rank finds its rows of the piece, -1 for pads
};

struct piece_metadata_args {
    prefill_batch batch;
    prefill_law law;
    kv_piece piece;
    std::int64_t rows = 0; // attended own rows; stride of live
    piece_arrays out;
};

// The tokens of a request that pieces of this kind hold.
CTXPAR_HD inline context_range piece_range(const prefill_batch& batch, const prefill_law& law, bool context,
                                           std::int64_t index) {
    const prefill_request request = request_of(batch, index);
    if (law.set_of(request) != row_set::kv) return {};
    return context ? law.context_of(request) : context_range{0, request.tokens};
}

namespace detail {

// One span: its pages in token order, and the slots of this rank's rows.
CTXPAR_HD inline void write_span(const piece_metadata_args& args, const context_span& span, std::int64_t staged) {
    const kv_piece& piece = args.piece;
    const ownership& law = piece.law.law;
    const piece_arrays& out = args.out;
    const std::int64_t first_page = span.row / law.interleave * law.ranks;
    out.starts[span.request] = span.start;
    out.page_offsets[span.request] = first_page;
    out.rows.local_lengths[span.request] = span.length;
    for (std::int64_t b = 0; span.length > b * law.interleave; ++b)
        out.pages[first_page + b] = piece.law.gathered_page(span, b, piece.chunk.rows_per_rank);
    if (!piece.context) {
        for (std::int64_t i = 0; i < span.length; ++i) out.slots[span.row + i] = staged + span.start + i;
        return;
    }
    // Tokens that no new row sees are not read: where a window has left them behind, their blocks may be gone.
    const shard& part = args.law.part;
    const visible_keys seen = keys_of_token(args.law, request_of(args.batch, span.request), 0);
    const std::int64_t first = part.local_len(span.start);
    const std::int64_t end = part.local_len(span.start + span.length);
    for (std::int64_t i = 0; i < piece.law.rows_for(span.length); ++i) {
        const std::int64_t index = first + i;
        const bool read = index < end && (index >= part.local_len(seen.lo) || index < part.local_len(seen.prefix));
        out.slots[span.row + i] = read ? args.batch.table.slot(span.request, index) : -1;
    }
}

// The attended rows of one request: what they see of its span, as head and tail.
CTXPAR_HD inline void write_piece_rows(const piece_metadata_args& args, std::int64_t index,
                                       const prefill_request& request, const prefill_offsets& at,
                                       std::int64_t first_row, std::int64_t first_segment) {
    const prefill_law& law = args.law;
    const step_arrays& out = args.out.rows;
    const std::int64_t start = (args.piece.context ? 0 : request.computed) + args.out.starts[index];
    const std::int64_t length = out.local_lengths[index];
    const std::int64_t rows = law.rows_of(request, law.pcp_rank);
    const std::int64_t head = request.decodes ? rows : law.split.head(request.tokens, law.pcp_rank).count;
    segment runs[2];
    runs[0] = {index, first_row, head};
    runs[1] = {index, first_row + head, rows - head};
    for (std::int64_t i = 0; i < rows; ++i) {
        const bool tree = request.decodes && args.batch.tree_bits != nullptr;
        const visible_keys seen = keys_of_token(law, request, law.token_of(request, law.pcp_rank, i),
                                                tree ? args.batch.tree_bits + at.tree + i : nullptr);
        const visible_keys part = within(seen, start, length);
        out.live[first_row + i] = 1;
        out.live[args.rows + first_row + i] = part.count() > 0 ? 1 : 0;
        out.rows[first_row + i] = part;
        out.row_lengths[first_row + i] = part.lo < part.hi || part.prefix > 0 ? part.hi : 0;
        out.row_requests[first_row + i] = index;
        widen(runs[i < head ? 0 : 1], part);
    }
    for (int part = 0; part < 2; ++part) {
        schedule_splits(runs[part], 1);
        out.segments[first_segment + part] = runs[part];
    }
}

} // namespace detail

// Own rows, and requests whose keys travel, that a piece attends to, for its plan on the host.
struct piece_extent {
    std::int64_t first_row = 0; // among the own rows whose keys travel
    std::int64_t rows = 0;
    std::int64_t requests = 0;
};

CTXPAR_HD inline piece_extent extent_of(const prefill_batch& batch, const prefill_law& law, const kv_piece& piece) {
    prefill_offsets at;
    piece_extent extent;
    for (std::int64_t index = 0; index < batch.requests; ++index) {
        const bool before = !piece.all_rows && index < piece.chunk.first_request;
        if (!piece.all_rows && index > piece.chunk.last_request) break;
        const prefill_offsets begin = at;
        at.pass(law, request_of(batch, index), law.pcp_rank);
        if (before) extent.first_row = at.kv;
        extent.rows = at.kv - extent.first_row;
        extent.requests += before ? 0 : at.kv_requests - begin.kv_requests;
    }
    return extent;
}

// The arrays of a piece. Requests before and behind those that are attended are not looked at.
CTXPAR_HD inline void write_piece(const piece_metadata_args& args) {
    const kv_piece& piece = args.piece;
    const prefill_batch& batch = args.batch;
    const std::int64_t first = piece.all_rows ? 0 : piece.chunk.first_request;
    const std::int64_t last = piece.all_rows ? batch.requests - 1 : piece.chunk.last_request;
    for (std::int64_t index = first; index <= last; ++index)
        args.out.starts[index] = args.out.page_offsets[index] = args.out.rows.local_lengths[index] = 0;

    prefill_offsets at;
    std::int64_t reached = 0; // requests that `at` has passed
    piece.law.chunk(
        piece.from, batch.requests,
        [&](std::int64_t index) { return piece_range(batch, args.law, piece.context, index); },
        [&](const context_span& span) {
            for (; reached < span.request; ++reached) at.pass(args.law, request_of(batch, reached), args.law.pcp_rank);
            detail::write_span(args, span, at.staged);
        });

    at = {};
    std::int64_t row = 0;
    std::int64_t segment_at = 0;
    for (std::int64_t index = 0; index <= last; ++index) {
        const prefill_request request = request_of(batch, index);
        if (index >= first && args.law.set_of(request) == row_set::kv) {
            detail::write_piece_rows(args, index, request, at, row, segment_at);
            row += args.law.rows_of(request, args.law.pcp_rank);
            segment_at += 2;
        }
        at.pass(args.law, request, args.law.pcp_rank);
    }
    segment filling;
    filling.first_row = row;
    filling.rows = args.rows - row;
    for (; row < args.rows; ++row) {
        args.out.rows.rows[row] = {};
        args.out.rows.live[row] = 1;
        args.out.rows.live[args.rows + row] = 0;
        args.out.rows.row_lengths[row] = 0;
        args.out.rows.row_requests[row] = -1;
    }
    args.out.rows.segments[segment_at] = filling;
}

static_assert(std::is_trivially_copyable_v<prefill_metadata_args> && std::is_trivially_copyable_v<piece_metadata_args>);

} // namespace ctxpar::inline v0_1
