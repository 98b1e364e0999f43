// From partial states to the heads that the output holds: merge, and gather again what the merge scattered.
#pragma once

#include <cstdint>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/merge/exchange.hpp>
#include <ctxpar/merge/gather.hpp>
#include <ctxpar/merge/merge.hpp>

namespace ctxpar::inline v0_1::detail {

// The heads that the output of group rank `place` holds, among the Hg gathered ones.
inline head_range placed_heads(const mesh& ranks, output_placement placement, std::int64_t place) {
    const std::int64_t all = ranks.gathered_heads();
    if (placement == output_placement::all_heads || placement == output_placement::partial_sums) return {0, all};
    const std::int64_t parts = placement == output_placement::scattered ? ranks.sizes().dcp : ranks.distinct_tp();
    const std::int64_t heads = all / parts;
    const std::int64_t at = place / (ranks.sizes().dcp / parts);
    return {at * heads, (at + 1) * heads};
}

// N = 1: one part, which still meets the sinks and has its empty rows masked. Talks to no one.
template <class Backend, class P, lse_base Base, class Out, lse_base LseBase>
void merge_alone(Backend& backend, const partial_views<P, Base>& own, const merge_call<Out, LseBase>& call,
                 typename Backend::stream_type stream) {
    const void* const out_part = own.out.base;
    const void* const lse_part = own.lse_out.base;
    merge_parts<P, Base> parts;
    parts.out_parts = &out_part;
    parts.lse_parts = &lse_part;
    parts.count = 1;
    parts.out = own.out;
    parts.lse_in = own.lse_out;
    parts.live = call.live;
    parts.live_stride = call.live_stride;
    parts.sinks = call.sinks;
    backend.merge(parts, call.out, call.lse_out, stream);
}

// N > 1: `call` is what the output shall hold; where the merge scatters other heads than those, they are gathered again
// through memory.restored. All ranks of the groups.
template <communicator C, class Backend, class Merge, class Buffers, class Out, lse_base LseBase>
void merge_and_place(const groups<C>& ranks, Backend& backend, const Merge& merge, const Buffers& memory,
                     const merge_call<Out, LseBase>& call, typename C::stream_type stream) {
    const exchange_shape& shape = call.shape;
    const head_restore back = restore_of(merge.scatters_heads(), shape);
    if (back.size == 1) {
        merge.run(*ranks.kv, backend, call, memory.merge, stream);
        return;
    }
    // The merge leaves this rank's scattered heads in its own place of the gather that follows.
    C& group = back.group == group_role::kv ? *ranks.kv : *ranks.heads;
    const head_range left = scattered_heads(shape, call.rank);
    const std::int64_t vectors = shape.rows * left.count();
    Out* const heads = static_cast<Out*>(memory.restored);
    auto* const lses = reinterpret_cast<lse<LseBase>*>(memory.restored_lse);
    merge_call<Out, LseBase> scattered = call;
    scattered.first_head = left.first;
    scattered.out =
        dense_view(heads + group.rank() * vectors * shape.value_width, shape.rows, left.count(), shape.value_width);
    const bool gathers_lse = shape.merged_lse && !merge.knows_all_lse();
    if (gathers_lse) {
        scattered.lse_first_head = left.first;
        scattered.lse_out = dense_view(lses + group.rank() * vectors, shape.rows, left.count(), 1);
    }
    merge.run(*ranks.kv, backend, scattered, memory.merge, stream);
    restore_heads(group, backend, heads, call.out, {"merged heads", scalar_type_of<Out>, call.digest}, stream);
    if (gathers_lse)
        restore_heads(group, backend, lses, call.lse_out, {"merged LSE", scalar_type::f32, call.digest}, stream);
}

} // namespace ctxpar::inline v0_1::detail
