// How cached context, sharded over N ranks, is gathered through a workspace of fixed size, in token order.
//
// Every rank contributes the same number of rows to a chunk, so that one all_gather moves it; a chunk holds spans
// [start, start + length) of requests. Spans start at multiples of U = N*I, a round of ownership: then a span's tokens
// lie on the ranks as those of a sequence from 0 would, and cost ceil(length / U) * I rows of every rank. Requests are
// taken in order; one that does not fit is cut at the last multiple of U that fits, and its rest opens the next chunk.
//
// The gathered array is rank-major. Token order is restored by its index alone: seen as pages of I rows it is a paged
// KV, and a block table that lists a span's pages in token order is all that a causal or windowed mask needs.
//
// Everything here follows from lengths that all ranks share, never from what one rank holds. Nothing is stored per
// chunk: the next chunk follows from a cursor, on host and device.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <ctxpar/core/config.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>

namespace ctxpar::inline v0_1 {

// Cached tokens [begin, end) of a request that must be gathered; begin is a multiple of U.
struct context_range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
};

// The part of a request that lies in a chunk.
struct context_span {
    std::int64_t request = 0;
    std::int64_t start = 0;  // first token, a multiple of U
    std::int64_t length = 0; // tokens, at least 1
    std::int64_t row = 0;    // its first row among a rank's rows of the chunk, a multiple of I
};

// Where a chunk begins.
struct gather_cursor {
    std::int64_t request = 0;
    std::int64_t taken = 0; // tokens of the request's range that earlier chunks hold
};

struct gather_chunk {
    std::int64_t rows_per_rank = 0; // 0: nothing was left, there is no chunk
    std::int64_t first_request = 0; // its spans belong to requests [first_request, last_request]
    std::int64_t last_request = 0;
    gather_cursor next;
};

// The law of a gather over N ranks with interleave I and a workspace of some rows, all ranks together.
struct gather_law {
    ownership law;
    std::int64_t units = 1; // rounds of ownership that fit the workspace

    // Rows of the workspace that are used: N*I*units.
    CTXPAR_HD constexpr std::int64_t workspace_rows() const { return units * law.unit(); }

    // Rows of every rank that `length` tokens from a multiple of U take: ceil(length / U) * I.
    CTXPAR_HD constexpr std::int64_t rows_for(std::int64_t length) const { return law.local_bound(length); }

    // The chunk that begins at the cursor. range_of(request) is the context_range of each of `requests` requests, and
    // visit(span) is called for each span in order. Without anything left: rows_per_rank 0 and no span.
    CTXPAR_ANY_CALLEE
    template <class RangeOf, class Visit>
    CTXPAR_HD constexpr gather_chunk chunk(gather_cursor from, std::int64_t requests, const RangeOf& range_of,
                                           const Visit& visit) const {
        gather_chunk found;
        std::int64_t room = units;
        while (from.request < requests && room > 0) {
            const context_range range = range_of(from.request);
            const std::int64_t start = range.begin + from.taken;
            const std::int64_t left = range.end - start;
            if (left > 0) {
                const std::int64_t needed = left / law.unit() + (left % law.unit() != 0 ? 1 : 0);
                const std::int64_t length = needed <= room ? left : room * law.unit();
                if (found.rows_per_rank == 0) found.first_request = from.request;
                found.last_request = from.request;
                visit(context_span{from.request, start, length, found.rows_per_rank});
                found.rows_per_rank += rows_for(length);
                room -= needed <= room ? needed : room;
                if (length < left) {
                    from.taken += length;
                    break;
                }
            }
            from = {from.request + 1, 0};
        }
        found.next = from;
        return found;
    }

    // The row of a span's token start + t in a gathered array of N * rows_per_rank rows, rank-major.
    CTXPAR_HD constexpr std::int64_t gathered_row(const context_span& span, std::int64_t t,
                                                  std::int64_t rows_per_rank) const {
        return law.owner(t) * rows_per_rank + span.row + law.local(t);
    }

    // The gathered array as pages of I rows: the page with a span's tokens [start + b*I, start + (b+1)*I).
    CTXPAR_HD constexpr std::int64_t gathered_page(const context_span& span, std::int64_t b,
                                                   std::int64_t rows_per_rank) const {
        return gathered_row(span, b * law.interleave, rows_per_rank) / law.interleave;
    }
};

static_assert(std::is_trivially_copyable_v<gather_law>);

// A gather through a workspace of `workspace_rows` rows, all ranks together, of which a multiple of U is used.
// config_error "workspace" where not even one round of ownership fits.
inline gather_law make_gather(const ownership& law, std::int64_t workspace_rows) {
    require(workspace_rows >= law.unit(), "workspace", "the gather of context has a workspace of ", workspace_rows,
            " rows; with ", law.ranks, " ranks and an interleave of ", law.interleave, " it must have at least ",
            law.unit());
    return {law, workspace_rows / law.unit()};
}

// One chunk with its spans, for hosts that want to see the whole plan.
struct planned_chunk {
    std::vector<context_span> spans;
    std::int64_t rows_per_rank = 0;
};

// All chunks for requests with contexts of these lengths. config_error "length" for a negative one.
inline std::vector<planned_chunk> plan_gather(const gather_law& gather, std::span<const std::int64_t> contexts) {
    for (const std::int64_t context : contexts) check_length(context);
    std::vector<planned_chunk> all;
    const auto requests = static_cast<std::int64_t>(contexts.size());
    const auto range_of = [&](std::int64_t r) { return context_range{0, contexts[static_cast<std::size_t>(r)]}; };
    for (gather_cursor at;;) {
        planned_chunk planned;
        const gather_chunk found =
            gather.chunk(at, requests, range_of, [&](const context_span& span) { planned.spans.push_back(span); });
        if (found.rows_per_rank == 0) return all;
        planned.rows_per_rank = found.rows_per_rank;
        all.push_back(std::move(planned));
        at = found.next;
    }
}

// For each token of a chunk's spans, in order, its row in the gathered array of N * rows_per_rank rows.
inline std::vector<std::int64_t> gathered_index(const gather_law& gather, const planned_chunk& chunk) {
    std::vector<std::int64_t> index;
    for (const context_span& span : chunk.spans)
        for (std::int64_t t = 0; t < span.length; ++t)
            index.push_back(gather.gathered_row(span, t, chunk.rows_per_rank));
    return index;
}

} // namespace ctxpar::inline v0_1
