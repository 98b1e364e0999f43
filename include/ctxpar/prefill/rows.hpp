// Rows on their way: the own rows of one set as they go through attention, and new keys as they travel.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/core/view.hpp>
#include <ctxpar/decode/pass.hpp>
#include <ctxpar/prefill/buffers.hpp>
#include <ctxpar/prefill/step.hpp>

namespace ctxpar::inline v0_1::detail {

// Own rows of one set.
struct row_choice {
    const std::int64_t* rows = nullptr; // [count] own rows, -1 for filling
    std::int64_t count = 0;
    bool all = false; // the set has all rows of the step: nothing is copied
};

inline row_choice spread_rows_of(const prefill_step& step) {
    const prefill_counts& counts = step.counts;
    return {step.arrays.spread_rows, counts.spread_rows, counts.kv_requests == 0 && counts.decode_rows == 0};
}
inline row_choice decode_rows_of(const prefill_step& step) {
    const prefill_counts& counts = step.counts;
    return {step.arrays.decode_rows, counts.decode_rows, counts.kv_requests == 0 && counts.spread_requests == 0};
}
inline row_choice kv_rows_of(const prefill_step& step) {
    const prefill_counts& counts = step.counts;
    return {step.arrays.kv_rows, counts.kv_rows, counts.spread_requests == 0 && counts.decode_rows == 0};
}

// Own rows of one set (row_set), in the caller's memory where the set has all rows of the step, else copied together.
template <class E, class Out, lse_base LseBase>
struct row_subset {
    head_view<const E> q;
    head_view<Out> out;
    head_view<lse<LseBase>> lse_out;
    const std::int64_t* rows = nullptr; // [count] own rows, -1 for filling; null: all rows

    template <class Buffers>
    row_subset(const Buffers& memory, const row_choice& chosen, const head_view<const E>& own_q,
               const head_view<Out>& own_out, const head_view<lse<LseBase>>& own_lse)
        : q(own_q), out(own_out), lse_out(own_lse) {
        if (chosen.all) return;
        rows = chosen.rows;
        copied_ = dense_view(memory.queries, chosen.count, own_q.heads, own_q.width);
        q = copied_;
        out = dense_view(static_cast<Out*>(memory.outputs), chosen.count, own_out.heads, own_out.width);
        if (own_lse.base != nullptr)
            lse_out = dense_view(static_cast<lse<LseBase>*>(memory.lses), chosen.count, own_lse.heads, 1);
    }

    layer_options<LseBase> with(layer_options<LseBase> options) const {
        options.lse_out = lse_out;
        return options;
    }

    template <class Backend>
    void take(Backend& backend, const head_view<const E>& own_q, typename Backend::stream_type stream) const {
        if (rows != nullptr) backend.copy_rows(own_q, index_of(rows), copied_, stream);
    }
    template <class Backend>
    void give_back(Backend& backend, const head_view<Out>& own_out, const head_view<lse<LseBase>>& own_lse,
                   typename Backend::stream_type stream) const {
        if (rows == nullptr) return;
        backend.place_rows(head_view<const Out>(out), index_of(rows), own_out, stream);
        if (own_lse.base != nullptr)
            backend.place_rows(head_view<const lse<LseBase>>(lse_out), index_of(rows), own_lse, stream);
    }

private:
    head_view<E> copied_;
};

// Runs a pass over the rows of one set: pass(row_subset).
template <class Backend, class Buffers, class E, class Out, lse_base LseBase, class Pass>
void attend_rows(Backend& backend, const Buffers& memory, const row_choice& chosen, const head_view<const E>& q,
                 const head_view<Out>& out, const layer_options<LseBase>& options, typename Backend::stream_type stream,
                 const Pass& pass) {
    const row_subset<E, Out, LseBase> own(memory, chosen, q, out, options.lse_out);
    own.take(backend, q, stream);
    pass(own);
    own.give_back(backend, out, options.lse_out, stream);
}

// Rows that only fill a rank's share up: 0, and -inf as LSE.
template <class Backend, class Out, lse_base LseBase>
void clear_filling(Backend& backend, const prefill_counts& counts, const head_view<Out>& out,
                   const head_view<lse<LseBase>>& lse_out, typename Backend::stream_type stream) {
    const std::int64_t filling = counts.rows - counts.own_rows;
    if (filling == 0) return;
    backend.clear_rows(out.slice_rows(counts.own_rows, filling), stream);
    if (lse_out.base != nullptr) backend.clear_rows(lse_out.slice_rows(counts.own_rows, filling), stream);
}

// New keys and values of the prefill rows of all PCP ranks, [W][prefill rows], each row its keys and then its values.
template <class E>
class new_key_rows {
public:
    new_key_rows(E* base, const head_view<const E>& k, const head_view<const E>& v, std::int64_t pcp, std::int64_t rows)
        : base_(base), rows_(rows), pcp_(pcp), heads_(k.heads), key_width_(k.width), value_width_(v.width) {}

