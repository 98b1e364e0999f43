// What a decoder is made for: the topology, the largest step, and the groups of ranks it talks to.
#pragma once

#include <cstdint>
#include <string>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace ctxpar::inline v0_1 {

// One for all layers of one kind; every rank makes the same, apart from `rank`.
struct decode_shape {
    topology sizes{};          // tp, pcp, dcp, ...
    std::int64_t q_heads = 1;  // of the whole model
    std::int64_t kv_heads = 1; // of the whole model; 1 for MLA
    topology_rules rules = topology_rules::general;
    std::int64_t rank = -1;                                   // place in the mesh; -1: follows from the groups
    std::int64_t max_requests = 1;                            // of a step
    std::int64_t max_rows = 1;                                // query rows of a step, all requests together
    std::int64_t longest = 0;                                 // no request is longer, in tokens
    std::int64_t pool_blocks = -1;                            // blocks of this rank's pool; -1: not known
    output_placement placement = output_placement::own_heads; // which heads `out` holds
    bool replicated_q = false;                                // every rank projects all Hg heads: no gather
    bool merged_lse = false;                                  // decode also returns the merged LSE
    scalar_type output = scalar_type::bytes;                  // f32 or the policy's element; bytes: the latter
    std::int64_t max_splits = -1; // ways in which one request's keys are split at most; -1: as the backend finds best
    std::int64_t unmapped_query_width = 0; // of q, which decode maps to the policy's width behind the gather; 0: no map
    std::int64_t mapped_width = 0; // of out, to which decode maps partial outputs before the exchange; 0: no map
};

// The communicators of one rank. Null is a group of one. Their members and order are those of mesh::groups_of().
//   kv      the N ranks that share the KV: LSE and outputs
//   query   the m ranks of it with different tp coordinates whose Q is gathered; may stay null where m = N (then it is
//           kv) and with replicated Q
//   heads   the N/m ranks of it with the same tp coordinate, among which scattered heads are gathered again; may stay
//           null where m = 1 (then it is kv), or where nothing is gathered again
//   rows    the PCP group, for prefill
template <communicator C>
struct groups {
    C* kv = nullptr;
    C* query = nullptr;
    C* heads = nullptr;
    C* rows = nullptr;
};

namespace detail {

inline void check_group(const char* name, std::int64_t size, std::int64_t rank, std::int64_t wanted_size,
                        std::int64_t wanted_rank) {
    require(size == wanted_size, "group", "the ", name, " group has ", size, " ranks; this topology needs ",
            wanted_size, wanted_size > 1 && size == 1 ? " (none was given)" : "");
    require(rank == wanted_rank, "group", "this rank is rank ", rank, " of the ", name,
            " group; by the order of the mesh it must be rank ", wanted_rank);
}

// Fills in the groups that may be left out, and checks sizes and order against the mesh.
template <communicator C>
groups<C> resolve_groups(groups<C> given, const mesh& ranks, const decode_shape& shape, bool gathers_again) {
    const std::int64_t n = ranks.sizes().dcp;
    const std::int64_t m = ranks.distinct_tp();
    if (given.query == nullptr && m == n) given.query = given.kv;
    if (given.heads == nullptr && m == 1) given.heads = given.kv;

    const std::int64_t place = group_rank(given.kv);
    check_group("kv", group_size(given.kv), place, n, place);
    if (shape.rank >= 0) {
        const decode_groups wanted = ranks.groups_of(shape.rank);
        require(wanted.kv.rank == place, "group", "rank ", shape.rank, " of the mesh is rank ", wanted.kv.rank,
                " of its kv group and was given a communicator in which it is rank ", place);
    }
    if (!shape.replicated_q) check_group("query", group_size(given.query), group_rank(given.query), m, place / (n / m));
    if (gathers_again) check_group("heads", group_size(given.heads), group_rank(given.heads), n / m, place % (n / m));
    return given;
}

inline void check_at_least(const char* name, std::int64_t value, std::int64_t least) {
    require(value >= least, "size", "a decode shape has ", name, " ", value, "; it must be at least ", least);
}

inline void check_decode_shape(const decode_shape& shape) {
    check_at_least("max_requests", shape.max_requests, 1);
    check_at_least("max_rows", shape.max_rows, 1);
    check_at_least("longest", shape.longest, 1);
    check_at_least("pool_blocks", shape.pool_blocks, -1);
    require(shape.max_splits >= 1 || shape.max_splits == -1, "size", "a decode shape has max_splits ", shape.max_splits,
            "; it must be at least 1, or -1 for what the backend finds best");
    check_at_least("rank", shape.rank, -1);
    check_at_least("unmapped_query_width", shape.unmapped_query_width, 0);
    check_at_least("mapped_width", shape.mapped_width, 0);
}

} // namespace detail

} // namespace ctxpar::inline v0_1
