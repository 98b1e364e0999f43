// AG+RS: all-gather the LSEs, scale, reduce-scatter the heads. Three collectives with the Q gather.
#pragma once

#include <ctxpar/merge/ag_forms.hpp>

namespace ctxpar::inline v0_1::merge {

struct ag_rs {
    static constexpr const char* name() { return "ag_rs"; }
    static constexpr bool scatters_heads() { return true; }
    static constexpr bool knows_all_lse() { return true; }

    static constexpr void schedule(const exchange_shape& shape, collective_schedule& list) {
        schedule_lse_gather(shape, list);
        list.add({collective_op::reduce_scatter, group_role::kv, shape.partial_type,
                  static_cast<std::int32_t>(shape.ranks),
                  static_cast<std::uint64_t>(chunk_elements(shape) * shape.partial_bytes), "scaled outputs"});
    }

    template <class P, lse_base Base>
    static ag_buffers<P, Base> carve(carver& memory, const exchange_shape& shape) {
        return carve_ag<P, Base>(memory, shape, false);
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
        const P* none = nullptr;
        const auto chunk = dense_view(none, shape.owned_rows(), shape.scattered_heads(), shape.value_width);
        reduce_scatter(kv, backend, reduction_of(shape, buffers, call.digest), chunk, call.out, stream);
    }
};

static_assert(merge_policy<ag_rs>);

} // namespace ctxpar::inline v0_1::merge
