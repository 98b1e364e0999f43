// Everything that lies in the workspace of a decode step, and where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/decode/checks.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/merge/exchange.hpp>

namespace ctxpar::inline v0_1::detail {

// Whether a backend attends with a callable that is prepared once a plan (with_attention.hpp).
template <class Backend>
inline constexpr bool brings_attention = requires(Backend b, const attention_plan& plan,
                                                  typename Backend::stream_type stream) {
    b.prepare(plan, stream);
};

// The scratch memory of a merge policy.
template <class Merge, class P, lse_base Base>
using merge_buffers_of = decltype(std::declval<const Merge&>().template carve<P, Base>(std::declval<carver&>(),
                                                                                       std::declval<exchange_shape>()));

// What one pass over the shards works in.
template <class Policy, class Backend>
struct pass_buffers {
    static constexpr lse_base base = Backend::attend_lse_base;

    typename Policy::element* queries = nullptr; // [m][R][Hl][dq]
    merge_buffers_of<typename Policy::merge_type, typename Policy::partial_element, base> merge;
    void* restored = nullptr;      // [ranks of the restoring group][R][Hg/N][dv] of the output's type
    float* restored_lse = nullptr; // [ranks of the restoring group][R][Hg/N]
    lse<base>* own_lse = nullptr;  // [R][Hg], for N = 1
    typename Policy::element* mapped_queries = nullptr; // [R][Hg][dq], where queries are mapped
    float* unmapped = nullptr;                          // [R][Hg][dv], where partial outputs are mapped
    attend_scratch scratch;
};

// How a backend would split the keys of requests; `most`, where it is positive, is the caller's word.
template <class Backend>
split_rule split_rule_of(Backend& backend, const split_work& work, std::int64_t most) {
    split_rule rule;
    if constexpr (Backend::splits_keys && requires { backend.splits(work); }) rule = backend.splits(work);
    if (most > 0) rule.most = most;
    return rule;
}

// Memory of an attention callable's plan, null where there is none.
template <class Backend>
void* carve_callable(carver& memory, const Backend& backend, std::int64_t rows, std::int64_t requests,
                     std::int64_t heads) {
    if constexpr (brings_attention<Backend>) {
        return memory.take<std::byte>(static_cast<std::int64_t>(backend.plan_bytes(rows, requests, heads)));
    } else {
        return nullptr;
    }
}

// Carves the buffers of a pass of the largest shape.
template <class Policy, class Backend>
pass_buffers<Policy, Backend> carve_pass(carver& memory, const Policy& policy, const Backend& backend,
                                         const exchange_shape& shape, std::int64_t max_splits) {
    pass_buffers<Policy, Backend> all;
    const bool gathers = !shape.replicated_q && query_gather(shape).size > 1;
    const std::int64_t states = shape.rows * shape.gathered_heads;
    const std::int64_t value_width = policy.attention.value_width(); // of the attention: the shape's may be mapped
    all.queries = memory.take<typename Policy::element>(gathers ? states * shape.query_width : 0);
    all.merge =
        policy.merging.template carve<typename Policy::partial_element, Backend::attend_lse_base>(memory, shape);

    const head_restore back = restore_of(policy.merging.scatters_heads(), shape);
    const std::int64_t vectors = back.size > 1 ? back.size * shape.rows * (shape.gathered_heads / shape.ranks) : 0;
    all.restored = memory.take<std::byte>(vectors * shape.value_width * shape.output_bytes);
    all.restored_lse = memory.take<float>(shape.merged_lse ? vectors : 0);
    all.own_lse = memory.take<lse<Backend::attend_lse_base>>(shape.ranks == 1 ? states : 0);

    const std::int64_t splits = Backend::splits_keys && max_splits > 1 ? max_splits : 0;
    all.scratch.max_splits = max_splits;
    all.scratch.split_out = memory.take<float>(splits * states * value_width);
    all.scratch.split_lse = memory.take<natural_lse>(splits * states);
    all.scratch.thread_floats = backend.attend_thread_floats(policy.attention.query_width(), value_width);
    all.scratch.threads = memory.take<float>(all.scratch.thread_floats * backend.threads());
    return all;
}

template <class Policy, class Backend>
struct decode_buffers {
    step_arrays arrays;
    pass_buffers<Policy, Backend> pass;
    void* callable = nullptr; // of an attention callable
    std::size_t bytes = 0;    // of all
};

// Carves the workspace for the largest step of a decoder, so that buffers do not move from step to step; with a null
// base it only counts.
template <class Policy, class Backend>
decode_buffers<Policy, Backend> carve_decode(const Policy& policy, const Backend& backend, const decode_shape& limits,
                                             const mesh& ranks, void* base) {
    const exchange_shape shape = exchange_of(policy, limits, ranks, limits.max_rows, Backend::dense_partials);
    carver memory(base);
    decode_buffers<Policy, Backend> all;
    all.arrays = carve_step(memory, limits, shape.ranks);
    all.pass = carve_pass(memory, policy, backend, shape, limits.max_splits);
    const std::int64_t states = shape.rows * shape.gathered_heads;
    const bool maps_queries = limits.unmapped_query_width > 0, maps_values = limits.mapped_width > 0;
    all.pass.mapped_queries =
        memory.take<typename Policy::element>(maps_queries ? states * policy.attention.query_width() : 0);
    all.pass.unmapped = memory.take<float>(maps_values ? states * policy.attention.value_width() : 0);
    all.callable = carve_callable(memory, backend, limits.max_rows, limits.max_requests, shape.gathered_heads);
    all.bytes = memory.bytes();
    return all;
}

} // namespace ctxpar::inline v0_1::detail
