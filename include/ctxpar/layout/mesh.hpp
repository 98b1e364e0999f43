// The mesh of ranks: where each rank sits, whom it talks to, and which heads it holds.
//
//   rank = ((((e*D + d)*P + s)*W + c)*T + t)        external dp, dp, pp, pcp, tp; tp runs fastest
//
// TP, PCP, PP and DP groups hold every other coordinate fixed. DCP groups are cut from the order in which, inside each
// (e, d, s), pcp runs fastest and tp next, and a rank's place in its group is its place in that list. So only without
// PCP is the DCP rank equal to t mod dcp.
//
// Symbols: T = tp, W = pcp, N = dcp, H and K = query and KV heads of the model, m = different tp coordinates in a DCP
// group, Hl = H/T heads a rank owns, Hg = m*Hl heads that a DCP group evaluates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/topology.hpp>

namespace ctxpar::inline v0_1 {

// What a rank's attention output holds after the merge.
//   own_heads     the Hl heads of its tp coordinate
//   scattered     the Hg/N heads [g*Hg/N, (g+1)*Hg/N) of its group's, g its place in the DCP group
//   all_heads     all Hg heads of its group
//   partial_sums  of all Hg heads of its group the rank's share: the shares of the group's N ranks add up to the output
enum class output_placement { own_heads, scattered, all_heads, partial_sums };

constexpr const char* name_of(output_placement placement) {
    switch (placement) {
    case output_placement::own_heads:
        return "own_heads";
    case output_placement::scattered:
        return "scattered";
    case output_placement::all_heads:
        return "all_heads";
    case output_placement::partial_sums:
        break;
    }
    return "partial_sums";
}

enum class group_kind { tp, pcp, dcp, pp, dp };

struct mesh_coordinates {
    std::int64_t external_dp = 0;
    std::int64_t dp = 0;
    std::int64_t pp = 0;
    std::int64_t pcp = 0;
    std::int64_t tp = 0;

    friend constexpr bool operator==(const mesh_coordinates&, const mesh_coordinates&) = default;
};

// Heads of the whole model, [first, last).
struct head_range {
    std::int64_t first = 0;
    std::int64_t last = 0;

    constexpr std::int64_t count() const { return last - first; }
    friend constexpr bool operator==(const head_range&, const head_range&) = default;
};

// One rank's view of a group. Over all ranks, groups of one kind split the world: `color` is the same exactly in one
// group and `key` orders its ranks, as MPI_Comm_split and ncclCommSplit want them.
struct rank_group {
    std::vector<std::int64_t> members; // in group order
    std::int64_t rank = 0;             // this rank's place in members
    std::int64_t color = 0;            // the smallest member
    std::int64_t key = 0;              // same as rank
};

// The four groups that a decoder may need.
struct decode_groups {
    rank_group kv;    // the N ranks that share the KV: the DCP group
    rank_group query; // the m ranks of it with this rank's pcp coordinate, by tp: their Q heads are gathered
    rank_group heads; // the N/m ranks of it with this rank's tp coordinate: scattered heads are gathered to Hl again
    rank_group rows;  // the PCP group
};

// The columns of the output projection that a rank multiplies its merged output with.
struct weight_shard {
    head_range heads; // columns, in query heads of the model
    rank_group sum;   // ranks whose products add up to the whole; ordered by the heads they hold
};

// An immutable, checked topology. Every rank makes the same one from the same numbers; nothing here communicates.
// Functions that take a rank refuse one outside 0..world_size()-1 with config_error "rank"; functions about query heads
// refuse a mesh that was made without their number with config_error "q_heads".
class mesh {
public:
    // config_error with the codes of check_topology.
    mesh(const topology& sizes, const model_heads& heads, topology_rules rules = topology_rules::general)
        : sizes_(sizes), heads_(heads), rules_(rules) {
        check_topology(sizes, heads, rules);
    }

