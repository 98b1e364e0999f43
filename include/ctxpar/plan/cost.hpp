// What a layer of attention costs, and the choices that follow: here which merge, in cp_size.hpp how many ranks. A
// model in microseconds and bytes; nothing here measures or reads a file.
//
//   collective     calls * call_us + (size-1) * b / bytes_per_us         b bytes to each other rank, of all calls
//   attention      attend_us + requests * request_us + heads * (q+v) * sum(rows) / row_numbers_per_us
//                  + max(reads, flops) + serial_share * min(reads, flops)
//                  reads  bytes_per_token * sum(keys) / read_bytes_per_us
//                  flops  2 * heads * (q+v) * sum(rows * keys) / flops_per_us
//   merge          operations * merge_us + bytes read / merge_bytes_per_us           see layer_us
//   projections    (Hg - Hg/m) * q_weight_bytes_per_head / weight_bytes_per_us       replicated Q only
//                  + placed heads * output_weight_bytes_per_head / weight_bytes_per_us
//   layer          their sum; a step is as many layers as the model has
//
// What all ranks do alike whatever is chosen (norms, own heads of Q, experts) is left out. Results depend on the
// arguments alone: ranks of one program that hold the same numbers choose the same without asking each other.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/exchange.hpp>

namespace ctxpar::inline v0_1 {

// One collective in a group of `size` ranks. That of an all_reduce or reduce_scatter includes its sum.
struct collective_cost {
    collective_op op = collective_op::all_gather;
    std::int32_t size = 2;
    double call_us = 0;      // of a call without bytes
    double bytes_per_us = 0; // that a rank sends, to all others together
};

// What a machine was measured to take. Rates are those reached, not those of a data sheet.
struct machine_costs {
    std::vector<collective_cost> collectives; // in any order, one for an op and size
    double read_bytes_per_us = 0;             // keys and values that an attention call reads
    double flops_per_us = 0;                  // of an attention call
    double attend_us = 0;                     // of an attention call without requests
    double request_us = 0;                    // of a request in it
    double row_numbers_per_us = 0;            // of queries and outputs in it; 0: they take no time
    double serial_share = 0;                  // of reads or arithmetic that the other does not hide; 0..1
    double merge_bytes_per_us = 0;            // partials that a merge reads
    double merge_us = 0;                      // of an operation of a merge without bytes
    double weight_bytes_per_us = 0;           // weights of the projections; 0: as read_bytes_per_us
};

namespace detail {

inline std::string number_text(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%g", value);
    return text.data();
}

inline void check_cost(const std::string& name, double value, bool may_be_zero) {
    if (std::isfinite(value) && (value > 0 || (may_be_zero && value == 0))) return;
    require(false, "costs", name, " is ", number_text(value), "; it must be a finite number ",
            may_be_zero ? "of at least 0" : "above 0");
}

inline bool has_cost(const machine_costs& costs, collective_op op) {
    return std::any_of(costs.collectives.begin(), costs.collectives.end(),
                       [op](const collective_cost& entry) { return entry.op == op; });
}

[[noreturn]] inline void refuse_missing_cost(const machine_costs& costs, collective_op op) {
    std::string known;
    for (const collective_cost& entry : costs.collectives)
        known += sentence(known.empty() ? "" : ", ", name_of(entry.op), " over ", entry.size, " ranks");
    raise(config_error("costs", sentence("there is no cost of an ", name_of(op), "; there are costs of ",
                                         known.empty() ? std::string("nothing") : known)));
}

// The cost of an op over `size` ranks, which has one over some size: as listed, or between the two sizes nearest.
inline collective_cost cost_over(const machine_costs& costs, collective_op op, std::int32_t size) {
    const collective_cost *below = nullptr, *above = nullptr;
    for (const collective_cost& entry : costs.collectives) {
        if (entry.op != op) continue;
        if (entry.size <= size && (below == nullptr || entry.size > below->size)) below = &entry;
        if (entry.size >= size && (above == nullptr || entry.size < above->size)) above = &entry;
    }
    if (below == nullptr || above == nullptr || below->size == above->size) return below != nullptr ? *below : *above;
    const double first = std::log2(below->size);
    const double part = (std::log2(size) - first) / (std::log2(above->size) - first);
    return {op, size, std::lerp(below->call_us, above->call_us, part),
            std::lerp(below->bytes_per_us, above->bytes_per_us, part)};
}

} // namespace detail

// Refuses numbers that no machine has, a size below 2 and an op listed twice for a size: config_error "costs", naming
// the entry and its value.
inline void check(const machine_costs& costs) {
    for (auto entry = costs.collectives.begin(); entry != costs.collectives.end(); ++entry) {
        const std::string name = sentence("the cost of ", name_of(entry->op), " over ", entry->size, " ranks");
        require(entry->size >= 2, "costs", name, " was given; a collective has at least 2 ranks");
        detail::check_cost("call_us in " + name, entry->call_us, true);
        detail::check_cost("bytes_per_us in " + name, entry->bytes_per_us, false);
        const bool again = std::any_of(costs.collectives.begin(), entry, [&](const collective_cost& earlier) {
            return earlier.op == entry->op && earlier.size == entry->size;
        });
        require(!again, "costs", name, " is listed twice");
    }
    detail::check_cost("read_bytes_per_us", costs.read_bytes_per_us, false);
    detail::check_cost("flops_per_us", costs.flops_per_us, false);
    detail::check_cost("attend_us", costs.attend_us, true);
    detail::check_cost("request_us", costs.request_us, true);
    detail::check_cost("row_numbers_per_us", costs.row_numbers_per_us, true);
    detail::check_cost("serial_share", costs.serial_share, true);
    require(costs.serial_share <= 1, "costs", "serial_share is ", detail::number_text(costs.serial_share),
            "; it must be a share from 0 to 1");
    detail::check_cost("merge_bytes_per_us", costs.merge_bytes_per_us, false);
    detail::check_cost("merge_us", costs.merge_us, true);
    detail::check_cost("weight_bytes_per_us", costs.weight_bytes_per_us, true);
}

// `calls` calls one after another over `size` ranks, in which a rank sends `bytes` to each other one in all:
//
//   calls * call_us + (size-1) * bytes / bytes_per_us           0 where there is one rank
//
// Both numbers are those listed for the size; else linear in log2(size) between the nearest two sizes, and beyond the
// ends the nearest. What is not listed at all is what merge/reduce.hpp makes of it over bytes alone: a reduce_scatter
// an all_to_all, an all_reduce a reduce_scatter and an all_gather of half the bytes each. config_error "costs" where
// that is not listed either.
inline double call_us(const machine_costs& costs, collective_op op, std::int32_t size, double bytes,
                      std::int32_t calls = 1) {
    if (size <= 1) return 0;
    if (!detail::has_cost(costs, op)) {
        if (op == collective_op::reduce_scatter) return call_us(costs, collective_op::all_to_all, size, bytes, calls);
        if (op != collective_op::all_reduce) detail::refuse_missing_cost(costs, op);
        return call_us(costs, collective_op::reduce_scatter, size, bytes / 2, calls) +
               call_us(costs, collective_op::all_gather, size, bytes / 2, calls);
    }
    const collective_cost cost = detail::cost_over(costs, op, size);
    return calls * cost.call_us + (size - 1) * bytes / cost.bytes_per_us;
}

// The same for each call of a schedule.
inline double schedule_us(const machine_costs& costs, const collective_schedule& schedule) {
    double sum = 0;
    for (int i = 0; i < schedule.count; ++i) {
        const collective_call& call = schedule.calls[static_cast<std::size_t>(i)];
        sum += call_us(costs, call.op, call.size, static_cast<double>(call.bytes), call.calls);
    }
    return sum;
}

// Query rows of one request, and the keys that each of them sees.
struct request_load {
    std::int64_t rows = 1;
    std::int64_t keys = 0;
};

// What one attention call of the slowest rank works on.
struct attention_load {
    std::int64_t heads = 1; // query heads it evaluates, Hg
    std::int64_t query_width = 1;
    std::int64_t value_width = 1;
    std::int64_t bytes_per_token = 0;         // keys and values of one token and layer on a rank that owns it
    std::int64_t q_weight_bytes_per_head = 0; // weights of the Q projection, for replicated Q
    std::span<const request_load> requests;   // with their keys on that rank
    // Weights of the output projection, where placements are compared: own_heads reads those of Hg/m heads, scattered
    // of Hg/N, all_heads and partial_sums of Hg. 0: all ranks do alike whatever is chosen.
    std::int64_t output_weight_bytes_per_head = 0;
};

// The attention call of a layer, see the head of this file: a request's keys are read once for all its rows.
inline double attention_us(const machine_costs& costs, const attention_load& load) {
    double keys = 0, rows = 0, pairs = 0;
    for (const request_load& request : load.requests) {
        keys += static_cast<double>(request.keys);
        rows += static_cast<double>(request.rows);
        pairs += static_cast<double>(request.rows) * static_cast<double>(request.keys);
    }
    const double widths = static_cast<double>(load.query_width) + static_cast<double>(load.value_width);
    const double numbers = static_cast<double>(load.heads) * widths; // of a row
    const double flops = 2 * numbers * pairs / costs.flops_per_us;
    const double reads = static_cast<double>(load.bytes_per_token) * keys / costs.read_bytes_per_us;
    const double of_rows = costs.row_numbers_per_us > 0 ? numbers * rows / costs.row_numbers_per_us : 0;
    return costs.attend_us + static_cast<double>(load.requests.size()) * costs.request_us + of_rows +
           std::max(reads, flops) + costs.serial_share * std::min(reads, flops);
}

// The microseconds of one layer, by part.
struct decode_cost {
    double attention_us = 0;
    double exchange_us = 0;   // collectives
    double merge_us = 0;      // arithmetic and copies behind them
    double projection_us = 0; // weights of Q that the rank reads for heads of other ranks, and of the output

