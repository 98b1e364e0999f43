// Deferred: all-gather the LSEs, scale, and leave the sum to the caller. Every rank has its share exp(LSE_r - LSE) *
// O_r of all Hg heads; the shares of the group's ranks add up to the merged output, and since an output projection is
// linear, the all-reduce that the engine makes behind its row-parallel projection adds them. One collective with
// replicated queries, two with the gather of Q; any number of heads.
//
// Only for output_placement::partial_sums: every rank of the group multiplies its share with the columns of all Hg
// heads (mesh::output_projection). Where the projection is split inside the group, shares are lost; a bias, or anything
// else that is not linear, comes behind the sum. Sinks joined on the LSE, once: the caller adds no term for them. Rows
// and shards without keys have shares of exactly 0. The merged LSE is known on every rank, of all heads.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/merge/ag_forms.hpp>

namespace ctxpar::inline v0_1::merge {

struct deferred {
    static constexpr const char* name() { return "deferred"; }
    static constexpr bool scatters_heads() { return false; }
    static constexpr bool knows_all_lse() { return true; }
    static constexpr bool leaves_partial_sums() { return true; }

    static constexpr void schedule(const exchange_shape& shape, collective_schedule& list) {
        schedule_lse_gather(shape, list);
    }

    template <class P, lse_base Base>
    static ag_buffers<P, Base> carve(carver& memory, const exchange_shape& shape) {
        const std::int64_t states = shape.rows * shape.gathered_heads;
        ag_buffers<P, Base> buffers;
        buffers.own = buffers.scaled = memory.take<P>(states * shape.value_width);
        buffers.lses = memory.take<lse<Base>>(shape.ranks * states);
        return buffers;
    }

    template <class P, lse_base Base>
    static partial_views<P, Base> partials(const exchange_shape& shape, std::int64_t rank,
                                           const ag_buffers<P, Base>& buffers) {
        const std::int64_t states = shape.rows * shape.gathered_heads;
        lse<Base>* const lses = buffers.lses == nullptr ? nullptr : buffers.lses + rank * states;
        return {dense_view(buffers.own, shape.rows, shape.gathered_heads, shape.value_width),
                dense_view(lses, shape.rows, shape.gathered_heads, 1)};
    }

    // call.out is [R][Hg][dv] on every rank; a share is rounded once, to P, and once more where Out is narrower.
    template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    static void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const ag_buffers<P, Base>& buffers,
                    typename C::stream_type stream) {
        const partial_views<P, Base> own = partials(call.shape, call.rank, buffers);
        if constexpr (std::is_same_v<P, Out>) {
            gather_and_scale(kv, backend, call, own, buffers.lses, call.out, stream);
        } else {
            gather_and_scale(kv, backend, call, own, buffers.lses, own.out, stream);
            backend.copy(head_view<const P>(own.out), call.first_head, call.out, stream);
        }
    }
};

static_assert(merge_policy<deferred>);

} // namespace ctxpar::inline v0_1::merge