    const topology& sizes() const { return sizes_; }
    const model_heads& heads() const { return heads_; }
    topology_rules rules() const { return rules_; }

    // Ranks of the world, E*D*P*W*T.
    std::int64_t world_size() const { return detail::world_or_zero(sizes_); }

    // Refuses a world of another size than the mesh's: config_error "world_size", naming both.
    void check_world(std::int64_t ranks) const {
        if (ranks == world_size()) return;
        raise(config_error("world_size",
                           sentence("the mesh has ", world_size(), " ranks (external_dp ", sizes_.external_dp, " x dp ",
                                    sizes_.dp, " x pp ", sizes_.pp, " x pcp ", sizes_.pcp, " x tp ", sizes_.tp,
                                    ") and was given ", ranks, "; both must be equal"),
                           {world_size()}));
    }

    mesh_coordinates coordinates(std::int64_t rank) const {
        check_rank(rank);
        mesh_coordinates at;
        at.tp = rank % sizes_.tp;
        rank /= sizes_.tp;
        at.pcp = rank % sizes_.pcp;
        rank /= sizes_.pcp;
        at.pp = rank % sizes_.pp;
        rank /= sizes_.pp;
        at.dp = rank % sizes_.dp;
        at.external_dp = rank / sizes_.dp;
        return at;
    }

    // config_error "rank" where a coordinate is outside its axis.
    std::int64_t rank_of(const mesh_coordinates& at) const {
        check_coordinate("external_dp", at.external_dp, sizes_.external_dp);
        check_coordinate("dp", at.dp, sizes_.dp);
        check_coordinate("pp", at.pp, sizes_.pp);
        check_coordinate("pcp", at.pcp, sizes_.pcp);
        check_coordinate("tp", at.tp, sizes_.tp);
        return place(at);
    }

    // The group of `rank`, of one kind.
    rank_group group(group_kind kind, std::int64_t rank) const {
        return view(members_of(kind, coordinates(rank)), rank);
    }

    // All groups of one kind, members in group order, groups by their smallest member (which is always the first).
    std::vector<std::vector<std::int64_t>> groups(group_kind kind) const {
        const std::int64_t world = world_size();
        std::vector<std::vector<std::int64_t>> all;
        for (std::int64_t rank = 0; rank < world; ++rank) {
            const mesh_coordinates at = coordinates(rank);
            if (is_first(kind, at)) all.push_back(members_of(kind, at));
        }
        return all;
    }

    // The DCP sizes that would be legal in place of this one, ascending.
    std::vector<std::int64_t> legal_dcp() const { return detail::accepted_dcp({sizes_, heads_, rules_}); }

    // m: different tp coordinates in one DCP group.
    std::int64_t distinct_tp() const { return v0_1::distinct_tp(sizes_); }

    // False where the mesh was made without the number of query heads (MLA only).
    bool knows_q_heads() const { return detail::heads_known(heads_); }

    // Hl = H/T, query heads that a rank owns.
    std::int64_t heads_per_rank() const {
        check_heads();
        return heads_.q_heads / sizes_.tp;
    }

    // Hg = m*Hl, query heads that one DCP group evaluates.
    std::int64_t gathered_heads() const { return distinct_tp() * heads_per_rank(); }

    // Whether a merge may scatter the gathered heads evenly over the group (A2A, AG+RS); AG+AR always serves.
    bool scatters_heads() const { return gathered_heads() % sizes_.dcp == 0; }

    // KV heads that a rank stores.
    std::int64_t kv_heads_per_rank() const { return std::max<std::int64_t>(1, heads_.kv_heads / sizes_.tp); }

    // The query heads that the rank owns, before the gather and after the merge.
    head_range q_heads(std::int64_t rank) const {
        const std::int64_t t = coordinates(rank).tp;
        return {t * heads_per_rank(), (t + 1) * heads_per_rank()};
    }

