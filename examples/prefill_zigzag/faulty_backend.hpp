// A backend made from the library's: it tells how far the attention is, and on request puts a fault into the arrays of
// a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ctxpar/backend/cpu.hpp>

#include "common/progress.hpp"
#include "problem.hpp"

namespace demo {

class faulty_backend : public ctxpar::cpu_backend {
public:
    explicit faulty_backend(const ctxpar::cpu_options& options = {}, fault injected = fault::none,
                            progress* attended = nullptr)
        : ctxpar::cpu_backend(options), injected_(injected), attended_(attended) {}

    void prefill_metadata(const ctxpar::prefill_metadata_args& args, ctxpar::host_stream stream) {
        ctxpar::cpu_backend::prefill_metadata(args, stream);
        if (injected_ == fault::context_short) shorten_spread_tail(args);
        if (injected_ == fault::chunks_swapped) swap_chunks(args);
        if (injected_ == fault::pad_kept) keep_pads(args);
    }

    void piece_metadata(const ctxpar::piece_metadata_args& args, ctxpar::host_stream stream) {
        ctxpar::cpu_backend::piece_metadata(args, stream);
        const bool of_new_tokens = !args.piece.context && args.law.pcp_rank == 0;
        if (injected_ == fault::context_short && of_new_tokens) shorten(args.out.rows, args.out.rows.segments[1]);
    }

    // A few rows of a segment at a time, so that progress shows. It changes no number: what is computed for a row does
    // not depend on the rows beside it.
    template <class Q, class Kv, class O>
    void attend(const ctxpar::attend_args<Q, Kv, O, ctxpar::lse_base::natural>& args, ctxpar::host_stream stream) {
        constexpr std::int64_t at_once = 64;
        ctxpar::segment part;
        auto some = args;
        some.plan.segments = 1;
        some.plan.arrays.segments = &part;
        for (std::int64_t s = 0; s < args.plan.segments; ++s) {
            const ctxpar::segment& whole = args.plan.arrays.segments[s];
            for (std::int64_t done = 0; done < whole.rows; done += at_once) {
                part = whole;
                part.first_row += done;
                part.rows = std::min(at_once, whole.rows - done);
                ctxpar::cpu_backend::attend(some, stream);
                if (attended_ != nullptr) attended_->add(pairs_of(args.plan.arrays, part));
            }
        }
    }

private:
    static std::int64_t pairs_of(const ctxpar::step_arrays& arrays, const ctxpar::segment& run) {
        std::int64_t pairs = 0;
        for (std::int64_t row = run.first_row; row < run.first_row + run.rows; ++row) pairs += arrays.rows[row].count();
        return pairs;
    }

    // Rows of a segment see one token less, the newest.
    static void shorten(const ctxpar::step_arrays& arrays, const ctxpar::segment& run) {
        for (std::int64_t row = run.first_row; row < run.first_row + run.rows; ++row)
            arrays.rows[row].hi = std::max(arrays.rows[row].lo, arrays.rows[row].hi - 1);
    }

    // The tail of PCP rank 0 is taken to start one token earlier, on the rank that holds each row's newest token.
    static void shorten_spread_tail(const ctxpar::prefill_metadata_args& args) {
        const ctxpar::prefill_law& law = args.law;
        if (args.counts.spread_requests == 0 || law.first_row_owner() != 0) return;
        const ctxpar::prefill_request request = request_of(args.batch, 0);
        const ctxpar::segment& run = args.out.spread.segments[1];
        const std::int64_t first = request.computed + law.split.tail(request.tokens, 0).first;
        for (std::int64_t i = 0; i < run.rows; ++i)
            args.out.spread.rows[run.first_row + i].hi = law.part.local_len(first + i);
    }

    // PCP rank 0 takes its tail for its head, and all ranks put its rows back accordingly.
    static void swap_chunks(const ctxpar::prefill_metadata_args& args) {
        const ctxpar::zigzag_law& split = args.law.split;
        const ctxpar::prefill_request request = request_of(args.batch, 0);
        const std::int64_t head = split.head(request.tokens, 0).count;
        const std::int64_t each = std::min(head, split.tail(request.tokens, 0).count);
        for (std::int64_t i = 0; i < each; ++i) {
            if (split.pcp > 1) std::swap(args.out.new_batch_rows[i], args.out.new_batch_rows[head + i]);
            if (args.law.pcp_rank != 0) continue;
            std::swap(args.out.batch_rows[i], args.out.batch_rows[head + i]);
            std::swap(args.out.positions[i], args.out.positions[head + i]);
        }
    }

    // Pads are written where the last token is, as a slot left over from another step would.
    static void keep_pads(const ctxpar::prefill_metadata_args& args) {
        const ctxpar::prefill_law& law = args.law;
        const ctxpar::prefill_request request = request_of(args.batch, 0);
        const std::int64_t last = request.computed + request.tokens - 1;
        for (std::int64_t row = 0; row < law.split.pcp * args.counts.prefill_rows; ++row) {
            if (args.out.new_batch_rows[row] >= 0) continue;
            args.out.new_slots[row] = slot_of(law.part, args.batch.table, 0, last);
            if (args.counts.kv_requests > 0) args.out.new_stage[row] = request.tokens - 1;
        }
    }

    fault injected_;
    progress* attended_;
};

static_assert(ctxpar::backend<faulty_backend>);

} // namespace demo
