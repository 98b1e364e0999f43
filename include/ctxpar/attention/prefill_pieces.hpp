// Keys that are brought to a rank's own rows, piece by piece: which tokens a piece holds, where its rows lie, and what
// every own row sees of it.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/attention/rows.hpp>
#include <ctxpar/core/config.hpp>
#include <ctxpar/layout/gather.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1 {

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
    step_arrays rows;                     // of the attended own rows; live is [rows]: whether one sees any of the piece
    std::int64_t* starts = nullptr;       // [requests] the first token of the request's span
    std::int64_t* page_offsets = nullptr; // [requests + 1] its first page in `pages`
    std::int64_t* pages = nullptr;        // pages of the piece in token order
    std::int64_t* slots = nullptr;        // [rows_per_rank] where this rank finds its rows of the piece, -1 for pads
};

struct piece_metadata_args {
    prefill_batch batch;
    prefill_law law;
    kv_piece piece;
    std::int64_t rows = 0; // attended own rows
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
CTXPAR_HD inline void write_span(const piece_metadata_args& args, const context_span& span, std::int64_t staged,
                                 const row_share& share) {
    const kv_piece& piece = args.piece;
    const ownership& law = piece.law.law;
    const piece_arrays& out = args.out;
    const std::int64_t first_page = span.row / law.interleave * law.ranks;
    if (share.leads()) {
        out.starts[span.request] = span.start;
        out.page_offsets[span.request] = first_page;
        out.rows.local_lengths[span.request] = span.length;
    }
    for (std::int64_t b = share.first; span.length > b * law.interleave; b += share.step)
        out.pages[first_page + b] = piece.law.gathered_page(span, b, piece.chunk.rows_per_rank);
    if (!piece.context) {
        for (std::int64_t i = share.first; i < span.length; i += share.step)
            out.slots[span.row + i] = staged + span.start + i;
        return;
    }
    // Tokens that no new row sees are not read: where a window has left them behind, their blocks may be gone.
    const shard& part = args.law.part;
    const visible_keys seen = keys_of_token(args.law, request_of(args.batch, span.request), 0);
    const std::int64_t first = part.local_len(span.start);
    const std::int64_t end = part.local_len(span.start + span.length);
    for (std::int64_t i = share.first; i < piece.law.rows_for(span.length); i += share.step) {
        const std::int64_t index = first + i;
        const bool read = index < end && (index >= part.local_len(seen.lo) || index < part.local_len(seen.prefix));
        out.slots[span.row + i] = read ? args.batch.table.slot(span.request, index) : -1;
    }
}

// The attended rows of one request: what they see of its span, as head and tail.
CTXPAR_HD inline void write_piece_rows(const piece_metadata_args& args, std::int64_t index,
                                       const prefill_request& request, const prefill_offsets& at,
                                       std::int64_t first_row, std::int64_t first_segment, const row_share& share) {
    const prefill_law& law = args.law;
    const step_arrays& out = args.out.rows;
    const std::int64_t start = (args.piece.context ? 0 : request.computed) + args.out.starts[index];
    const std::int64_t length = out.local_lengths[index];
    const bool tree = request.decodes && args.batch.tree_bits != nullptr;
    const auto part_of = [&](std::int64_t i) { // what row i of the request sees of the piece
        const std::int64_t token = law.token_of(request, law.pcp_rank, i);
        return within(keys_of_token(law, request, token, tree ? args.batch.tree_bits + at.tree + i : nullptr), start,
                      length);
    };
    const std::int64_t rows = law.rows_of(request, law.pcp_rank);
    for (std::int64_t i = share.first; i < rows; i += share.step) {
        const visible_keys part = part_of(i);
        out.live[first_row + i] = part.count() > 0 ? 1 : 0;
        out.rows[first_row + i] = part;
        out.row_lengths[first_row + i] = part.lo < part.hi || part.prefix > 0 ? part.hi : 0;
        out.row_requests[first_row + i] = index;
    }
    if (!share.leads()) return;
    const std::int64_t head = request.decodes ? rows : law.split.head(request.tokens, law.pcp_rank).count;
    for (int run = 0; run < 2; ++run) {
        const std::int64_t begin = run == 0 ? 0 : head;
        const std::int64_t end = run == 0 ? head : rows;
        std::int64_t real = end; // one past the last row that is no pad
        while (real > begin && law.token_of(request, law.pcp_rank, real - 1) >= request.tokens) --real;
        visible_keys first, last;
        if (real > begin) {
            first = part_of(begin);
            last = part_of(real - 1);
        }
        out.segments[first_segment + run] = segment_between(index, first_row + begin, end - begin, first, last);
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

// The arrays of a piece. Requests before and behind those that are attended are not looked at. Several workers may
// share the rows; sync() is where they wait for one another.
CTXPAR_ANY_CALLEE
template <class Sync>
CTXPAR_HD void write_piece(const piece_metadata_args& args, const row_share& share, const Sync& sync) {
    const kv_piece& piece = args.piece;
    const prefill_batch& batch = args.batch;
    const std::int64_t first = piece.all_rows ? 0 : piece.chunk.first_request;
    const std::int64_t last = piece.all_rows ? batch.requests - 1 : piece.chunk.last_request;
    for (std::int64_t index = first + share.first; index <= last; index += share.step)
        args.out.starts[index] = args.out.page_offsets[index] = args.out.rows.local_lengths[index] = 0;
    sync();

    prefill_offsets at;
    std::int64_t reached = 0; // requests that `at` has passed
    piece.law.chunk(
        piece.from, batch.requests,
        [&](std::int64_t index) { return piece_range(batch, args.law, piece.context, index); },
        [&](const context_span& span) {
            for (; reached < span.request; ++reached) at.pass(args.law, request_of(batch, reached), args.law.pcp_rank);
            detail::write_span(args, span, at.staged, share);
        });
    sync();

    at = {};
    std::int64_t row = 0;
    std::int64_t segment_at = 0;
    for (std::int64_t index = 0; index <= last; ++index) {
        const prefill_request request = request_of(batch, index);
        if (index >= first && args.law.set_of(request) == row_set::kv) {
            detail::write_piece_rows(args, index, request, at, row, segment_at, share);
            row += args.law.rows_of(request, args.law.pcp_rank);
            segment_at += 2;
        }
        at.pass(args.law, request, args.law.pcp_rank);
    }
    segment filling;
    filling.first_row = row;
    filling.rows = args.rows - row;
    for (row += share.first; row < args.rows; row += share.step) {
        args.out.rows.rows[row] = {};
        args.out.rows.live[row] = 0;
        args.out.rows.row_lengths[row] = 0;
        args.out.rows.row_requests[row] = -1;
    }
    if (share.leads()) args.out.rows.segments[segment_at] = filling;
}
CTXPAR_HD inline void write_piece(const piece_metadata_args& args) {
    write_piece(args, {}, [] {});
}

static_assert(std::is_trivially_copyable_v<piece_metadata_args>);

} // namespace ctxpar::inline v0_1
