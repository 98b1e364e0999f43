// The collectives of one attention over shards and the bytes they send, for any merge. With R rows, N ranks, m of them
// with different tp coordinates, Hg gathered heads, q and v widths and e bytes an element, each rank sends
//
//   gather of Q        (m-1) * R * (Hg/m) * q * e           none where Q is replicated
//   gather of LSE      (N-1) * R * Hg * 4                   AG forms, and deferred, which sends nothing else
//   outputs            (N-1) * R * (Hg/N) * v * e           AG+RS; AG+AR twice that
//                      (N-1) * R * (Hg/N) * (v*e + 4)       A2A, the LSE beside each output
//   gather of heads    (N/m-1) * R * (Hg/N) * v * e         after a merge that scatters, for own_heads where m < N
//                      (N-1) * R * (Hg/N) * v * e           the same for all_heads
//
// and nothing for N = 1. In a prefill whose R rows are spread over s ranks (R/s own rows a rank):
//
//   gather of Q        (N-1) * (R/s) * (Hg/m) * q * e
//   outputs            as above, N messages of (R/s) * (Hg/m) vectors where N = m * s; no gather of heads
#pragma once

#include <cstdint>
#include <string_view>

#include <ctxpar/merge/merge.hpp>

namespace ctxpar::inline v0_1 {

// Restoring what a merge scattered: the group in which heads are gathered again, and its size; size 1 = nothing to do.
struct head_restore {
    group_role group = group_role::heads;
    std::int64_t size = 1;
};

inline head_restore restore_of(bool merge_scatters, const exchange_shape& shape) {
    if (!merge_scatters || shape.ranks == 1 || shape.placement == output_placement::scattered) return {};
    if (shape.placement == output_placement::all_heads) return {group_role::kv, shape.ranks};
    return {group_role::heads, shape.ranks / (shape.distinct_tp * shape.row_owners)};
}

// The gather of Q: own rows and heads of the m ranks with different tp coordinates, or, where rows are spread too, of
// all ranks of the group.
constexpr collective_call query_gather(const exchange_shape& shape) {
    const bool spread = shape.row_owners > 1;
    const std::int64_t numbers = shape.owned_rows() * shape.heads_per_rank() * shape.query_width;
    return {collective_op::all_gather,
            spread ? group_role::kv : group_role::query,
            shape.query_type,
            static_cast<std::int32_t>(shape.distinct_tp * shape.row_owners),
            static_cast<std::uint64_t>(numbers * shape.query_bytes),
            "queries"};
}

// All collectives of a layer, in the order in which they are made.
template <merge_policy Merge>
collective_schedule layer_schedule(const Merge& merge, const exchange_shape& shape) {
    collective_schedule list;
    if (!shape.replicated_q) list.add(query_gather(shape));
    if (shape.ranks > 1) merge.schedule(shape, list);
    const head_restore restore = restore_of(merge.scatters_heads(), shape);
    if (restore.size > 1) {
        const auto size = static_cast<std::int32_t>(restore.size);
        const std::int64_t vectors = shape.owned_rows() * shape.scattered_heads();
        list.add({collective_op::all_gather, restore.group, shape.output_type, size,
                  static_cast<std::uint64_t>(vectors * shape.value_width * shape.output_bytes), "merged heads"});
        if (shape.merged_lse && !merge.knows_all_lse()) {
            list.add({collective_op::all_gather, restore.group, scalar_type::f32, size,
                      static_cast<std::uint64_t>(vectors) * sizeof(float), "merged LSE"});
        }
    }
    return list;
}

// The bytes that each rank sends in one layer, by purpose.
struct exchange_bytes {
    std::uint64_t gather_q = 0;
    std::uint64_t gather_lse = 0;
    std::uint64_t outputs = 0;
    std::uint64_t regather = 0;
    std::uint64_t total = 0;
    std::int64_t collectives = 0;
};

template <merge_policy Merge>
exchange_bytes exchange(const Merge& merge, const exchange_shape& shape) {
    const collective_schedule list = layer_schedule(merge, shape);
    exchange_bytes sum;
    for (int i = 0; i < list.count; ++i) {
        const collective_call& call = list.calls[static_cast<std::size_t>(i)];
        const std::string_view what = call.what;
        std::uint64_t& part = what == "queries"                                ? sum.gather_q
                              : what == "LSE"                                  ? sum.gather_lse
                              : what == "merged heads" || what == "merged LSE" ? sum.regather
                                                                               : sum.outputs;
        part += call.bytes_sent();
        sum.total += call.bytes_sent();
    }
    sum.collectives = list.count;
    return sum;
}

} // namespace ctxpar::inline v0_1