    // The KV heads that the rank stores: its own K/T, or the one it shares with T/K - 1 other tp ranks.
    head_range kv_heads(std::int64_t rank) const {
        const std::int64_t t = coordinates(rank).tp;
        const std::int64_t copies = std::max<std::int64_t>(1, sizes_.tp / heads_.kv_heads);
        return {t / copies * kv_heads_per_rank(), (t / copies + 1) * kv_heads_per_rank()};
    }

    // The query heads that the rank's DCP group evaluates.
    head_range gathered_heads(std::int64_t rank) const {
        const std::int64_t first = first_tp(coordinates(rank)) * heads_per_rank();
        return {first, first + gathered_heads()};
    }

    // The groups that decode on this rank may need.
    decode_groups groups_of(std::int64_t rank) const {
        const mesh_coordinates at = coordinates(rank);
        const std::int64_t width = shared_pcp();
        return {group(group_kind::dcp, rank), view(block(at, first_tp(at), distinct_tp(), at.pcp, 1), rank),
                view(block(at, at.tp, 1, at.pcp / width * width, width), rank), group(group_kind::pcp, rank)};
    }

    // The DCP groups that together evaluate every head once, the rank's own among them, one after another: T*N/m ranks,
    // ordered by the heads that a merge scatters to them.
    rank_group ranks_of_all_heads(std::int64_t rank) const {
        const mesh_coordinates at = coordinates(rank);
        const std::int64_t width = shared_pcp();
        return view(block(at, 0, sizes_.tp, at.pcp / width * width, width), rank);
    }

    // Rows of the query projection, in heads, that the rank holds: its own, or with replicated queries all that its DCP
    // group evaluates, which makes the gather of Q unnecessary.
    head_range query_projection(std::int64_t rank, bool replicated_q) const {
        return replicated_q ? gathered_heads(rank) : q_heads(rank);
    }

    // Columns of the output projection, in heads, for an output placed so, and the ranks to sum over: every head once,
    // or N times with partial sums, whose N ranks all need the columns of the Hg heads; there a projection that is
    // split inside the group drops shares. config_error "scatter_heads" for scattered heads where N does not divide Hg.
    weight_shard output_projection(std::int64_t rank, output_placement placement) const {
        const mesh_coordinates at = coordinates(rank);
        if (placement == output_placement::own_heads) return {q_heads(rank), group(group_kind::tp, rank)};

        if (placement == output_placement::all_heads) {
            std::vector<std::int64_t> members; // one of each DCP group: same pcp, same place among the m tp ranks
            members.reserve(static_cast<std::size_t>(sizes_.tp / distinct_tp()));
            for (std::int64_t t = at.tp % distinct_tp(); t < sizes_.tp; t += distinct_tp()) {
                members.push_back(place_at(at, t, at.pcp));
            }
            return {gathered_heads(rank), view(std::move(members), rank)};
        }

        if (placement == output_placement::partial_sums) return {gathered_heads(rank), ranks_of_all_heads(rank)};

        require(scatters_heads(), "scatter_heads", "the ", gathered_heads(),
                " gathered heads do not scatter evenly over dcp ", sizes_.dcp,
                "; merge with AG+AR and place own_heads or all_heads");
        const std::int64_t each = gathered_heads() / sizes_.dcp;
        const std::int64_t first = gathered_heads(rank).first + dcp_place(at) * each;
        return {{first, first + each}, ranks_of_all_heads(rank)};
    }

private:
    void check_rank(std::int64_t rank) const {
        if (rank >= 0 && rank < world_size()) return;
        std::vector<std::int64_t> legal;
        if (world_size() <= 64) {
            for (std::int64_t each = 0; each < world_size(); ++each) legal.push_back(each);
        }
        raise(config_error("rank",
                           sentence("rank ", rank, " is outside the world of ", world_size(),
                                    " ranks; it must be in 0..", world_size() - 1),
                           std::move(legal)));
    }

    static void check_coordinate(const char* axis, std::int64_t coordinate, std::int64_t size) {
        require(coordinate >= 0 && coordinate < size, "rank", "the ", axis, " coordinate is ", coordinate,
                "; it must be in 0..", size - 1);
    }