    constexpr double total_us() const { return attention_us + exchange_us + merge_us + projection_us; }
};

// Whether a merge can serve a shape: partial sums are left where they are wanted and only there; and where the merge
// scatters, or scattered heads are wanted, N must divide them.
template <merge_policy Merge>
constexpr bool merge_serves(const Merge& merge, const exchange_shape& shape) {
    if (leaves_partial_sums(merge) != (shape.placement == output_placement::partial_sums)) return false;
    return shape.scatters() || (!merge.scatters_heads() && shape.placement != output_placement::scattered);
}

namespace detail {

// Heads that the output holds.
constexpr std::int64_t placed_heads(const exchange_shape& shape) {
    if (shape.placement == output_placement::own_heads) return shape.heads_per_rank();
    return shape.placement == output_placement::scattered ? shape.scattered_heads() : shape.gathered_heads;
}

// The arithmetic behind the collectives of a layer; see layer_us.
template <merge_policy Merge>
double merge_arithmetic_us(const machine_costs& costs, const Merge& merge, const exchange_shape& shape) {
    const std::int64_t heads = placed_heads(shape);
    const bool adds = !has_cost(costs, collective_op::reduce_scatter); // no entry that includes the sum
    double operations = 0, bytes = 0;
    if (leaves_partial_sums(merge) && shape.ranks > 1) {
        const bool copies = shape.partial_bytes != shape.output_bytes;
        operations += copies ? 1 : 0;
        bytes += (copies ? 2 : 1) * static_cast<double>(shape.rows * heads * shape.value_width * shape.partial_bytes);
    }
    const collective_schedule list = layer_schedule(merge, shape);
    for (int i = 0; i < list.count; ++i) {
        const collective_call& call = list.calls[static_cast<std::size_t>(i)];
        const auto sent = static_cast<double>(call.bytes);
        if (std::string_view(call.what) == "queries") continue; // the attention reads them where they lie
        if (call.op == collective_op::all_gather) {
            operations += 1;
            bytes += call.size * sent;
        } else if (call.op == collective_op::all_to_all) {
            operations += shape.dense_partials ? 2 : 1;
            bytes += (shape.dense_partials ? 2 : 1) * call.size * sent;
        } else if (call.op == collective_op::reduce_scatter) {
            operations += 1;
            bytes += call.size * sent + (adds ? call.size * sent : sent);
        } else {
            const bool adds_too = adds && !has_cost(costs, collective_op::all_reduce);
            operations += adds_too ? 2 : 1;
            bytes += (adds_too ? 2 : 1) * call.size * sent / 2 +
                     static_cast<double>(shape.owned_rows() * heads * shape.value_width * shape.partial_bytes);
        }
    }
    return operations * costs.merge_us + bytes / costs.merge_bytes_per_us;
}

} // namespace detail

// One layer of a merge policy, shipped or the user's own; load.heads and its widths are those of the shape. Its
// arithmetic follows from layer_schedule, b being what a call sends to each of N ranks:
//
//   all_gather       1 operation, reads N*b              LSE: the scaling; heads: the copy to their places
//   all_to_all       1, reads N*b                        the merge; as much again for the pack of dense_partials
//   reduce_scatter   1, reads N*b, and N*b were scaled   the sum; where its cost includes it, a copy of b
//   all_reduce       2, read N*b/2 and the placed heads, and N*b/2 were scaled
//                                                        the sum, where no cost includes it, and the copy
//   partial sums     0, the partial of all heads is read   it is scaled; 1 more that reads as much where the output has
//                                                        elements of other bytes. The sum is the caller's
//
// config_error "placement" or "scatter_heads" where merge_serves says no, "costs" as call_us.
template <merge_policy Merge>
decode_cost layer_us(const machine_costs& costs, const Merge& merge, const exchange_shape& shape,
                     const attention_load& load) {
    detail::check_placement(merge, shape.placement);
    require(merge_serves(merge, shape), "scatter_heads", "the ", shape.gathered_heads,
            " gathered heads do not scatter evenly over ", shape.ranks, " ranks, as merge ", merge.name(),
            " with this placement needs; merge with merge::ag_ar and place own_heads or all_heads");
    const double weights = costs.weight_bytes_per_us > 0 ? costs.weight_bytes_per_us : costs.read_bytes_per_us;
    const auto others = static_cast<double>(shape.replicated_q ? shape.gathered_heads - shape.heads_per_rank() : 0);
    const auto placed = static_cast<double>(detail::placed_heads(shape));
    return {attention_us(costs, load), schedule_us(costs, layer_schedule(merge, shape)),
            detail::merge_arithmetic_us(costs, merge, shape),
            (others * static_cast<double>(load.q_weight_bytes_per_head) +
             placed * static_cast<double>(load.output_weight_bytes_per_head)) /
                weights};
}

// A merge and what a layer costs with it; all zero where it cannot serve the shape.
struct merge_option {
    merge_kind kind = merge_kind::a2a;
    bool legal = false;
    decode_cost cost;
};

struct merge_choice {
    std::array<merge_option, 4> options; // a2a, ag_rs, ag_ar: fewest collectives first; deferred
    merge_kind kind = merge_kind::a2a;   // for merge::dynamic{kind}
    decode_cost cost;                    // with it
};

// The legal merge of the least total; of equals the first in that order. There always is one, ag_ar, or deferred where
// the placement is partial sums, unless scattered heads are wanted of a number that N does not divide: config_error
// "scatter_heads". config_error "costs".
inline merge_choice best_merge(const machine_costs& costs, const exchange_shape& shape, const attention_load& load) {
    check(costs);
    merge_choice choice;
    const merge_option* best = nullptr;
    constexpr std::array kinds = {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::deferred};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        merge_option& option = choice.options[i];
        option = {kinds[i], merge_serves(merge::dynamic{kinds[i]}, shape), {}};
        if (!option.legal) continue;
        option.cost = layer_us(costs, merge::dynamic{kinds[i]}, shape, load);
        if (best == nullptr || option.cost.total_us() < best->cost.total_us()) best = &option;
    }
    if (best == nullptr) layer_us(costs, merge::ag_ar{}, shape, load); // says why
    choice.kind = best->kind;
    choice.cost = best->cost;
    return choice;
}

} // namespace ctxpar::inline v0_1
