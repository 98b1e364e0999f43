// One pass of query rows over the shards of a group: gather the queries, attend to this rank's keys, merge the partial
// states exactly, put heads where they belong. Decode is one such pass a layer; the rows of a prefill whose queries are
// gathered are another.
#pragma once

#include <cstdint>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/decode/buffers.hpp>
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
    template <class Out, lse_base LseBase>
    void run(const head_view<const element>& q, const kv_view<const kv_element>& cache, const head_view<Out>& out,
             const layer_options<LseBase>& options, stream_type stream) const {
        C* const asked = shape.row_owners > 1 ? ranks.kv : ranks.query;
        const head_view<const element> all_q =
            shape.replicated_q ? q
                               : gather_queries(asked, backend, q, memory.queries, digest, stream, shape.row_owners);
        if (shape.ranks == 1 && attends_in_place(options)) {
            attend(all_q, cache, out, lse_place(options), options, stream);
            return;
        }
        const auto own = policy.merging.partials(shape, group_rank(ranks.kv), memory.merge);
        attend(all_q, cache, own.out, own.lse_out, options, stream);
        const merge_call<Out, LseBase> call = call_of(options, out);
        if (shape.ranks == 1) {
            merge_alone(backend, own, call, stream);
        } else {
            merge_and_place(ranks, backend, policy.merging, memory, call, stream);
        }
    }

private:
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