    void check_heads() const {
        require(knows_q_heads(), "q_heads",
                "the mesh was made with q_heads 0, so it knows no query heads; give the model's number of query heads");
    }

    std::int64_t place(const mesh_coordinates& at) const {
        return (((at.external_dp * sizes_.dp + at.dp) * sizes_.pp + at.pp) * sizes_.pcp + at.pcp) * sizes_.tp + at.tp;
    }

    std::int64_t place_at(mesh_coordinates at, std::int64_t t, std::int64_t c) const {
        at.tp = t;
        at.pcp = c;
        return place(at);
    }

    // Place in the order in which pcp runs fastest and tp next, from which DCP groups are cut; and within the group.
    std::int64_t plane_place(const mesh_coordinates& at) const { return at.tp * sizes_.pcp + at.pcp; }
    std::int64_t dcp_place(const mesh_coordinates& at) const { return plane_place(at) % sizes_.dcp; }

    // The smallest tp coordinate in the DCP group, and how many pcp coordinates each tp coordinate brings to it.
    std::int64_t first_tp(const mesh_coordinates& at) const { return at.tp - at.tp % distinct_tp(); }
    std::int64_t shared_pcp() const { return sizes_.dcp / distinct_tp(); }

    // The ranks of a rectangle of tp and pcp coordinates around `at`, pcp fastest.
    std::vector<std::int64_t> block(const mesh_coordinates& at, std::int64_t first_t, std::int64_t num_t,
                                    std::int64_t first_c, std::int64_t num_c) const {
        std::vector<std::int64_t> members;
        members.reserve(static_cast<std::size_t>(num_t * num_c));
        for (std::int64_t t = first_t; t < first_t + num_t; ++t) {
            for (std::int64_t c = first_c; c < first_c + num_c; ++c) members.push_back(place_at(at, t, c));
        }
        return members;
    }

    std::vector<std::int64_t> line(mesh_coordinates at, std::int64_t mesh_coordinates::*axis, std::int64_t size) const {
        std::vector<std::int64_t> members;
        members.reserve(static_cast<std::size_t>(size));
        for (at.*axis = 0; at.*axis < size; ++(at.*axis)) members.push_back(place(at));
        return members;
    }

    std::vector<std::int64_t> members_of(group_kind kind, const mesh_coordinates& at) const {
        switch (kind) {
        case group_kind::tp:
            return line(at, &mesh_coordinates::tp, sizes_.tp);
        case group_kind::pcp:
            return line(at, &mesh_coordinates::pcp, sizes_.pcp);
        case group_kind::pp:
            return line(at, &mesh_coordinates::pp, sizes_.pp);
        case group_kind::dp:
            return line(at, &mesh_coordinates::dp, sizes_.dp);
        case group_kind::dcp:
            break;
        }
        const std::int64_t width = shared_pcp();
        return block(at, first_tp(at), distinct_tp(), at.pcp / width * width, width);
    }

    bool is_first(group_kind kind, const mesh_coordinates& at) const {
        switch (kind) {
        case group_kind::tp:
            return at.tp == 0;
        case group_kind::pcp:
            return at.pcp == 0;
        case group_kind::pp:
            return at.pp == 0;
        case group_kind::dp:
            return at.dp == 0;
        case group_kind::dcp:
            break;
        }
        return dcp_place(at) == 0;
    }

    // A rank's view of a group whose first member is its smallest, as it is for every group of a mesh.
    static rank_group view(std::vector<std::int64_t> members, std::int64_t rank) {
        const auto found = std::find(members.begin(), members.end(), rank);
        const std::int64_t at = found - members.begin();
        const std::int64_t color = members.front();
        return {std::move(members), at, color, at};
    }

    topology sizes_;
    model_heads heads_;
    topology_rules rules_;
};

} // namespace ctxpar::inline v0_1
