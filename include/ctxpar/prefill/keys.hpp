// One pass of own rows over keys that are brought to them: the new tokens of the step, and the context in chunks
// through the workspace. (O, LSE) is accumulated piece by piece, so that memory does not grow with the context; there
// is nothing to merge over ranks, every rank has seen all keys.
//
// With a stream beside that of the attention, the next chunk is brought there while one is attended, the first while
// the new tokens are: there are two pieces in the workspace then. What is computed, and in which order, is the same.
#pragma once

#include <cstdint>

#include <ctxpar/attention/prefill_pieces.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/decode/pass.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/prefill/buffers.hpp>
#include <ctxpar/prefill/gather_lane.hpp>
#include <ctxpar/prefill/step.hpp>

namespace ctxpar::inline v0_1::detail {

// The scales of rows beside those of `cache`: their own where each token has one, shared by all heads where the cache's
// are, so that rows are rounded as the cache rounds them; else the cache's.
template <class T, class Cache>
kv_view<T> with_scales_of(const Cache& cache, kv_view<T> rows, bool token_scales) {
    if (!token_scales) {
        rows.k_scale = cache.k_scale;
        rows.v_scale = cache.v_scale;
        return rows;
    }
    if (cache.k_scale.head_stride == 0) rows.k_scale.head_stride = 0;
    if (cache.v_scale.head_stride == 0) rows.v_scale.head_stride = 0;
    return rows;
}

// The pieces of context, or of new tokens, of the requests whose keys travel, one after another.
class piece_walk {
public:
    piece_walk(const prefill_batch& batch, const prefill_law& law, const gather_law& gather, bool context)
        : batch_(batch), law_(law) {
        piece_.law = gather;
        piece_.context = context;
    }

    // The next piece; one of no rows behind the last.
    const kv_piece& next() {
        piece_.from = piece_.chunk.next;
        const auto range_of = [&](std::int64_t index) { return piece_range(batch_, law_, piece_.context, index); };
        piece_.chunk = piece_.law.chunk(piece_.from, batch_.requests, range_of, [](const context_span&) {});
        return piece_;
    }

private:
    const prefill_batch& batch_;
    const prefill_law& law_;
    kv_piece piece_;
};

// Calls use(piece) for every one of them.
template <class Use>
void each_piece(const prefill_batch& batch, const prefill_law& law, const gather_law& gather, bool context,
                const Use& use) {
    piece_walk walk(batch, law, gather, context);
    for (kv_piece piece = walk.next(); piece.chunk.rows_per_rank > 0; piece = walk.next()) use(piece);
}

// Rows as they are: keys and values of the cache. The other source is the engine's up-projection, see prefill.hpp.
struct stored_keys {
    static constexpr bool projects = false;
};

template <class Project>
struct projected_keys {
    static constexpr bool projects = true;
    Project& project;
};

template <class Policy, class Backend, communicator C>
struct key_pass {
    const groups<C>& ranks;
    Backend& backend;
    const prefill_limits& limits;
    const prefill_step& step;
    const prefill_buffers<Policy, Backend>& memory;
    const gather_lane<Backend>& lane;
    score_options score;

    using buffers = key_buffers<Policy, Backend>;
    using element = typename buffers::element;
    using kv_element = typename buffers::kv_element;
    using piece_element = typename buffers::piece_element;
    using stream_type = typename Backend::stream_type;
    static constexpr lse_base base = buffers::base;

    // q is [rows][Hl][dq]: the own rows whose keys travel, and filling; out is [rows][Hl][dv]. `sinks` are those of the
    // rank's own heads. All ranks of the KV group.
    template <class Source, class Out, lse_base LseBase>
    void run(const Source& source, const head_view<const element>& q, const kv_view<const kv_element>& cache,
             const head_view<Out>& out, const head_view<lse<LseBase>>& lse_out, const float* sinks,
             stream_type stream) const {
        piece_walk context(step.batch, step.law, limits.gather, true);
        const bool ahead = lane.overlaps();
        brought next;
        int turn = 0;
        const auto bring_next = [&] {
            const piece_memory& to = memory.keys.pieces[turn++ % 2];
            next = bring<Source>(context.next(), to, q.rows, cache, lane.stream_beside(stream));
        };
        lane.free_pieces(backend, stream); // the cache is written, and the workspace done with
        if (ahead) bring_next();
        attend_new_tokens(source, q, cache, stream);
        lane.free_pieces(backend, stream);
        if (!ahead) bring_next();
        while (next.piece.chunk.rows_per_rank > 0) {
            const brought here = next;
            lane.await_piece(backend, stream);
            if (ahead) bring_next();
            if constexpr (Source::projects) {
                attend<true>(here, q, project(source, here, stream), stream);
            } else {
                attend<false>(here, q, chunk_rows(here, cache), stream);
            }
            lane.free_pieces(backend, stream);
            if (!ahead) bring_next();
        }
        finish(out, lse_out, sinks, stream);
    }

