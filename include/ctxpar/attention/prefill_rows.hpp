// The arrays of a prefill step on one rank, and how they are written: where every own row belongs, where new keys go,
// and what rows whose queries travel see of this rank's shard.
//
// Writing goes request by request with running sums, so that a host loops and a device scans.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/attention/rows.hpp>
#include <ctxpar/core/config.hpp>
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

// The rows that one of several workers writes: every step-th from the first. One worker writes all.
struct row_share {
    std::int64_t first = 0;
    std::int64_t step = 1;

    CTXPAR_HD constexpr bool leads() const { return first == 0; } // and writes what is there once
};

namespace detail {

// A segment whose first and last row see these keys; bounds never decrease in it.
CTXPAR_HD constexpr segment segment_between(std::int64_t request, std::int64_t first_row, std::int64_t rows,
                                            const visible_keys& first, const visible_keys& last) {
    segment run;
    run.request = request;
    run.first_row = first_row;
    run.rows = rows;
    const std::int64_t begin = first.prefix > 0 ? 0 : first.lo;
    if (last.hi > begin) {
        run.begin = begin;
        run.end = last.hi;
    }
    schedule_splits(run, 1);
    return run;
}

// The own rows of one request: where each belongs.
CTXPAR_HD inline void write_own_rows(const prefill_metadata_args& args, std::int64_t index,
                                     const prefill_request& request, const prefill_offsets& at,
                                     const row_share& share) {
    const prefill_law& law = args.law;
    const prefill_arrays& out = args.out;
    const row_set set = law.set_of(request);
    const bool travels = law.split.pcp > 1 && !request.decodes;
    for (std::int64_t i = share.first; i < law.rows_of(request, law.pcp_rank); i += share.step) {
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
    if (!share.leads()) return;
    if (!request.decodes && law.has_last(request, law.pcp_rank))
        out.last_rows[at.last] = at.own + law.split.place(request.tokens, request.tokens - 1).row;
    out.decode_lengths[index] = set == row_set::decode ? request.computed + request.tokens : 0;
    out.decode_counts[index] = set == row_set::decode ? request.tokens : 0;
}

// One prefill's rows on one PCP rank as they arrive here: where their keys and hidden values go.
CTXPAR_HD inline void write_new_rows(const prefill_metadata_args& args, std::int64_t index,
                                     const prefill_request& request, const prefill_offsets& at, std::int64_t rank,
                                     const row_share& share) {
    const prefill_law& law = args.law;
    const bool staged = law.set_of(request) == row_set::kv;
    for (std::int64_t i = share.first; i < law.rows_of(request, rank); i += share.step) {
        const std::int64_t token = law.token_of(request, rank, i);
        const std::int64_t row = rank * args.counts.prefill_rows + at.prefill + i;
        const bool real = token < request.tokens;
        args.out.new_batch_rows[row] = real ? at.batch + token : -1;
        args.out.new_slots[row] = real ? slot_of(law.part, args.batch.table, index, request.computed + token) : -1;
        args.out.new_stage[row] = real && staged ? at.staged + token : -1;
    }
    if (share.leads() && law.has_last(request, rank))
        args.out.last_requests[rank * args.counts.last_rows + at.last] = index;
}

// The spread rows of one request from one rank of the KV group: what they see of this rank's shard.
CTXPAR_HD inline void write_spread_rows(const prefill_metadata_args& args, std::int64_t index,
                                        const prefill_request& request, const prefill_offsets& at, std::int64_t rank,
                                        const row_share& share) {
    const prefill_law& law = args.law;
    const std::int64_t owner = rank - law.first_row_owner();
    const std::int64_t all_rows = law.row_owners * args.counts.spread_rows;
    const std::int64_t first_segment = owner * (2 * args.counts.spread_requests + 1) + 2 * at.spread_requests;
    std::int64_t first_row = owner * args.counts.spread_rows + at.spread;
    for (int part = 0; part < 2; ++part) {
        const token_run run = part == 0 ? law.split.head(request.tokens, rank) : law.split.tail(request.tokens, rank);
        for (std::int64_t i = share.first; i < run.count; i += share.step)
            write_row(args.out.spread, law.part, all_rows, first_row + i, index,
                      keys_of_token(law, request, run.first + i));
        if (share.leads()) {
            const std::int64_t left = request.tokens - run.first; // real rows, not pads, from the first on
            const std::int64_t real = left < run.count ? left : run.count;
            visible_keys first, last;
            if (real > 0) {
                first = localise(keys_of_token(law, request, run.first), law.part);
                last = localise(keys_of_token(law, request, run.first + real - 1), law.part);
            }
            args.out.spread.segments[first_segment + part] = segment_between(index, first_row, run.count, first, last);
        }
        first_row += run.count;
    }
}

// Rows that fill a rank's spread rows up to those of the largest rank.
CTXPAR_HD inline void write_spread_filling(const prefill_metadata_args& args, const prefill_offsets& end,
                                           std::int64_t rank, const row_share& share) {
    const std::int64_t owner = rank - args.law.first_row_owner();
    segment filling;
    filling.first_row = owner * args.counts.spread_rows + end.spread;
    filling.rows = args.counts.spread_rows - end.spread;
    const std::int64_t all = args.law.row_owners * args.counts.spread_rows;
    for (std::int64_t i = share.first; i < filling.rows; i += share.step)
        write_row(args.out.spread, args.law.part, all, filling.first_row + i, -1, {});
    const std::int64_t per_owner = 2 * args.counts.spread_requests + 1;
    if (share.leads()) args.out.spread.segments[owner * per_owner + per_owner - 1] = filling;
}

} // namespace detail

// One request, as far as the rows of one PCP rank go; `at` says where they begin. Every pair of request and rank is
// independent of the others, and several workers may share its rows.
CTXPAR_HD inline void write_prefill_request(const prefill_metadata_args& args, std::int64_t index,
                                            const prefill_offsets& at, std::int64_t rank, const row_share& share = {}) {
    const prefill_law& law = args.law;
    const prefill_request request = request_of(args.batch, index);
    const bool spread = law.set_of(request) == row_set::spread;
    if (rank == law.pcp_rank) {
        detail::write_own_rows(args, index, request, at, share);
        if (share.leads())
            args.out.spread.local_lengths[index] = spread ? law.part.local_len(request.computed + request.tokens) : 0;
    }
    if (law.split.pcp > 1 && !request.decodes) detail::write_new_rows(args, index, request, at, rank, share);
    const bool owner = rank >= law.first_row_owner() && rank < law.first_row_owner() + law.row_owners;
    if (owner && spread) detail::write_spread_rows(args, index, request, at, rank, share);
}

// What is left of a PCP rank's arrays behind its last request; `end` has the sums over all requests.
CTXPAR_HD inline void write_prefill_filling(const prefill_metadata_args& args, const prefill_offsets& end,
                                            std::int64_t rank, const row_share& share = {}) {
    const prefill_law& law = args.law;
    const prefill_counts& counts = args.counts;
    const prefill_arrays& out = args.out;
    const auto none_from = [&](std::int64_t* list, std::int64_t first, std::int64_t count) {
        for (std::int64_t i = first + share.first; i < count; i += share.step) list[i] = -1;
    };
    if (rank == law.pcp_rank) {
        for (std::int64_t row = end.own + share.first; row < counts.rows; row += share.step) {
            out.positions[row] = 0;
            out.batch_rows[row] = out.slots[row] = out.stage[row] = out.last_of[row] = -1;
        }
        none_from(out.prefill_rows, end.prefill, counts.prefill_rows);
        none_from(out.spread_rows, end.spread, counts.spread_rows);
        none_from(out.last_rows, end.last, counts.last_rows);
        if (share.leads()) *out.spread.status = {};
    }
    if (law.split.pcp > 1) {
        const std::int64_t first = rank * counts.prefill_rows;
        for (std::int64_t row = end.prefill + share.first; row < counts.prefill_rows; row += share.step)
            out.new_batch_rows[first + row] = out.new_slots[first + row] = out.new_stage[first + row] = -1;
        none_from(out.last_requests + rank * counts.last_rows, end.last, counts.last_rows);
    }
    const bool owner = rank >= law.first_row_owner() && rank < law.first_row_owner() + law.row_owners;
    if (owner) detail::write_spread_filling(args, end, rank, share);
}

static_assert(std::is_trivially_copyable_v<prefill_metadata_args>);

} // namespace ctxpar::inline v0_1
