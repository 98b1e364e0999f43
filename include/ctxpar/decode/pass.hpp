// One pass of query rows over the shards of a group: gather the queries, attend to this rank's keys, merge the partial
// states exactly, put heads where they belong; with maps of heads between these steps where the caller has some. Decode
// is one such pass a layer; the rows of a prefill whose queries are gathered are another.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/decode/buffers.hpp>
#include <ctxpar/decode/maps.hpp>
#include <ctxpar/decode/place.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/merge/gather.hpp>

namespace ctxpar::inline v0_1 {

// Options of one layer.
template <lse_base LseBase = lse_base::natural>
struct layer_options {
    float softmax_scale = 0.0F;        // of q.k; 0: the policy's default
    float soft_cap = 0.0F;             // cap * tanh(score / cap) where > 0
    const float* sinks = nullptr;      // [Hg] natural logits of the group's heads, in gathered order; or null
    head_view<lse<LseBase>> lse_out{}; // [R][heads of out], where the shape asks for the merged LSE
};

namespace detail {

template <class Attention, lse_base LseBase>
score_options score_of(const Attention& attention, const layer_options<LseBase>& options) {
    return {options.softmax_scale == 0.0F ? attention.default_scale() : options.softmax_scale, options.soft_cap};
}

// What does not change from layer to layer.
template <class Policy, class Backend, communicator C>
struct shard_pass {
    const groups<C>& ranks;
    Backend& backend;
    const Policy& policy;
    const exchange_shape& shape;
    const attention_plan& plan;
    const pass_buffers<Policy, Backend>& memory;
    std::int64_t first_head = 0; // of the Hg heads, the first that the output holds
    std::uint64_t digest = 0;    // of the plan

    static constexpr lse_base base = Backend::attend_lse_base;
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    using stream_type = typename Backend::stream_type;

    // q is [owned rows][Hl][dq] (all Hg heads where queries are replicated), out and options.lse_out [owned
    // rows][heads]. All ranks of the groups.
    template <class Out, lse_base LseBase, class Queries = no_map, class Values = no_map>
    void run(const head_view<const element>& q, const kv_view<const kv_element>& cache, const head_view<Out>& out,
             const layer_options<LseBase>& options, stream_type stream,
             const head_maps<Queries, Values>& maps = {}) const {
        C* const asked = shape.row_owners > 1 ? ranks.kv : ranks.query;
        const head_view<const element> gathered =
            shape.replicated_q ? q
                               : gather_queries(asked, backend, q, memory.queries, digest, stream, shape.row_owners);
        const head_view<const element> all_q = mapped_queries(gathered, maps.queries, stream);
        if (!is_map<Values> && shape.ranks == 1 && attends_in_place(options)) {
            attend(all_q, cache, out, lse_place(options), options, stream);
            return;
        }
        const auto own = policy.merging.partials(shape, group_rank(ranks.kv), memory.merge);
        attend_and_map(all_q, cache, own, options, maps.values, stream);
        const merge_call<Out, LseBase> call = call_of(options, out);
        if (shape.ranks == 1) {
            merge_alone(backend, own, call, stream);
        } else {
            merge_and_place(ranks, backend, policy.merging, memory, call, stream);
        }
    }

private:
    template <class Map>
    head_view<const element> mapped_queries(const head_view<const element>& q, const Map& map,
                                            stream_type stream) const {
        if constexpr (is_map<Map>) {
            static_assert(
                std::is_invocable_v<const Map&, head_view<const element>, head_view<element>, stream_type>,
                "ctxpar::head_maps: queries must take (head_view<const E>, head_view<E>, stream), E being the "
                "policy's element");
            const auto to =
                dense_view(memory.mapped_queries, shape.rows, shape.gathered_heads, policy.attention.query_width());
            map(q, to, stream);
            return to;
        } else {
            return q;
        }
    }

    // The partial states of this rank, outputs mapped before they are rounded to what travels.
    template <class P, lse_base Base, lse_base LseBase, class Map>
    void attend_and_map(const head_view<const element>& q, const kv_view<const kv_element>& cache,
                        const partial_views<P, Base>& own, const layer_options<LseBase>& options, const Map& map,
                        stream_type stream) const {
        if constexpr (is_map<Map>) {
            using input = typename map_input<Map>::type;
            static_assert(std::is_same_v<input, float> || std::is_same_v<input, element>,
                          "ctxpar::head_maps: the input of values must be float or the policy's element");
            static_assert(std::is_invocable_v<const Map&, head_view<const input>, head_view<P>, stream_type>,
                          "ctxpar::head_maps: values must take (head_view<const I>, head_view<P>, stream), I being its "
                          "input and P the type of partials");
            const auto unmapped = dense_view(reinterpret_cast<input*>(memory.unmapped), shape.rows,
                                             shape.gathered_heads, policy.attention.value_width());
            attend(q, cache, unmapped, own.lse_out, options, stream);
            map(head_view<const input>(unmapped), own.out, stream);
        } else {
            attend(q, cache, own.out, own.lse_out, options, stream);
        }
    }

    template <class O, lse_base Base, lse_base LseBase>
    void attend(const head_view<const element>& q, const kv_view<const kv_element>& cache, const head_view<O>& out,
                const head_view<lse<Base>>& lse_out, const layer_options<LseBase>& options, stream_type stream) const {
        using attention = typename Policy::attention_type;
        sized_attend_args<element, kv_element, O, Base, fixed_query_width<attention>(), fixed_value_width<attention>()>
            args;
        args.plan = plan;
        args.q = q;
        args.cache = cache;
        args.out = out;
        args.lse_out = lse_out;
        args.score = score_of(policy.attention, options);
        args.scratch = memory.scratch;
        backend.attend(args, stream);
    }

    // N = 1 without a sink: the attention's own output is the result, nothing is buffered.
    template <lse_base LseBase>
    static bool attends_in_place(const layer_options<LseBase>& options) {
        return Backend::writes_empty_rows && !Backend::dense_partials && options.sinks == nullptr &&
               (LseBase == base || options.lse_out.base == nullptr);
    }
    template <lse_base LseBase>
    head_view<lse<base>> lse_place(const layer_options<LseBase>& options) const {
        if constexpr (LseBase == base) {
            if (options.lse_out.base != nullptr) return options.lse_out;
        }
        return dense_view(memory.own_lse, shape.rows, shape.gathered_heads, 1);
    }

    // What the output shall hold.
    template <class Out, lse_base LseBase>
    merge_call<Out, LseBase> call_of(const layer_options<LseBase>& options, const head_view<Out>& out) const {
        merge_call<Out, LseBase> call;
        call.shape = shape;
        call.rank = group_rank(ranks.kv);
        call.live = plan.arrays.live;
        call.live_stride = shape.rows;
        call.sinks = options.sinks;
        call.first_head = call.lse_first_head = first_head;
        call.out = out;
        call.lse_out = options.lse_out;
        call.digest = digest;
        return call;
    }
};

} // namespace detail

} // namespace ctxpar::inline v0_1
