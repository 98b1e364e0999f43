// What a decoder refuses, and what its ranks must have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/decode/agreement.hpp>
#include <ctxpar/decode/maps.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/decode/step.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/mesh.hpp>
#include <ctxpar/merge/exchange.hpp>
#include <ctxpar/merge/policy.hpp>

namespace ctxpar::inline v0_1::detail {

// What bytes and collectives depend on, for a step of `rows` rows.
template <class Policy>
exchange_shape exchange_of(const Policy& policy, const decode_shape& shape, const mesh& ranks, std::int64_t rows,
                           bool dense_partials) {
    using element = typename Policy::element;
    using partial_element = typename Policy::partial_element;
    const bool fp32_out = shape.output == scalar_type::f32;
    exchange_shape exchange;
    exchange.ranks = ranks.sizes().dcp;
    exchange.distinct_tp = ranks.distinct_tp();
    exchange.rows = rows;
    exchange.gathered_heads = ranks.gathered_heads();
    exchange.query_width = query_width_of(policy, shape);
    exchange.value_width = value_width_of(policy, shape);
    exchange.query_bytes = sizeof(element);
    exchange.partial_bytes = sizeof(partial_element);
    exchange.output_bytes = fp32_out ? sizeof(float) : sizeof(element);
    exchange.query_type = scalar_type_of<element>;
    exchange.partial_type = scalar_type_of<partial_element>;
    exchange.output_type = fp32_out ? scalar_type::f32 : scalar_type_of<element>;
    exchange.replicated_q = shape.replicated_q;
    exchange.merged_lse = shape.merged_lse;
    exchange.dense_partials = dense_partials;
    exchange.placement = shape.placement;
    return exchange;
}

// Whether the product of sizes (each >= 1) stays below 2^56, so that bytes of a whole group fit 63 bits.
inline bool product_fits(std::initializer_list<std::int64_t> sizes) {
    std::int64_t left = std::int64_t{1} << 56;
    for (const std::int64_t size : sizes) left /= size;
    return left >= 1;
}

template <class Policy>
void check_widths(const Policy& policy, const decode_shape& shape, const mesh& ranks) {
    const std::int64_t query_width = policy.attention.query_width();
    const std::int64_t value_width = policy.attention.value_width();
    require(query_width >= 1 && value_width >= 1, "width", "the attention policy has queries of ", query_width,
            " and values of ", value_width, " elements a head; both must be at least 1");
    require(!Policy::attention_type::values_in_keys || value_width <= query_width, "width",
            "the values of the attention policy are ", value_width, " elements of key rows of ", query_width);
    require(ranks.knows_q_heads(), "q_heads", "a decode shape needs the model's number of query heads; it has 0");
    const std::int64_t splits = shape.max_splits > 0 ? shape.max_splits : 1; // the backend's own choice is bounded
    const std::int64_t widest = std::max({query_width, shape.unmapped_query_width, shape.mapped_width});
    require(product_fits({shape.max_rows, ranks.gathered_heads(), widest, splits}), "size", "a decode shape of ",
            shape.max_rows, " rows of ", ranks.gathered_heads(), " heads of ", widest, " elements and ", splits,
            " splits does not fit; their product must be below 2^56");
    require(ranks.sizes().dcp <= max_merge_parts, "dcp", "the topology shares the KV over ", ranks.sizes().dcp,
            " ranks; a merge takes at most ", max_merge_parts);
    require(shape.output == scalar_type::bytes || shape.output == scalar_type::f32 ||
                shape.output == scalar_type_of<typename Policy::element>,
            "output", "the output was asked for as ", name_of(shape.output), "; it can be f32 or ",
            name_of(scalar_type_of<typename Policy::element>));
}

template <class Policy>
void check_policy(const Policy& policy, const decode_shape& shape, const mesh& ranks) {
    check_widths(policy, shape, ranks);
    check_placement(policy.merging, shape.placement);
    const bool scatters = policy.merging.scatters_heads() || shape.placement == output_placement::scattered;
    require(!scatters || ranks.scatters_heads() || ranks.sizes().dcp == 1, "scatter_heads", "the ",
            ranks.gathered_heads(), " gathered heads do not scatter evenly over dcp ", ranks.sizes().dcp, ", as merge ",
            policy.merging.name(),
            " with this placement needs; merge with merge::ag_ar and place "
            "own_heads or all_heads");
}

inline std::uint64_t digest_of(const collective_schedule& schedule) {
    digest sum;
    for (int i = 0; i < schedule.count; ++i) {
        const collective_call& call = schedule.calls[static_cast<std::size_t>(i)];
        sum.add(static_cast<std::uint64_t>(call.op)).add(static_cast<std::uint64_t>(call.group));
        sum.add(static_cast<std::uint64_t>(call.type)).add_signed(call.size).add(call.bytes);
        sum.add_signed(call.calls);
    }
    return sum.value();
}

// Everything that must be the same on every rank of a group.
template <class Policy>
agreed_facts decoder_facts(const Policy& policy, const decode_shape& shape, const mesh& ranks) {
    using attention = typename Policy::attention_type;
    const topology& sizes = ranks.sizes();
    agreed_facts facts;
    facts.add_word(policy.merging.name());
    facts.add_word(attention::kind == attention_kind::gqa ? "grouped-query attention" : "multi-head latent attention");
    facts.add_word(queries_of(scalar_type_of<typename attention::element>));
    facts.add_word(cache_of(scalar_type_of<typename attention::kv_element>));
    facts.add_word(Policy::partials == partial::fp32 ? "partial::fp32" : "partial::output");
    facts.add_signed("the query width", policy.attention.query_width());
    facts.add_signed("the value width", policy.attention.value_width());
    facts.add_signed("the interleave size", policy.interleaving.size());
    facts.add_signed("the tp size", sizes.tp).add_signed("the pcp size", sizes.pcp);
    facts.add_signed("the dcp size", sizes.dcp);
    facts.add_signed("q_heads", shape.q_heads).add_signed("kv_heads", shape.kv_heads);
    facts.add_signed("longest", shape.longest);
    facts.add("the placement of outputs", static_cast<std::uint64_t>(shape.placement));
    facts.add("the type of outputs", static_cast<std::uint64_t>(shape.output));
    facts.add("replicated_q", shape.replicated_q ? 1U : 0U).add("merged_lse", shape.merged_lse ? 1U : 0U);
    facts.add_signed("unmapped_query_width", shape.unmapped_query_width);
    facts.add_signed("mapped_width", shape.mapped_width);
    return facts;
}

inline void check_step(const decode_step& step, std::uint64_t decoder) {
    require(step.scratch != nullptr, "step", "this step was not planned; make it with decoder.plan()");
    require(step.decoder == decoder, "step",
            "this step was planned by a decoder of another policy or shape; a step serves the decoder that planned it");
}

template <class T>
void check_vectors(const char* name, const head_view<T>& view, std::int64_t rows, std::int64_t heads,
                   std::int64_t width) {
    require(view.rows == rows && view.heads == heads && view.width == width, "shape", name, " has ", view.rows,
            " rows of ", view.heads, " heads of ", view.width, " elements; it must have ", rows, " rows of ", heads,
            " heads of ", width);
    require(view.base != nullptr || rows == 0, "null", name, " is a null view");
    require(view.heads_per_block >= 1, "shape", name, " has blocks of ", view.heads_per_block,
            " heads; a block has at least 1");
}

template <class E, class Attention>
void check_new_rows(const head_view<const E>& k, const head_view<const E>& v, const Attention& attention,
                    std::int64_t rows, std::int64_t kv_heads) {
    const std::int64_t query = attention.query_width();
    const std::int64_t value = attention.value_width();
    if constexpr (Attention::values_in_keys) {
        check_vectors("the latent part of the new rows", k, rows, kv_heads, value);
        check_vectors("the rope part of the new rows", v, rows, kv_heads, query - value);
    } else {
        check_vectors("k", k, rows, kv_heads, query);
        check_vectors("v", v, rows, kv_heads, value);
    }
}

template <class Kv, class Attention>
void check_cache(const kv_view<Kv>& cache, const Attention& attention, std::int64_t kv_heads, std::int64_t slots) {
    check_kv_view(cache);
    require(cache.kv_heads == kv_heads, "kv_heads", "the KV view has ", cache.kv_heads, " heads; this rank holds ",
            kv_heads);
    require(cache.key_width == attention.query_width() && cache.value_width == attention.value_width(), "width",
            "the KV view has keys of ", cache.key_width, " and values of ", cache.value_width,
            " elements; the attention policy has ", attention.query_width(), " and ", attention.value_width());
    require(cache.slots() >= slots, "pool", "the KV view has ", cache.slots(), " slots; the blocks of this step need ",
            slots);
}

inline void check_slots(const index_view& slots, std::int64_t rows, std::int64_t room) {
    require(slots.data != nullptr || rows == 0, "null", "the slots of ", rows, " new rows are a null view");
    for (std::int64_t row = 0; row < rows; ++row)
        require(slots.at(row) >= -1 && slots.at(row) < room, "slot", "row ", row, " goes to slot ", slots.at(row),
                "; the cache has slots 0 to ", room - 1, ", and -1 skips a row");
}

template <class Out, lse_base LseBase>
void check_output(const head_view<Out>& out, const head_view<lse<LseBase>>& lse_out, std::int64_t rows,
                  std::int64_t heads, std::int64_t width, const decode_shape& shape, scalar_type element) {
    const scalar_type wanted = shape.output == scalar_type::bytes ? element : shape.output;
    require(scalar_type_of<Out> == wanted, "output", "out holds ", name_of(scalar_type_of<Out>),
            " and the decode shape says ", name_of(wanted));
    check_vectors("out", out, rows, heads, width);
    require(shape.merged_lse || lse_out.base == nullptr, "merged_lse",
            "a view for the merged LSE was given; the decode shape must say merged_lse, as its gather is planned");
    if (shape.merged_lse) check_vectors("the merged LSE", lse_out, rows, heads, 1);
}

} // namespace ctxpar::inline v0_1::detail
