// AG+AR: all-gather the LSEs, scale, all-reduce: every rank has all heads. Serves head counts that N does not divide.
// The all-reduce is an exchange of chunks, a sum in rank order, and a gather of the sums, so all ranks get the same
// bits.
#pragma once

#include <ctxpar/merge/ag_forms.hpp>

namespace ctxpar::inline v0_1::merge {

struct ag_ar {
    static constexpr const char* name() { return "ag_ar"; }
    static constexpr bool scatters_heads() { return false; }
    static constexpr bool knows_all_lse() { return true; }

    static constexpr void schedule(const exchange_shape& shape, collective_schedule& list) {
        schedule_lse_gather(shape, list);
        list.add({collective_op::all_reduce, group_role::kv, shape.partial_type, static_cast<std::int32_t>(shape.ranks),
                  2 * static_cast<std::uint64_t>(chunk_elements(shape) * shape.partial_bytes), "scaled outputs"});
    }

    template <class P, lse_base Base>
    static ag_buffers<P, Base> carve(carver& memory, const exchange_shape& shape) {
        return carve_ag<P, Base>(memory, shape, true);
    }

    template <class P, lse_base Base>
    static partial_views<P, Base> partials(const exchange_shape& shape, std::int64_t rank,
                                           const ag_buffers<P, Base>& buffers) {
        return ag_partials(shape, rank, buffers);
    }

    template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    static void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const ag_buffers<P, Base>& buffers,
                    typename C::stream_type stream) {
        const exchange_shape& shape = call.shape;
        gather_and_scale(kv, backend, call, buffers, stream);
        all_reduce(kv, backend, reduction_of(shape, buffers, call.digest), buffers.reduced,
                   shape.rows * shape.gathered_heads * shape.value_width, stream);
        const head_view<const P> sums = chunked_view(shape, static_cast<const P*>(buffers.reduced));
        backend.copy(sums.slice_rows(shape.first_owned_row(call.rank), shape.owned_rows()), call.first_head, call.out,
                     stream);
    }
};

static_assert(merge_policy<ag_ar>);

} // namespace ctxpar::inline v0_1::merge
