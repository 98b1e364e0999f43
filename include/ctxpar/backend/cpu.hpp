// The CPU backend: every operation on the calling rank's threads, done when the call returns.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/append.hpp>
#include <ctxpar/backend/cpu/attend.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/merge.hpp>
#include <ctxpar/backend/cpu/pool.hpp>
#include <ctxpar/backend/cpu/rows.hpp>
#include <ctxpar/core/stream.hpp>

namespace ctxpar::inline v0_1 {

struct cpu_options {
    std::int64_t threads = 1;                   // of one rank, the caller's own included; results do not depend on it
    cpu::isa instructions = cpu::default_isa(); // CTXPAR_CPU=portable|avx2|avx512|amx forces one
    cpu::executor executor{};                   // with a function: the engine's threads, in place of own ones
};

// A handle: copies share threads and counters. One operation at a time; a rank that overlaps operations uses two
// backends. P stays in fp32 (p_type), LSE is natural.
class cpu_backend {
public:
    using stream_type = host_stream;
    using p_type = float;
    static constexpr lse_base attend_lse_base = lse_base::natural;
    static constexpr bool dense_partials = false;
    static constexpr bool writes_empty_rows = true;
    static constexpr bool host_memory = true;
    static constexpr bool takes_intervals = true;
    static constexpr bool splits_keys = true;

    // config_error "threads", "instructions".
    explicit cpu_backend(const cpu_options& options = {})
        : state_(options.executor.run != nullptr ? std::make_shared<shared_state>(options.executor)
                                                 : std::make_shared<shared_state>(options.threads)),
          instructions_(options.instructions) {
        require(cpu::has(instructions_), "instructions", "a CPU backend was asked for ", cpu::name_of(instructions_),
                " instructions; this processor has ", cpu::name_of(cpu::best_isa()), " at most");
    }

    std::int64_t threads() const { return state_->pool.threads(); }
    cpu::isa instructions() const { return instructions_; }

    // Operations done so far by this backend and its copies; on a device each is one launch.
    std::uint64_t launches() const { return state_->launches.load(std::memory_order_relaxed); }

    // fp32 numbers of scratch memory that one thread needs in attend.
    std::int64_t attend_thread_floats(std::int64_t query_width, std::int64_t value_width) const {
        return cpu::attend_floats(query_width, value_width);
    }

    // The arrays of a step. Bad entries become empty and are counted in the status.
    void metadata(const metadata_args& args, stream_type) {
        count();
        step_status status;
        std::int64_t row = 0;
        for (std::int64_t request = 0; request < args.batch.requests; ++request) {
            const entry_fault fault = write_request(args, request, row);
            if (fault != entry_fault::none) {
                if (status.bad_entries++ == 0) {
                    status.first_request = request;
                    status.first_fault = fault;
                }
            }
            row += args.out.segments[request].rows;
        }
        write_padding(args, row);
        *args.out.status = status;
    }

    // What metadata found wrong.
    step_status read_status(const step_status* status) const { return *status; }
    reshard_status read_status(const reshard_status* status) const { return *status; }

    // The arrays of a step with prefills, rank by rank and request by request.
    void prefill_metadata(const prefill_metadata_args& args, stream_type) {
        count();
        for (std::int64_t rank = 0; rank < args.law.split.pcp; ++rank) {
            prefill_offsets at;
            for (std::int64_t index = 0; index < args.batch.requests; ++index) {
                write_prefill_request(args, index, at, rank);
                at.pass(args.law, request_of(args.batch, index), rank);
            }
            write_prefill_filling(args, at, rank);
        }
    }

    void piece_metadata(const piece_metadata_args& args, stream_type) {
        count();
        write_piece(args);
    }

    void reshard_metadata(const reshard_args& args, stream_type) {
        count();
        write_reshard(args);
    }

    template <class E, class Kv>
    void append(const append_args<E, Kv>& args, stream_type) {
        count();
        constexpr std::int64_t grain = 16;
        state_->pool.run((args.k.rows + grain - 1) / grain, [&](std::int64_t item, std::int64_t) {
            const std::int64_t last = std::min(args.k.rows, (item + 1) * grain);
            for (std::int64_t row = item * grain; row < last; ++row) cpu::append_row(args, row);
        });
    }

    template <class Q, class Kv, class O>
    void attend(const attend_args<Q, Kv, O, lse_base::natural>& args, stream_type) {
        count();
        std::int64_t items = 0;
        bool split = false;
        const auto items_of = [&](std::int64_t s) {
            const std::int64_t wanted = (4 * threads() + args.plan.segments - 1) / args.plan.segments;
            return cpu::segment_items(args, args.plan.arrays.segments[s], wanted);
        };
        for (std::int64_t s = 0; s < args.plan.segments; ++s) {
            items += items_of(s).count();
            split = split || args.plan.arrays.segments[s].splits() > 1;
        }
        state_->pool.run(items, [&](std::int64_t index, std::int64_t thread) {
            std::int64_t s = 0;
            for (;; ++s) {
                const std::int64_t here = items_of(s).count();
                if (index < here) break;
                index -= here;
            }
            cpu::attend_one(instructions_, args, items_of(s).item(args.plan.arrays.segments[s], index),
                            args.scratch.threads + thread * args.scratch.thread_floats);
        });
        if (!split) return;
        state_->pool.run(args.plan.segments, [&](std::int64_t s, std::int64_t) {
            const segment& run = args.plan.arrays.segments[s];
            if (run.splits() <= 1) return;
            for (std::int64_t row = run.first_row; row < run.first_row + run.rows; ++row)
                cpu::combine_splits(instructions_, args, row, run.splits());
        });
    }