    // The staged new tokens, as rows with the scales of `cache`. Also what append writes.
    template <class Cache>
    kv_view<kv_element> staged_rows(const Cache& cache) const {
        return with_scales_of(cache, packed_kv(memory.staged, limits.row, limits.new_rows(), 1),
                              limits.row.token_scales);
    }

private:
    using piece_memory = piece_buffers<Policy>;

    // A piece, and where it lies.
    struct brought {
        kv_piece piece;
        piece_extent extent;
        const piece_memory* memory = nullptr;
    };

    // The new tokens are here: only up-projection has them copied.
    template <class Source>
    void attend_new_tokens(const Source& source, const head_view<const element>& q,
                           const kv_view<const kv_element>& cache, stream_type stream) const {
        const kv_view<const kv_element> fresh = staged_rows(cache);
        const gather_law one_rank{{1, 1}, Source::projects ? limits.gather.workspace_rows() : limits.new_rows()};
        bool first = true;
        each_piece(step.batch, step.law, one_rank, false, [&](kv_piece piece) {
            piece.all_rows = first;
            first = false;
            const brought here = prepare(piece, memory.keys.pieces[1], q.rows, stream);
            if constexpr (Source::projects) {
                dequantise(here, fresh, index_of(here.memory->arrays.slots), stream);
                attend<true>(here, q, project(source, here, stream), stream);
            } else {
                attend<false>(here, q, fresh, stream);
            }
        });
    }

    // The arrays of a piece; the first one is attended by all rows, so that all have a state.
    brought prepare(const kv_piece& piece, const piece_memory& to, std::int64_t all_rows, stream_type stream) const {
        brought made{piece, extent_of(step.batch, step.law, piece), &to};
        if (piece.all_rows) made.extent.rows = all_rows;
        backend.piece_metadata({step.batch, step.law, piece, made.extent.rows, to.arrays}, stream);
        return made;
    }

    // Brings a chunk of context here, as it will be attended. Nothing for one of no rows.
    template <class Source>
    brought bring(const kv_piece& piece, const piece_memory& to, std::int64_t all_rows,
                  const kv_view<const kv_element>& cache, stream_type stream) const {
        if (piece.chunk.rows_per_rank == 0) return {};
        lane.begin_piece(backend);
        const brought made = prepare(piece, to, all_rows, stream);
        gather(made, cache, stream);
        if constexpr (Source::projects) dequantise(made, chunk_rows(made, cache), {}, stream);
        lane.end_piece(backend);
        return made;
    }

    // This rank's rows of a chunk, then everyone's. One all_gather where N > 1.
    void gather(const brought& made, const kv_view<const kv_element>& cache, stream_type stream) const {
        const std::int64_t rows = made.piece.chunk.rows_per_rank;
        const auto size = static_cast<std::int64_t>(sizeof(kv_element));
        const auto bytes = static_cast<std::size_t>(rows * limits.row.bytes(size));
        kv_element* const own = made.memory->chunk + group_rank(ranks.kv) * rows * limits.row.bytes(size) / size;
        copy_kv_args<kv_element, kv_element> copy;
        copy.from = cache;
        copy.slots = index_of(made.memory->arrays.slots);
        copy.to = packed_kv(own, limits.row, rows, 1);
        copy.rows = rows;
        copy.values_in_keys = limits.row.values_in_keys;
        backend.copy_kv(copy, stream);
        if (made.piece.law.law.ranks > 1) {
            ranks.kv->all_gather(own, made.memory->chunk, bytes, stream,
                                 {"context", scalar_type_of<kv_element>, step.digest});
        }
    }

    static std::int64_t rows_of(const kv_piece& piece) { return piece.law.law.ranks * piece.chunk.rows_per_rank; }

    // A gathered chunk as pages, which a table puts in the order of tokens.
    kv_view<const kv_element> chunk_rows(const brought& made, const kv_view<const kv_element>& cache) const {
        const std::int64_t page = made.piece.law.law.interleave;
        return with_scales_of(cache, packed_kv(made.memory->chunk, limits.row, rows_of(made.piece) / page, page),
                              limits.row.token_scales);
    }

    // The rows of a piece for the engine's up-projection. `slots` (null: one after another) says where they are in
    // `stored`.
    void dequantise(const brought& made, const kv_view<const kv_element>& stored, const index_view& slots,
                    stream_type stream) const {
        packed_row row = limits.row;
        row.token_scales = false;
        copy_kv_args<kv_element, element> copy;
        copy.from = stored;
        copy.slots = slots;
        copy.rows = rows_of(made.piece);
        copy.to = packed_kv(made.memory->latent, row, copy.rows, 1);
        copy.values_in_keys = true;
        copy.dequantise = true;
        backend.copy_kv(copy, stream);
    }

