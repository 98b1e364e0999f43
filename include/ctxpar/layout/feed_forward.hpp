// Weights of a layer whose attention and feed-forward network are split differently: attention over T tp ranks, each
// with N ranks that share its KV; all that follows over all T*N of them. No weight is held twice but Q, K and V.
//
//   topology           {.tp = T*N, .dcp = N}, where kv_heads divide T; or {.tp = T, .pcp = N, .dcp = N}
//   Q projection       rows of mesh::query_projection(rank, true), all Hg heads on each of the N ranks: replicated_q
//   K, V projections   rows of mesh::kv_heads(rank) on each of the N ranks, of which one owns a token
//   decode             output_placement::scattered; without replicated_q only the first topology gathers Q
//   output projection  columns of mesh::output_projection(rank, scattered), H/(T*N) heads
//   up, gate           columns of feed_forward_shard(mesh, rank, width)
//   down               the same as rows; both products are summed over the same T*N ranks
#pragma once

#include <cstdint>
#include <utility>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace ctxpar::inline v0_1 {

// The part of a feed-forward network's inner width that a rank holds.
struct feed_forward_part {
    std::int64_t first = 0; // columns [first, last) of up and gate, rows of down
    std::int64_t last = 0;
    rank_group sum; // ranks whose products with down add up to the whole; ordered by the parts they hold

    constexpr std::int64_t count() const { return last - first; }
};

// An equal part of `width` columns for each of mesh::ranks_of_all_heads, which without PCP ranks in a DCP group are the
// TP group. config_error "ffn_width" where they do not divide it, "rank" outside the world.
inline feed_forward_part feed_forward_shard(const mesh& ranks, std::int64_t rank, std::int64_t width) {
    rank_group sum = ranks.ranks_of_all_heads(rank);
    const auto size = static_cast<std::int64_t>(sum.members.size());
    require(width >= 1 && width % size == 0, "ffn_width", "a feed-forward network of ", width,
            " columns is split over ", size, " ranks; they must be a multiple of ", size);
    const std::int64_t each = width / size;
    return {sum.rank * each, (sum.rank + 1) * each, std::move(sum)};
}

} // namespace ctxpar::inline v0_1