    // scaled = own O times exp(LSE_own - LSE of all parts): partials of all ranks scaled this way add up to the merged
    // output. The merged LSEs of the rows and heads from lse_first on go to lse_out, as many as it has (null base:
    // none).
    template <class P, lse_base Base, lse_base OutBase>
    void scale(const merge_parts<P, Base>& lses, std::int64_t own_part, const head_view<const P>& own,
               const head_view<P>& scaled, const state_origin& lse_first, const head_view<lse<OutBase>>& lse_out,
               stream_type) {
        each_row(own.rows, [&](std::int64_t row) {
            cpu::scale_row(instructions_, lses, own_part, row, own, scaled, lse_first, lse_out);
        });
    }

    // out = the merged output of all parts, by the rules of softmax_state.hpp.
    template <class P, class Out, lse_base Base, lse_base OutBase>
    void merge(const merge_parts<P, Base>& parts, const head_view<Out>& out, const head_view<lse<OutBase>>& lse_out,
               stream_type) {
        each_row(out.rows, [&](std::int64_t row) { cpu::merge_row(instructions_, parts, row, out, lse_out); });
    }

    // Takes a partial state into those that have grown so far.
    template <lse_base Base>
    void accumulate(const accumulate_args<Base>& args, stream_type) {
        each_row(args.out.rows, [&](std::int64_t row) { cpu::accumulate_row(args, row); });
    }

    template <class Out, lse_base Base, lse_base OutBase>
    void finish(const finish_args<Out, Base, OutBase>& args, stream_type) {
        each_row(args.out.rows, [&](std::int64_t row) { cpu::finish_row(args, row); });
    }

    // out = sum of the parts in their order, in fp32; `shape` says where a part's elements lie relative to its pointer.
    template <class P, class Out>
    void sum_parts(const void* const* parts, std::int64_t part_count, const head_view<const P>& shape,
                   const head_view<Out>& out, stream_type) {
        each_row(out.rows, [&](std::int64_t row) { cpu::sum_row(instructions_, parts, part_count, shape, row, out); });
    }

    // Copies vectors to where they are sent from, each followed by the raw bits of its LSE.
    template <class P, lse_base Base>
    void pack(const head_view<const P>& out, const head_view<const lse<Base>>& lse_in, const head_view<P>& packed,
              stream_type) {
        each_row(out.rows, [&](std::int64_t row) { cpu::pack_row(out, lse_in, packed, row); });
    }

    // to = heads [first_head, first_head + to.heads) of `from`, converting where the types differ.
    template <class From, class To>
    void copy(const head_view<const From>& from, std::int64_t first_head, const head_view<To>& to, stream_type) {
        each_row(to.rows, [&](std::int64_t row) { cpu::copy_row(instructions_, from, first_head, to, row); });
    }

    // Row i of `to` is row rows[i] of `from`, or T{} for -1.
    template <class T>
    void copy_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to, stream_type) {
        each_row(to.rows, [&](std::int64_t row) {
            const std::int64_t source = rows.at(row);
            if (source < 0) {
                cpu::clear_row(to, row);
            } else {
                cpu::copy_vectors(from, source, to, row);
            }
        });
    }

    // Row i of `from` goes to row rows[i] of `to`, or nowhere for -1.
    template <class T>
    void place_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to, stream_type) {
        each_row(from.rows, [&](std::int64_t row) {
            if (rows.at(row) >= 0) cpu::copy_vectors(from, row, to, rows.at(row));
        });
    }

    template <class T>
    void clear_rows(const head_view<T>& to, stream_type) {
        each_row(to.rows, [&](std::int64_t row) { cpu::clear_row(to, row); });
    }

    template <class From, class To>
    void copy_kv(const copy_kv_args<From, To>& args, stream_type) {
        each_row(args.rows, [&](std::int64_t row) { cpu::copy_kv_row(args, row); });
    }

private:
    struct shared_state {
        explicit shared_state(std::int64_t threads) : pool(threads) {}
        explicit shared_state(const cpu::executor& lent) : pool(lent) {}
        cpu::thread_pool pool;
        std::atomic<std::uint64_t> launches{0};
    };

    void count() { state_->launches.fetch_add(1, std::memory_order_relaxed); }

    template <class Row>
    void each_row(std::int64_t rows, const Row& row) {
        count();
        state_->pool.run(rows, [&](std::int64_t index, std::int64_t) { row(index); });
    }

    std::shared_ptr<shared_state> state_;
    cpu::isa instructions_;
};

static_assert(resharding_backend<cpu_backend>);

} // namespace ctxpar::inline v0_1