    E* part(std::int64_t rank) const { return base_ + rank * rows_ * pitch(); }
    std::size_t part_bytes() const { return static_cast<std::size_t>(rows_ * pitch()) * sizeof(E); }
    head_view<E> keys_of(std::int64_t rank) const { return view(part(rank), rows_, key_width_); }
    head_view<E> values_of(std::int64_t rank) const {
        return view(part(rank) + heads_ * key_width_, rows_, value_width_);
    }
    head_view<const E> all_keys() const { return view(base_, pcp_ * rows_, key_width_); }
    head_view<const E> all_values() const { return view(base_ + heads_ * key_width_, pcp_ * rows_, value_width_); }

private:
    std::int64_t pitch() const { return heads_ * (key_width_ + value_width_); }
    head_view<E> view(E* base, std::int64_t rows, std::int64_t width) const {
        return {base, rows, heads_, width, heads_, 0, pitch(), width};
    }

    E* base_;
    std::int64_t rows_;
    std::int64_t pcp_;
    std::int64_t heads_;
    std::int64_t key_width_;
    std::int64_t value_width_;
};

// Writes new keys and values to the cache, and those of requests whose keys travel to the staged rows too.
template <class Backend, class E, class Kv>
struct new_key_writer {
    Backend& backend;
    const kv_view<Kv>& cache;
    const kv_view<Kv>& staged;
    bool any_staged;
    bool values_in_keys;

    void write(const head_view<const E>& k, const head_view<const E>& v, const std::int64_t* slots,
               const std::int64_t* stage, typename Backend::stream_type stream) const {
        append_args<E, Kv> args;
        args.k = k;
        args.v = v;
        args.slots = index_of(slots);
        args.cache = cache;
        args.values_in_keys = values_in_keys;
        backend.append(args, stream);
        if (!any_staged) return;
        args.slots = index_of(stage);
        args.cache = staged;
        backend.append(args, stream);
    }
};

// Where rows go that are put back in the order of the batch or of its requests; -1 is nowhere.
struct row_places {
    std::int64_t travelling = 0;               // rows that every rank sends
    const std::int64_t* chosen = nullptr;      // [travelling] own rows
    const std::int64_t* of_own = nullptr;      // [rows()] place of each own row
    const std::int64_t* of_arriving = nullptr; // [W][travelling] place of each row that arrives
};

// Gathers the chosen own rows of all PCP ranks in `memory` and puts each where it belongs. All ranks of the group.
template <communicator C, class Backend, class T>
void place_arriving(C& group, Backend& backend, void* memory, const head_view<const T>& own, const head_view<T>& all,
                    const row_places& places, std::uint64_t digest, typename C::stream_type stream) {
    const std::int64_t numbers = places.travelling * own.heads * own.width; // of one rank
    T* const arriving = static_cast<T*>(memory);
    T* const part = arriving + group.rank() * numbers;
    backend.copy_rows(own, index_of(places.chosen), dense_view(part, places.travelling, own.heads, own.width), stream);
    group.all_gather(part, arriving, static_cast<std::size_t>(numbers) * sizeof(T), stream,
                     {"rows", scalar_type::bytes, digest});
    const T* const gathered = arriving;
    backend.place_rows(dense_view(gathered, group.size() * places.travelling, own.heads, own.width),
                       index_of(places.of_arriving), all, stream);
}

} // namespace ctxpar::inline v0_1::detail
