// What a prefiller refuses, its digest, and the collectives of its steps.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/decode/checks.hpp>
#include <ctxpar/merge/exchange.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/prefill/buffers.hpp>
#include <ctxpar/prefill/keys.hpp>
#include <ctxpar/prefill/step.hpp>

namespace ctxpar::inline v0_1::detail {

// The exchange of `rows` own rows of every rank of the KV group, whose queries travel.
template <class Policy>
exchange_shape spread_exchange(const Policy& policy, const decode_shape& decode, const mesh& ranks, std::int64_t rows,
                               bool dense_partials) {
    exchange_shape shape = exchange_of(policy, decode, ranks, rows, dense_partials);
    shape.row_owners = shape.ranks / shape.distinct_tp;
    shape.rows = rows * shape.row_owners;
    shape.placement = output_placement::own_heads;
    return shape;
}

// The row of a cache as it travels.
template <class Attention>
packed_row packed_row_of(const Attention& attention, const mesh& ranks, scale_kind scales) {
    return {ranks.kv_heads_per_rank(), attention.query_width(), attention.value_width(), Attention::values_in_keys,
            scales == scale_kind::token};
}

template <class Attention>
mesh mesh_of(const prefill_shape& shape) {
    return mesh(shape.sizes, {Attention::kind, shape.q_heads, shape.kv_heads}, shape.rules);
}

// The sizes of a prefiller's memory. config_error for a shape or topology that is not legal, before anything is sized.
template <class Policy>
prefill_limits limits_of(const Policy& policy, const prefill_shape& shape, bool dense_partials) {
    check_prefill_shape(shape, Policy::attention_type::values_in_keys);
    const decode_shape decode = decode_part(shape);
    const mesh ranks = mesh_of<typename Policy::attention_type>(shape);
    check_widths(policy, decode, ranks);
    require(!leaves_partial_sums(policy.merging), "placement", "merge ", policy.merging.name(),
            " leaves partial sums of all gathered rows and heads, and a prefiller places own heads of own rows; merge "
            "with merge::a2a, merge::ag_rs or merge::ag_ar");
    const std::int64_t query_width = std::max(policy.attention.query_width(), shape.projected_query_width);
    const std::int64_t all_rows = queries_may_travel(shape) ? ranks.sizes().dcp : 1;
    require(product_fits({shape.max_rows, ranks.sizes().pcp, all_rows, ranks.gathered_heads(), query_width}), "size",
            "a prefill shape of ", shape.max_rows, " rows over pcp ", ranks.sizes().pcp, " with ",
            ranks.gathered_heads(), " heads of ", query_width,
            " elements does not fit; the product of rows, ranks, "
            "heads and width must be below 2^56");
    prefill_limits limits;
    limits.shape = shape;
    limits.spread = spread_exchange(policy, decode, ranks, shape.max_rows, dense_partials);
    limits.gather = gather_of(shape, make_ownership(ranks.sizes().dcp, policy.interleaving.size()));
    limits.row = packed_row_of(policy.attention, ranks, shape.kv_scales);
    limits.pcp = ranks.sizes().pcp;
    limits.heads = ranks.heads_per_rank();
    limits.query_width = policy.attention.query_width();
    limits.value_width = policy.attention.value_width();
    limits.output_bytes = limits.spread.output_bytes;
    return limits;
}

// Why rows of one kind go the way they do.
inline const char* path_reason(prefill_path asked, std::int64_t ranks, bool projects, bool decodes) {
    if (projects) return "up-projected rows meet keys that are brought to them";
    if (ranks == 1) return "no other rank holds keys";
    if (asked != prefill_path::automatic) return "as the shape says";
    return decodes ? "decode rows are few and their context is long" : "fewer bytes, for each request";
}

// One way or the other where nothing is left to decide.
inline prefill_path resolved_path(prefill_path asked, std::int64_t ranks, bool projects) {
    if (projects) return prefill_path::gather_kv;
    return ranks == 1 ? prefill_path::gather_q : asked;
}

// The groups of a prefiller: those of its decoder, and the PCP group, whose order must fit the KV group's.
template <communicator C>
groups<C> resolve_prefill_groups(const groups<C>& given, const mesh& ranks, const prefill_shape& shape) {
    const groups<C> found = resolve_groups(given, ranks, decode_part(shape), false);
    const std::int64_t owners = ranks.sizes().dcp / ranks.distinct_tp();
    const std::int64_t place = group_rank(found.rows);
    check_group("rows", group_size(found.rows), place, ranks.sizes().pcp, place);
    if (shape.rank >= 0)
        check_group("rows", group_size(found.rows), place, ranks.sizes().pcp, ranks.groups_of(shape.rank).rows.rank);
    require(place % owners == group_rank(found.kv) % owners, "group", "this rank is rank ", place,
            " of the rows (PCP) group and rank ", group_rank(found.kv), " of the kv group; with ", owners,
            " PCP ranks in a kv group both must be the same modulo ", owners);
    return found;
}

template <class Policy, communicator C>
prefill_law law_of(const Policy& policy, const prefill_limits& limits, const mesh& ranks, const groups<C>& found) {
    const prefill_shape& shape = limits.shape;
    const std::int64_t n = ranks.sizes().dcp;
    const exchange_shape one_row = spread_exchange(policy, decode_part(shape), ranks, 1, false);
    const exchange_shape one_decode = exchange_of(policy, decode_part(shape), ranks, 1, false);
    const auto size = static_cast<std::int64_t>(sizeof(typename Policy::attention_type::kv_element));
    prefill_law law;
    law.split = make_zigzag(ranks.sizes().pcp, shape.split);
    law.gather = limits.gather;
    law.part = {n, group_rank(found.kv), policy.interleaving.size()};
    law.pcp_rank = group_rank(found.rows);
    law.row_owners = one_row.row_owners;
    law.prefill_rows = resolved_path(shape.prefill_rows, n, shape.projects());
    law.decode_rows = resolved_path(shape.decode_rows, n, false);
    law.query_bytes = static_cast<std::int64_t>(exchange(policy.merging, one_row).total);
    law.decode_bytes = static_cast<std::int64_t>(exchange(policy.merging, one_decode).total);
    law.context_bytes = (n - 1) * limits.row.bytes(size);
    return law;
}

// Everything that must be the same on every rank.
template <class Policy>
agreed_facts prefiller_facts(const Policy& policy, const prefill_shape& shape, const mesh& ranks) {
    agreed_facts facts = decoder_facts(policy, decode_part(shape), ranks);
    facts.add_word("prefill");
    facts.add("the split of rows", static_cast<std::uint64_t>(shape.split));
    facts.add("the scales of the cache", static_cast<std::uint64_t>(shape.kv_scales));
    facts.add("the path of prefill rows", static_cast<std::uint64_t>(shape.prefill_rows));
    facts.add("the path of decode rows", static_cast<std::uint64_t>(shape.decode_rows));
    facts.add_signed("context_rows", shape.context_rows).add_signed("max_requests", shape.max_requests);
    facts.add_signed("hidden_bytes", shape.hidden_bytes);
    facts.add_signed("projected_query_width", shape.projected_query_width);
    facts.add_signed("projected_value_width", shape.projected_value_width);
    return facts;
}

// Bytes that a rank adds to the gather of new keys, of which it is one call.
inline collective_call new_keys_call(const prefill_limits& limits, std::int64_t rows, scalar_type type,
                                     std::int64_t element_bytes) {
    return {collective_op::all_gather,
            group_role::rows,
            type,
            static_cast<std::int32_t>(rows > 0 ? limits.pcp : 1),
            static_cast<std::uint64_t>(rows * limits.row.elements() * element_bytes),
            "new keys and values"};
}

// All gathers of context of a layer.
inline collective_call context_call(const prefill_limits& limits, const prefill_batch& batch, const prefill_law& law,
                                    scalar_type type, std::int64_t element_bytes) {
    collective_call call{collective_op::all_gather, group_role::kv, type, 1, 0, "context", 0};
    each_piece(batch, law, law.gather, true, [&](const kv_piece& piece) {
        call.size = static_cast<std::int32_t>(law.part.ranks);
        call.bytes += static_cast<std::uint64_t>(piece.chunk.rows_per_rank * limits.row.bytes(element_bytes));
        ++call.calls;
    });
    return call;
}

// The collectives of append and attend of one layer.
template <class Policy>
collective_schedule prefill_schedule(const Policy& policy, const prefill_limits& limits, const mesh& ranks,
                                     const prefill_step& step, bool dense_partials) {
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    collective_schedule list;
    list.add(new_keys_call(limits, step.counts.prefill_rows, scalar_type_of<element>, sizeof(element)));
    if (step.counts.spread_rows > 0) list.add_all(layer_schedule(policy.merging, step.spread));
    if (step.counts.decode_rows > 0) {
        list.add_all(layer_schedule(policy.merging, exchange_of(policy, decode_part(limits.shape), ranks,
                                                                step.counts.decode_rows, dense_partials)));
    }
    list.add(context_call(limits, step.batch, step.law, scalar_type_of<kv_element>, sizeof(kv_element)));
    return list;
}

// The attention of the spread rows.
inline attention_plan spread_plan(const prefill_step& step, const prefill_limits& limits, void* callable) {
    attention_plan plan;
    plan.arrays = step.arrays.spread;
    plan.table = step.batch.table;
    plan.rows = step.spread.rows;
    plan.requests = step.batch.requests;
    plan.segments = spread_segments(step.law, step.counts.spread_requests);
    plan.heads = step.spread.gathered_heads;
    plan.kv_heads = limits.row.kv_heads;
    plan.query_width = limits.query_width;
    plan.value_width = limits.value_width;
    plan.rows_per_request = limits.rows_per_request();
    plan.memory = callable;
    return plan;
}

// The requests of a step that are decoded: the others have no rows and no tokens in this batch.
inline decode_batch decode_part_of(const prefill_step& step) {
    decode_batch batch;
    batch.requests = step.batch.requests;
    batch.lengths = index_of(step.arrays.decode_lengths);
    batch.query_rows = index_of(step.arrays.decode_counts);
    batch.table = step.batch.table;
    batch.mask = step.batch.mask;
    batch.tree_bits = step.batch.tree_bits;
    return batch;
}

inline void check_prefill_step(const prefill_step& step, std::uint64_t prefiller) {
    require(step.scratch != nullptr, "step", "this step was not planned; make it with prefiller.plan()");
    require(step.prefiller == prefiller, "step",
            "this step was planned by a prefiller of another policy or shape; a step serves the prefiller that planned "
            "it");
}

template <class T>
void check_hidden(const head_view<T>& own, const prefill_shape& shape) {
    const std::int64_t bytes = own.heads * own.width * static_cast<std::int64_t>(sizeof(T));
    require(bytes <= shape.hidden_bytes, "hidden", "a restored row has ", bytes,
            " bytes; the prefill shape has hidden_bytes ", shape.hidden_bytes, ", the most that may travel");
}

// Where cached rows travel, their scales must be where the shape says.
template <class Kv>
void check_travelling_scales(const kv_view<Kv>& cache, const prefill_limits& limits) {
    if (!limits.keys_travel()) return;
    const bool shared = limits.row.values_in_keys;
    for (const kv_scale* scale : {&cache.k_scale, shared ? &cache.k_scale : &cache.v_scale}) {
        const bool varies = scale->data != nullptr && (scale->page_stride != 0 || scale->token_stride != 0);
        const bool token = scale->kind == scale_kind::token && scale->data != nullptr;
        require(!varies || token, "kv_scale",
                "the cache has scales that differ from page to page and are not of kind token; rows whose keys travel "
                "need scales per tensor, per head or per token");
        require(token == limits.row.token_scales, "kv_scale", "the cache has ", token ? "a scale" : "no scale",
                " for each token and the prefill shape says ", limits.row.token_scales ? "token" : "tensor or head",
                "; set kv_scales of the shape to the kind of the cache");
    }
}

} // namespace ctxpar::inline v0_1::detail
