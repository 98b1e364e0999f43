// The merge of a decoder, chosen by what the machine costs rather than by name:
//
//   chosen.merging = merge::dynamic{merge_for(costs, chosen, shape, rows)};    rows of the usual step
//   decoder<policy, backend, communicator> decoder{{&kv}, shape, chosen};
//
// A decoder has one merge for all of its steps. Where steps differ much, a captured graph of few rows and one of many,
// an engine makes a decoder for each.
#pragma once

#include <cstdint>

#include <ctxpar/core/error.hpp>
#include <ctxpar/decode/checks.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/layout/mesh.hpp>
#include <ctxpar/plan/cost.hpp>

namespace ctxpar::inline v0_1 {

// The merge of the least exchange and arithmetic for a step of `rows` query rows, among those that serve the shape's
// heads and placement: merge::deferred for partial sums, and nowhere else. Keys do not enter, as all merges attend
// alike, nor does the merge that the policy has. dense_partials: Backend::dense_partials.
//
// Local; the choice follows from the arguments alone, so ranks that hold the same numbers choose the same. Costs that
// each rank measured for itself differ: broadcast those of one. Ranks that chose differently are told at the first
// plan. config_error "query_rows" for rows outside 0..max_rows, "costs", and those of a decoder for its shape.
template <class Policy>
merge_kind merge_for(const machine_costs& costs, const Policy& policy, const decode_shape& shape, std::int64_t rows,
                     bool dense_partials = false) {
    detail::check_decode_shape(shape);
    const mesh ranks(shape.sizes, {Policy::attention_type::kind, shape.q_heads, shape.kv_heads}, shape.rules);
    detail::check_widths(policy, shape, ranks);
    require(rows >= 0 && rows <= shape.max_rows, "query_rows", "a merge was asked for for steps of ", rows,
            " query rows; this decoder takes 0 to ", shape.max_rows);
    const exchange_shape exchange = detail::exchange_of(policy, shape, ranks, rows, dense_partials);
    const attention_load no_keys{exchange.gathered_heads, exchange.query_width, exchange.value_width, 0, 0, {}};
    return best_merge(costs, exchange, no_keys).kind;
}

} // namespace ctxpar::inline v0_1