    // A piece up-projected by the engine, in the order of its rows.
    template <class Source>
    kv_view<const element> project(const Source& source, const brought& made, stream_type stream) const {
        const std::int64_t rows = rows_of(made.piece);
        const std::int64_t page = made.piece.law.law.interleave;
        packed_row row = limits.row;
        row.token_scales = false;
        const std::int64_t pitch = packed_kv(made.memory->latent, row, rows, 1).k.token_stride;
        const std::int64_t latent = limits.value_width;
        const element* const from = made.memory->latent;
        const head_view<const element> latents{from, rows, 1, latent, 1, 0, pitch, pitch};
        const head_view<const element> ropes{from + latent, rows, 1, limits.query_width - latent, 1, 0, pitch, pitch};
        source.project(latents, ropes, dense_view(memory.keys.keys, rows, limits.heads, limits.key_query_width()),
                       dense_view(memory.keys.values, rows, limits.heads, limits.key_value_width()), stream);
        return nhd_kv(memory.keys.keys, memory.keys.values, rows / page, page, limits.heads, limits.key_query_width(),
                      limits.key_value_width());
    }

    attention_plan plan_of(const brought& made, std::int64_t kv_heads) const {
        const piece_arrays& arrays = made.memory->arrays;
        attention_plan plan;
        plan.arrays = arrays.rows;
        plan.table.blocks = index_of(arrays.pages);
        plan.table.row_offsets = index_of(arrays.page_offsets);
        plan.table.requests = step.batch.requests;
        plan.table.block_size = made.piece.law.law.interleave;
        plan.rows = made.extent.rows;
        plan.requests = step.batch.requests;
        plan.segments = 2 * made.extent.requests + 1;
        plan.heads = limits.heads;
        plan.kv_heads = kv_heads;
        plan.query_width = limits.key_query_width();
        plan.value_width = limits.key_value_width();
        plan.rows_per_request = limits.rows_per_request();
        plan.memory = memory.keys.callable;
        return plan;
    }

    // Attends the rows of a piece and adds what they saw to their sums.
    template <bool Projected, class Kv>
    void attend(const brought& made, const head_view<const element>& q, const kv_view<const Kv>& keys,
                stream_type stream) const {
        const piece_extent& extent = made.extent;
        const std::int64_t width = limits.key_value_width();
        using attention = typename Policy::attention_type;
        sized_attend_args<element, Kv, piece_element, base, Projected ? 0 : fixed_query_width<attention>(),
                          Projected ? 0 : fixed_value_width<attention>()>
            args;
        args.plan = plan_of(made, keys.kv_heads);
        args.q = q.slice_rows(extent.first_row, extent.rows);
        args.cache = keys;
        args.out = dense_view(memory.keys.part, extent.rows, limits.heads, width);
        args.lse_out = dense_view(memory.keys.part_lse, extent.rows, limits.heads, 1);
        args.score = score;
        args.scratch = memory.keys.scratch;
        if constexpr (brings_attention<Backend>) backend.prepare(args.plan, stream);
        backend.attend(args, stream);
        const auto part = dense_view(memory.keys.wide_part, extent.rows, limits.heads, width);
        if constexpr (!std::is_same_v<piece_element, float>)
            backend.copy(head_view<const piece_element>(args.out), 0, part, stream);

        const std::int64_t first_state = extent.first_row * limits.heads;
        accumulate_args<base> more;
        more.part = part;
        more.part_lse = args.lse_out;
        more.live = made.memory->arrays.rows.live;
        more.first = made.piece.all_rows;
        more.out = dense_view(memory.keys.sum + first_state * width, extent.rows, limits.heads, width);
        more.lse_out = dense_view(memory.keys.sum_lse + first_state, extent.rows, limits.heads, 1);
        backend.accumulate(more, stream);
    }

    // The sums of all rows become the output; a sink joins here, once.
    template <class Out, lse_base LseBase>
    void finish(const head_view<Out>& out, const head_view<lse<LseBase>>& lse_out, const float* sinks,
                stream_type stream) const {
        finish_args<Out, base, LseBase> last;
        last.sum = dense_view(static_cast<const float*>(memory.keys.sum), out.rows, limits.heads, out.width);
        last.sum_lse =
            dense_view(static_cast<const growing_lse<base>*>(memory.keys.sum_lse), out.rows, limits.heads, 1);
        last.sinks = sinks;
        last.out = out;
        last.lse_out = lse_out;
        backend.finish(last, stream);
    }
};

} // namespace ctxpar::inline v0_1::detail
