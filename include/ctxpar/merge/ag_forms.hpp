// What the forms that gather LSEs share: every rank learns the LSEs of all ranks, scales its own partial by
// exp(LSE_own - LSE), and then the partials simply add.
#pragma once

#include <cstdint>

#include <ctxpar/merge/merge.hpp>
#include <ctxpar/merge/reduce.hpp>

namespace ctxpar::inline v0_1::merge {

// Scratch memory of AG+RS, AG+AR and the deferred form, which needs only the first and the last.
template <class P, lse_base Base>
struct ag_buffers {
    P* own = nullptr;          // [R][Hg][dv] where the attention needs dense outputs; else the same as scaled
    P* scaled = nullptr;       // N chunks, see chunk_elements
    P* received = nullptr;     // N chunks
    P* reduced = nullptr;      // N chunks: the sums, gathered again (AG+AR)
    lse<Base>* lses = nullptr; // [N][R][Hg]
};

// Elements of a partial that one rank adds: those of its message where states scatter, an Nth of all otherwise.
constexpr std::int64_t chunk_elements(const exchange_shape& shape) {
    const std::int64_t all = shape.rows * shape.gathered_heads * shape.value_width;
    return (all + shape.ranks - 1) / shape.ranks;
}

// The partial cut into chunks, as one view of [R][Hg][dv].
template <class P>
head_view<P> chunked_view(const exchange_shape& shape, P* base) {
    if (!shape.scatters()) return dense_view(base, shape.rows, shape.gathered_heads, shape.value_width);
    return message_view(shape, base, shape.value_width);
}

template <class P, lse_base Base>
ag_buffers<P, Base> carve_ag(carver& memory, const exchange_shape& shape, bool reduces_all) {
    const std::int64_t chunks = shape.ranks * chunk_elements(shape);
    ag_buffers<P, Base> buffers;
    buffers.scaled = memory.take<P>(chunks);
    buffers.own = shape.dense_partials ? memory.take<P>(chunks) : buffers.scaled;
    buffers.received = memory.take<P>(shape.ranks > 1 ? chunks : 0);
    buffers.reduced = memory.take<P>(reduces_all && shape.ranks > 1 ? chunks : 0);
    buffers.lses = memory.take<lse<Base>>(shape.ranks * shape.rows * shape.gathered_heads);
    return buffers;
}

template <class P, lse_base Base>
partial_views<P, Base> ag_partials(const exchange_shape& shape, std::int64_t rank, const ag_buffers<P, Base>& buffers) {
    const std::int64_t stride = shape.rows * shape.gathered_heads;
    lse<Base>* lses = buffers.lses == nullptr ? nullptr : buffers.lses + rank * stride;
    return {shape.dense_partials ? dense_view(buffers.own, shape.rows, shape.gathered_heads, shape.value_width)
                                 : chunked_view(shape, buffers.own),
            dense_view(lses, shape.rows, shape.gathered_heads, 1)};
}

constexpr void schedule_lse_gather(const exchange_shape& shape, collective_schedule& list) {
    list.add({collective_op::all_gather, group_role::kv, scalar_type::f32, static_cast<std::int32_t>(shape.ranks),
              static_cast<std::uint64_t>(shape.rows * shape.gathered_heads) * sizeof(float), "LSE"});
}

// Gathers the LSEs, this rank's at own.lse_out among them all [N][R][Hg] at `lses`, and scales its partial by its
// weight: afterwards the partials of all ranks simply add.
template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
void gather_and_scale(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const partial_views<P, Base>& own,
                      lse<Base>* lses, const head_view<P>& scaled, typename C::stream_type stream) {
    const exchange_shape& shape = call.shape;
    const auto bytes = static_cast<std::size_t>(shape.rows * shape.gathered_heads) * sizeof(float);
    const part_pointers all = gather_parts(kv, lses, bytes, stream, {"LSE", scalar_type::f32, call.digest});
    merge_parts<P, Base> parts;
    parts.lse_parts = all.at.data();
    parts.count = shape.ranks;
    parts.lse_in = own.lse_out;
    parts.live = call.live;
    parts.live_stride = call.live_stride;
    parts.sinks = call.sinks;
    backend.scale(parts, call.rank, head_view<const P>(own.out), scaled,
                  {shape.first_owned_row(call.rank), call.lse_first_head}, call.lse_out, stream);
    end_parts(kv, stream);
}

// The same into the chunks that a reduction sends.
template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
void gather_and_scale(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const ag_buffers<P, Base>& buffers,
                      typename C::stream_type stream) {
    gather_and_scale(kv, backend, call, ag_partials(call.shape, call.rank, buffers), buffers.lses,
                     chunked_view(call.shape, buffers.scaled), stream);
}

template <class P, lse_base Base>
reduction<P> reduction_of(const exchange_shape& shape, const ag_buffers<P, Base>& buffers, std::uint64_t digest) {
    return {buffers.scaled, buffers.received, chunk_elements(shape), {"scaled outputs", scalar_type_of<P>, digest}};
}

} // namespace ctxpar::inline v0_1::merge
