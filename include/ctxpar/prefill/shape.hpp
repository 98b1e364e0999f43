// What a prefiller is made for: the topology, the largest step, and which way rows meet the keys of other ranks.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/layout/gather.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/mesh.hpp>
#include <ctxpar/layout/zigzag.hpp>

namespace ctxpar::inline v0_1 {

// One for all layers of one kind; every rank makes the same, apart from `rank`.
struct prefill_shape {
    topology sizes{};          // tp, pcp, dcp, ...
    std::int64_t q_heads = 1;  // of the whole model
    std::int64_t kv_heads = 1; // of the whole model; 1 for MLA
    topology_rules rules = topology_rules::general;
    std::int64_t rank = -1;            // place in the mesh; -1: follows from the groups
    std::int64_t max_requests = 1;     // of a step
    std::int64_t max_rows = 1;         // of one rank in a step: its share of all prefills, and all decode rows
    std::int64_t max_decode_rows = -1; // of them, rows of decode requests; -1: one a request
    std::int64_t longest = 0;          // no request is longer, in tokens, new ones included
    std::int64_t pool_blocks = -1;     // blocks of this rank's pool; -1: not known
    zigzag_split split = zigzag_split::balanced;
    prefill_path prefill_rows = prefill_path::automatic;
    prefill_path decode_rows = prefill_path::automatic;
    std::int64_t context_rows = 65536;         // rows of the workspace through which context is gathered, all ranks
    scale_kind kv_scales = scale_kind::tensor; // token: every cached row has its own scale, which travels with it
    std::int64_t projected_query_width = 0;    // MLA: prefill rows attend up-projected keys of this width; 0: absorbed
    std::int64_t projected_value_width = 0;
    bool merged_lse = false;                 // attend also returns the LSE
    scalar_type output = scalar_type::bytes; // f32 or the policy's element; bytes: the latter
    std::int64_t max_splits = -1;            // of the keys of one decode row; -1: as the backend finds best
    std::int64_t hidden_bytes = 0;           // of one row that restore() puts in order; 0: it is not used over ranks

    constexpr std::int64_t decode_rows_limit() const {
        return max_decode_rows >= 0 ? max_decode_rows : std::min(max_requests, max_rows);
    }
    constexpr bool projects() const { return projected_query_width > 0; }
};

namespace detail {

// The decoder of the rows that are decoded in a prefiller's steps.
inline decode_shape decode_part(const prefill_shape& shape) {
    decode_shape part;
    part.sizes = shape.sizes;
    part.q_heads = shape.q_heads;
    part.kv_heads = shape.kv_heads;
    part.rules = shape.rules;
    part.rank = shape.rank;
    part.max_requests = shape.max_requests;
    part.max_rows = std::max<std::int64_t>(1, shape.decode_rows_limit());
    part.longest = shape.longest;
    part.pool_blocks = shape.pool_blocks;
    part.merged_lse = shape.merged_lse;
    part.output = shape.output;
    part.max_splits = shape.max_splits;
    return part;
}

inline void check_prefill_at_least(const char* name, std::int64_t value, std::int64_t least) {
    require(value >= least, "size", "a prefill shape has ", name, " ", value, "; it must be at least ", least);
}

inline void check_prefill_shape(const prefill_shape& shape, bool latent) {
    check_prefill_at_least("max_requests", shape.max_requests, 1);
    check_prefill_at_least("max_rows", shape.max_rows, 1);
    check_prefill_at_least("max_decode_rows", shape.max_decode_rows, -1);
    check_prefill_at_least("longest", shape.longest, 1);
    check_prefill_at_least("pool_blocks", shape.pool_blocks, -1);
    check_prefill_at_least("context_rows", shape.context_rows, 0);
    require(shape.max_splits >= 1 || shape.max_splits == -1, "size", "a prefill shape has max_splits ",
            shape.max_splits, "; it must be at least 1, or -1 for what the backend finds best");
    check_prefill_at_least("rank", shape.rank, -1);
    check_prefill_at_least("hidden_bytes", shape.hidden_bytes, 0);
    require(shape.decode_rows_limit() <= shape.max_rows, "size", "a prefill shape has max_decode_rows ",
            shape.max_decode_rows, "; it must be at most max_rows, ", shape.max_rows);
    require(shape.projected_query_width >= 0 && shape.projected_value_width >= 0 &&
                shape.projects() == (shape.projected_value_width > 0),
            "projection", "a prefill shape has up-projected keys of ", shape.projected_query_width, " and values of ",
            shape.projected_value_width, " elements; both must be at least 1, or both 0 for absorbed rows");
    require(!shape.projects() || latent, "projection",
            "up-projected rows are for latent attention (mla); for gqa the projected widths must be 0");
    require(
        !shape.projects() || shape.prefill_rows != prefill_path::gather_q, "projection",
        "up-projected prefill rows meet keys that were brought to them; prefill_rows must be gather_kv or automatic");
    require(!shape.projects() || shape.decode_rows != prefill_path::gather_kv, "projection",
            "decode rows stay absorbed beside up-projected prefill rows; decode_rows must be gather_q or automatic");
}

// Whether any row of a step may have the keys of other ranks brought to it.
inline bool keys_may_travel(const prefill_shape& shape) {
    if (shape.projects()) return true;
    if (shape.sizes.dcp == 1) return false;
    return shape.prefill_rows != prefill_path::gather_q || shape.decode_rows == prefill_path::gather_kv;
}

// Whether queries of prefill rows may travel, or be attended to the rank's own cache where it is whole.
inline bool queries_may_travel(const prefill_shape& shape) {
    return !shape.projects() && (shape.sizes.dcp == 1 || shape.prefill_rows != prefill_path::gather_kv);
}

// Whether rows of a step may be decoded by a decoder: not where the keys of decode requests travel too.
inline bool decodes(const prefill_shape& shape) {
    return shape.decode_rows_limit() > 0 && (shape.sizes.dcp == 1 || shape.decode_rows != prefill_path::gather_kv);
}

// The gather of context, with no more workspace than the longest batch can fill. config_error "workspace".
inline gather_law gather_of(const prefill_shape& shape, const ownership& law) {
    if (!keys_may_travel(shape)) return {law, 1};
    gather_law gather = make_gather(law, shape.context_rows);
    const std::int64_t units = law.local_bound(shape.longest) / law.interleave; // of the longest request
    if (units > 0 && gather.units / units >= shape.max_requests) gather.units = units * shape.max_requests;
    return gather;
}

} // namespace detail

} // namespace ctxpar::inline v0_1
