// Groups, coordinates and head ranges, against ranks numbered by nested loops and heads dealt out one by one.
#include <ctxpar/layout/mesh.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace ctxpar;
using numbers = std::vector<std::int64_t>;
using lists = std::vector<numbers>;

constexpr attention_kind gqa_kind = attention_kind::gqa;
constexpr attention_kind mla_kind = attention_kind::mla;
constexpr group_kind kinds[] = {group_kind::tp, group_kind::pcp, group_kind::dcp, group_kind::pp, group_kind::dp};

// "[0 4 1 5][2 6 3 7]"
lists parse(const std::string& text) {
    lists groups;
    std::istringstream in(text);
    for (char mark = 0; in >> mark;) {
        if (mark == '[') {
            groups.emplace_back();
        } else if (mark != ']') {
            in.putback(mark);
            groups.back().emplace_back();
            in >> groups.back().back();
        }
    }
    return groups;
}

// The world, numbered by walking the axes from the slowest to the fastest.
std::vector<mesh_coordinates> walk(const topology& sizes) {
    std::vector<mesh_coordinates> world;
    for (std::int64_t e = 0; e < sizes.external_dp; ++e)
        for (std::int64_t d = 0; d < sizes.dp; ++d)
            for (std::int64_t s = 0; s < sizes.pp; ++s)
                for (std::int64_t c = 0; c < sizes.pcp; ++c)
                    for (std::int64_t t = 0; t < sizes.tp; ++t) world.push_back({e, d, s, c, t});
    return world;
}

bool same_but(const mesh_coordinates& a, const mesh_coordinates& b, std::int64_t mesh_coordinates::*axis) {
    mesh_coordinates moved = a;
    moved.*axis = b.*axis;
    return moved == b;
}

bool same_plane(const mesh_coordinates& a, const mesh_coordinates& b) {
    return a.external_dp == b.external_dp && a.dp == b.dp && a.pp == b.pp;
}

// All groups of a kind: every rank takes the first list that it may join, lists by first come.
lists reference_groups(const topology& sizes, group_kind kind) {
    const std::vector<mesh_coordinates> world = walk(sizes);
    lists groups;
    if (kind == group_kind::dcp) {
        numbers open;
        for (const mesh_coordinates& plane : world) {
            if (plane.pcp != 0 || plane.tp != 0) continue;
            for (std::int64_t t = 0; t < sizes.tp; ++t) {
                for (std::int64_t c = 0; c < sizes.pcp; ++c) {
                    for (std::size_t rank = 0; rank < world.size(); ++rank) {
                        const mesh_coordinates& at = world[rank];
                        if (!same_plane(at, plane) || at.tp != t || at.pcp != c) continue;
                        open.push_back(static_cast<std::int64_t>(rank));
                    }
                    if (static_cast<std::int64_t>(open.size()) == sizes.dcp) {
                        groups.push_back(open);
                        open.clear();
                    }
                }
            }
        }
        std::sort(groups.begin(), groups.end(), [](const numbers& a, const numbers& b) {
            return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
        });
        return groups;
    }
    const auto axis = kind == group_kind::tp    ? &mesh_coordinates::tp
                      : kind == group_kind::pcp ? &mesh_coordinates::pcp
                      : kind == group_kind::pp  ? &mesh_coordinates::pp
                                                : &mesh_coordinates::dp;
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
        const auto joins = [&](const numbers& group) {
            return same_but(world[static_cast<std::size_t>(group.front())], world[rank], axis);
        };
        const auto found = std::find_if(groups.begin(), groups.end(), joins);
        if (found == groups.end()) {
            groups.push_back({static_cast<std::int64_t>(rank)});
        } else {
            found->push_back(static_cast<std::int64_t>(rank));
        }
    }
    return groups;
}

const numbers& group_with(const lists& groups, std::int64_t rank) {
    for (const numbers& group : groups) {
        if (std::find(group.begin(), group.end(), rank) != group.end()) return group;
    }
    FAIL("rank " << rank << " is in no group");
    return groups.front();
}

// What rank_group promises, for one function of all ranks: groups split the world, each rank knows its place, colors
// are shared exactly within a group.
void check_split(const mesh& m, const std::function<rank_group(std::int64_t)>& of) {
    std::map<std::int64_t, numbers> by_color;
    std::size_t members = 0;
    for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
        const rank_group group = of(rank);
        REQUIRE(group.rank >= 0);
        REQUIRE(group.rank < static_cast<std::int64_t>(group.members.size()));
        CHECK(group.members[static_cast<std::size_t>(group.rank)] == rank);
        CHECK(group.key == group.rank);
        CHECK(group.color >= 0);
        CHECK(group.color == *std::min_element(group.members.begin(), group.members.end()));
        const auto [found, fresh] = by_color.try_emplace(group.color, group.members);
        CHECK(found->second == group.members);
        if (fresh) members += group.members.size();
    }
    CHECK(static_cast<std::int64_t>(members) == m.world_size());
}

// Calls `check` for every legal DCP size of many small topologies and models.
void for_every_mesh(const std::function<void(const mesh&)>& check) {
    const topology outer[] = {{}, {.dp = 3, .pp = 2, .external_dp = 2}};
    for (topology sizes : outer) {
        for (const std::int64_t tp : {1, 2, 3, 4, 6, 8}) {
            for (const std::int64_t pcp : {1, 2, 3, 4}) {
                if (sizes.pp > 1 && tp * pcp > 8) continue; // the inner axes were tried alone
                for (const std::int64_t kv_heads : {0, 1, 2, 3, 4, 16}) {
                    sizes.tp = tp;
                    sizes.pcp = pcp;
                    const model_heads heads = kv_heads == 0 ? model_heads{mla_kind, 6 * tp, 1}
                                                            : model_heads{gqa_kind, tp * kv_heads, kv_heads};
                    for (const std::int64_t dcp : legal_dcp(sizes, heads)) {
                        sizes.dcp = dcp;
                        CAPTURE(tp);
                        CAPTURE(pcp);
                        CAPTURE(dcp);
                        CAPTURE(kv_heads);
                        check(mesh(sizes, heads));
                    }
                }
            }
        }
    }
}

TEST_CASE("groups are the listed ones") {
    const auto groups = [](const topology& sizes, group_kind kind) {
        return mesh(sizes, {mla_kind, 0, 1}).groups(kind);
    };
    const auto dcp = [&](topology sizes, std::int64_t size) {
        sizes.dcp = size;
        return groups(sizes, group_kind::dcp);
    };
    const topology tp4_pcp2{.tp = 4, .pcp = 2};
    CHECK(groups(tp4_pcp2, group_kind::tp) == parse("[0 1 2 3][4 5 6 7]"));
    CHECK(groups(tp4_pcp2, group_kind::pcp) == parse("[0 4][1 5][2 6][3 7]"));
    CHECK(dcp(tp4_pcp2, 1) == parse("[0][1][2][3][4][5][6][7]"));
    CHECK(dcp(tp4_pcp2, 2) == parse("[0 4][1 5][2 6][3 7]"));
    CHECK(dcp(tp4_pcp2, 4) == parse("[0 4 1 5][2 6 3 7]"));
    CHECK(dcp(tp4_pcp2, 8) == parse("[0 4 1 5 2 6 3 7]"));

    const topology tp8{.tp = 8};
    CHECK(groups(tp8, group_kind::tp) == parse("[0 1 2 3 4 5 6 7]"));
    CHECK(groups(tp8, group_kind::pcp) == parse("[0][1][2][3][4][5][6][7]"));
    CHECK(dcp(tp8, 1) == parse("[0][1][2][3][4][5][6][7]"));
    CHECK(dcp(tp8, 2) == parse("[0 1][2 3][4 5][6 7]"));
    CHECK(dcp(tp8, 4) == parse("[0 1 2 3][4 5 6 7]"));
    CHECK(dcp(tp8, 8) == parse("[0 1 2 3 4 5 6 7]"));

    const topology tp6{.tp = 6};
    CHECK(dcp(tp6, 2) == parse("[0 1][2 3][4 5]"));
    CHECK(dcp(tp6, 3) == parse("[0 1 2][3 4 5]"));
    CHECK(dcp(tp6, 6) == parse("[0 1 2 3 4 5]"));

    const topology tp2_pcp4{.tp = 2, .pcp = 4};
    CHECK(groups(tp2_pcp4, group_kind::tp) == parse("[0 1][2 3][4 5][6 7]"));
    CHECK(groups(tp2_pcp4, group_kind::pcp) == parse("[0 2 4 6][1 3 5 7]"));
    CHECK(dcp(tp2_pcp4, 1) == parse("[0][1][2][3][4][5][6][7]"));
    CHECK(dcp(tp2_pcp4, 2) == parse("[0 2][1 3][4 6][5 7]"));
    CHECK(dcp(tp2_pcp4, 4) == parse("[0 2 4 6][1 3 5 7]"));
    CHECK(dcp(tp2_pcp4, 8) == parse("[0 2 4 6 1 3 5 7]"));

    const topology tp2_pcp2_pp2{.tp = 2, .pcp = 2, .pp = 2};
    CHECK(dcp(tp2_pcp2_pp2, 4) == parse("[0 2 1 3][4 6 5 7]"));
    CHECK(groups(tp2_pcp2_pp2, group_kind::pp) == parse("[0 4][1 5][2 6][3 7]"));
    const topology tp4_dp2{.tp = 4, .dp = 2};
    CHECK(dcp(tp4_dp2, 2) == parse("[0 1][2 3][4 5][6 7]"));
    CHECK(groups(tp4_dp2, group_kind::dp) == parse("[0 4][1 5][2 6][3 7]"));
    CHECK(dcp({.tp = 2, .external_dp = 2}, 2) == parse("[0 1][2 3]"));
    const topology tp2_pp2_dp2{.tp = 2, .dp = 2, .pp = 2};
    CHECK(groups(tp2_pp2_dp2, group_kind::pp) == parse("[0 2][1 3][4 6][5 7]"));
    CHECK(groups(tp2_pp2_dp2, group_kind::dp) == parse("[0 4][1 5][2 6][3 7]"));

    const mesh m({.tp = 4, .pcp = 2, .dcp = 8}, {mla_kind, 0, 1});
    CHECK(m.coordinates(5) == mesh_coordinates{0, 0, 0, 1, 1});
    CHECK(m.group(group_kind::tp, 5).members == numbers{4, 5, 6, 7});
    CHECK(m.group(group_kind::tp, 5).rank == 1);
    CHECK(m.group(group_kind::pcp, 5).members == numbers{1, 5});
    CHECK(m.group(group_kind::pcp, 5).rank == 1);
    CHECK(m.group(group_kind::dcp, 5).rank == 3);
}

TEST_CASE("ranks, coordinates and groups agree with nested loops over the axes") {
    for_every_mesh([](const mesh& m) {
        const std::vector<mesh_coordinates> world = walk(m.sizes());
        REQUIRE(m.world_size() == static_cast<std::int64_t>(world.size()));
        for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
            const mesh_coordinates& at = world[static_cast<std::size_t>(rank)];
            CHECK(m.coordinates(rank) == at);
            CHECK(m.rank_of(at) == rank);
        }
        for (const group_kind kind : kinds) {
            const lists expected = reference_groups(m.sizes(), kind);
            CHECK(m.groups(kind) == expected);
            check_split(m, [&](std::int64_t rank) { return m.group(kind, rank); });
            for (const numbers& group : expected) {
                for (const std::int64_t rank : group) CHECK(m.group(kind, rank).members == group);
            }
        }
    });
}

TEST_CASE("DCP never multiplies the world") {
    for (const std::int64_t dcp : {1, 2}) {
        CHECK(mesh({.tp = 1, .pcp = 2, .dcp = dcp}, {mla_kind, 0, 1}).world_size() == 2);
    }
    CHECK(mesh({.tp = 8, .pcp = 8}, {mla_kind, 0, 1}).world_size() == 64);
}

TEST_CASE("a rank holds the heads that its own share of the query heads needs") {
    for_every_mesh([](const mesh& m) {
        const model_heads heads = m.heads();
        const std::vector<mesh_coordinates> world = walk(m.sizes());
        const lists groups = reference_groups(m.sizes(), group_kind::dcp);
        std::int64_t next = 0; // deals the heads to the first tp group, in order
        std::map<std::int64_t, head_range> dealt;
        for (std::int64_t t = 0; t < m.sizes().tp; ++t) {
            dealt[t].first = next;
            for (std::int64_t h = 0; h < heads.q_heads / m.sizes().tp; ++h) ++next;
            dealt[t].last = next;
        }
        REQUIRE(next == heads.q_heads);
        for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
            const head_range own = dealt[world[static_cast<std::size_t>(rank)].tp];
            CHECK(m.q_heads(rank) == own);
            CHECK(own.count() == m.heads_per_rank());

            std::set<std::int64_t> kv;
            for (std::int64_t h = own.first; h < own.last; ++h) kv.insert(h / (heads.q_heads / heads.kv_heads));
            CHECK(m.kv_heads(rank) == head_range{*kv.begin(), *kv.rbegin() + 1});
            CHECK(m.kv_heads_per_rank() == static_cast<std::int64_t>(kv.size()));

            std::set<std::int64_t> gathered, ts;
            for (const std::int64_t member : group_with(groups, rank)) {
                const std::int64_t t = world[static_cast<std::size_t>(member)].tp;
                ts.insert(t);
                for (std::int64_t h = dealt[t].first; h < dealt[t].last; ++h) gathered.insert(h);
                CHECK(m.kv_heads(member) == m.kv_heads(rank)); // one KV for the group
            }
            CHECK(m.gathered_heads(rank) == head_range{*gathered.begin(), *gathered.rbegin() + 1});
            CHECK(m.gathered_heads() == static_cast<std::int64_t>(gathered.size()));
            CHECK(m.distinct_tp() == static_cast<std::int64_t>(ts.size()));
            CHECK(m.scatters_heads() == (gathered.size() % group_with(groups, rank).size() == 0));
            CHECK(m.query_projection(rank, false) == own);
            CHECK(m.query_projection(rank, true) == m.gathered_heads(rank));
        }
    });
}

TEST_CASE("the four groups of a decoder are cut from the DCP group by coordinate") {
    for_every_mesh([](const mesh& m) {
        const std::vector<mesh_coordinates> world = walk(m.sizes());
        const lists kv = reference_groups(m.sizes(), group_kind::dcp);
        const lists rows = reference_groups(m.sizes(), group_kind::pcp);
        for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
            const mesh_coordinates& me = world[static_cast<std::size_t>(rank)];
            numbers query, heads;
            for (const std::int64_t member : group_with(kv, rank)) {
                const mesh_coordinates& at = world[static_cast<std::size_t>(member)];
                if (at.pcp == me.pcp) query.push_back(member);
                if (at.tp == me.tp) heads.push_back(member);
            }
            const decode_groups groups = m.groups_of(rank);
            CHECK(groups.kv.members == group_with(kv, rank));
            CHECK(groups.query.members == query);
            CHECK(groups.heads.members == heads);
            CHECK(groups.rows.members == group_with(rows, rank));
            CHECK(static_cast<std::int64_t>(query.size()) == m.distinct_tp());
            CHECK(static_cast<std::int64_t>(heads.size()) == m.sizes().dcp / m.distinct_tp());
            CHECK(std::is_sorted(query.begin(), query.end()));

            // The ranks of `heads` stand side by side in the DCP group, and together hold what scattering made of
            // the rank's own heads.
            const auto side_by_side =
                std::search(groups.kv.members.begin(), groups.kv.members.end(), heads.begin(), heads.end());
            REQUIRE(side_by_side != groups.kv.members.end());
            if (!m.scatters_heads()) continue;
            const std::int64_t each = m.gathered_heads() / m.sizes().dcp;
            const std::int64_t first = m.gathered_heads(rank).first + (side_by_side - groups.kv.members.begin()) * each;
            CHECK(head_range{first, first + each * static_cast<std::int64_t>(heads.size())} == m.q_heads(rank));
        }
        check_split(m, [&](std::int64_t rank) { return m.groups_of(rank).kv; });
        check_split(m, [&](std::int64_t rank) { return m.groups_of(rank).query; });
        check_split(m, [&](std::int64_t rank) { return m.groups_of(rank).heads; });
        check_split(m, [&](std::int64_t rank) { return m.groups_of(rank).rows; });
    });
}

TEST_CASE("summing the output projection counts every head exactly once, in every placement") {
    for_every_mesh([](const mesh& m) {
        const std::vector<mesh_coordinates> world = walk(m.sizes());
        const lists kv = reference_groups(m.sizes(), group_kind::dcp);
        for (const output_placement placement :
             {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
            if (placement == output_placement::scattered && !m.scatters_heads()) {
                CHECK_THROWS_AS(m.output_projection(0, placement), config_error);
                continue;
            }
            check_split(m, [&](std::int64_t rank) { return m.output_projection(rank, placement).sum; });
            for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
                const weight_shard shard = m.output_projection(rank, placement);
                std::int64_t next = 0;
                for (const std::int64_t member : shard.sum.members) {
                    CHECK(same_plane(world[static_cast<std::size_t>(member)], world[static_cast<std::size_t>(rank)]));
                    const head_range theirs = m.output_projection(member, placement).heads;
                    CHECK(theirs.first == next); // no head twice, none left out
                    next = theirs.last;
                }
                CHECK(next == m.heads().q_heads);

                // The rank multiplies what its merge left it with.
                const numbers& group = group_with(kv, rank);
                const std::int64_t g = std::find(group.begin(), group.end(), rank) - group.begin();
                const std::int64_t each = m.gathered_heads() / m.sizes().dcp;
                const head_range all = m.gathered_heads(rank);
                const head_range held = placement == output_placement::own_heads ? m.q_heads(rank)
                                        : placement == output_placement::all_heads
                                            ? all
                                            : head_range{all.first + g * each, all.first + (g + 1) * each};
                CHECK(shard.heads == held);
            }
        }
    });
}

TEST_CASE("summing products of partial sums counts every head once for each rank of its group") {
    for_every_mesh([](const mesh& m) {
        check_split(m,
                    [&](std::int64_t rank) { return m.output_projection(rank, output_placement::partial_sums).sum; });
        for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
            const weight_shard shard = m.output_projection(rank, output_placement::partial_sums);
            CHECK(shard.heads == m.gathered_heads(rank));
            std::int64_t at = 0; // groups one after another, each with all of its ranks in order
            const auto& members = shard.sum.members;
            for (std::size_t i = 0; i < members.size();
                 at += m.sizes().dcp, i += static_cast<std::size_t>(m.sizes().dcp)) {
                const rank_group kv = m.groups_of(members[i]).kv;
                REQUIRE(i + kv.members.size() <= members.size());
                CHECK(std::equal(kv.members.begin(), kv.members.end(), members.begin() + at));
                CHECK(m.gathered_heads(members[i]).first == at / m.sizes().dcp * m.gathered_heads());
            }
            CHECK(at / m.sizes().dcp * m.gathered_heads() == m.heads().q_heads);
        }
    });
    CHECK(std::string(name_of(output_placement::own_heads)) == "own_heads");
    CHECK(std::string(name_of(output_placement::scattered)) == "scattered");
    CHECK(std::string(name_of(output_placement::all_heads)) == "all_heads");
    CHECK(std::string(name_of(output_placement::partial_sums)) == "partial_sums");
}

TEST_CASE("TP8 DCP4 of 128 heads: queries projected for a whole group, own heads by the place in it") {
    const mesh m({.tp = 8, .dcp = 4}, {gqa_kind, 128, 2});
    for (std::int64_t rank = 0; rank < 8; ++rank) {
        const std::int64_t half = rank < 4 ? 0 : 64;
        CHECK(m.query_projection(rank, true) == head_range{half, half + 64});
        CHECK(m.query_projection(rank, true) == head_range{rank / 4 * (128 / 2), (rank / 4 + 1) * (128 / 2)});
        CHECK(m.q_heads(rank) == head_range{half + rank % 4 * 16, half + (rank % 4 + 1) * 16});
        CHECK(m.output_projection(rank, output_placement::own_heads).heads == m.q_heads(rank));
        CHECK(m.output_projection(rank, output_placement::scattered).heads == m.q_heads(rank));
    }
}

TEST_CASE("known meshes have the known heads and sums") {
    const mesh inside_tp({.tp = 4, .dcp = 2}, {gqa_kind, 8, 2});
    CHECK(inside_tp.groups(group_kind::dcp) == parse("[0 1][2 3]"));
    CHECK(inside_tp.gathered_heads() == 4);
    for (std::int64_t rank = 0; rank < 4; ++rank) {
        const head_range own{2 * rank, 2 * rank + 2};
        CHECK(inside_tp.q_heads(rank) == own);
        CHECK(inside_tp.output_projection(rank, output_placement::own_heads).heads == own);
        CHECK(inside_tp.output_projection(rank, output_placement::scattered).heads == own);
        CHECK(inside_tp.output_projection(rank, output_placement::scattered).sum.members == numbers{0, 1, 2, 3});
    }
    CHECK(inside_tp.output_projection(3, output_placement::all_heads).sum.members == numbers{1, 3});
    CHECK(inside_tp.output_projection(3, output_placement::partial_sums).sum.members == numbers{0, 1, 2, 3});
    CHECK(inside_tp.output_projection(3, output_placement::partial_sums).heads == head_range{4, 8});

    const mesh over_pcp({.tp = 4, .pcp = 2, .dcp = 2}, {gqa_kind, 32, 8});
    CHECK(over_pcp.kv_heads_per_rank() == 2);
    CHECK(over_pcp.groups_of(6).query.members == numbers{6});
    CHECK(over_pcp.groups_of(6).heads.members == numbers{2, 6});
    CHECK(over_pcp.output_projection(6, output_placement::scattered).heads == head_range{20, 24});

    const mesh both({.tp = 4, .pcp = 2, .dcp = 8}, {gqa_kind, 32, 1});
    CHECK(both.groups_of(5).query.members == numbers{4, 5, 6, 7});
    CHECK(both.groups_of(5).heads.members == numbers{1, 5});
    CHECK(both.output_projection(5, output_placement::scattered).heads == head_range{12, 16});
    CHECK(both.output_projection(5, output_placement::scattered).sum.members == numbers{0, 4, 1, 5, 2, 6, 3, 7});
    CHECK(both.output_projection(5, output_placement::all_heads).sum.members == numbers{5});

    const mesh chunked({.tp = 2, .pcp = 4, .dcp = 2}, {gqa_kind, 8, 2});
    CHECK(chunked.output_projection(4, output_placement::scattered).sum.members == numbers{4, 6, 5, 7});

    const mesh once({.tp = 4, .dcp = 4}, {gqa_kind, 32, 1});
    CHECK(once.heads_per_rank() == 8);
    CHECK(once.gathered_heads() == 32);
    CHECK(once.gathered_heads() == 32);
    CHECK(once.legal_dcp() == numbers{1, 2, 4});
}

std::string refused(const std::function<void()>& call, std::string* text = nullptr) {
    try {
        call();
    } catch (const config_error& problem) {
        if (text != nullptr) *text = problem.what();
        return problem.code();
    }
    return "";
}

TEST_CASE("a mesh refuses with a code what it can not answer") {
    const mesh m({.tp = 4, .pcp = 2, .dcp = 2}, {gqa_kind, 12, 4});
    std::string text;
    for (const std::int64_t rank : {std::int64_t{-1}, std::int64_t{8}, INT64_MAX, INT64_MIN}) {
        CHECK(refused([&] { m.coordinates(rank); }, &text) == "rank");
        CHECK(text.find("0..7") != std::string::npos);
        CHECK(refused([&] { m.group(group_kind::dcp, rank); }) == "rank");
        CHECK(refused([&] { m.groups_of(rank); }) == "rank");
        CHECK(refused([&] { m.kv_heads(rank); }) == "rank");
        CHECK(refused([&] { m.output_projection(rank, output_placement::all_heads); }) == "rank");
    }
    CHECK(refused([&] { m.rank_of({.tp = 4}); }) == "rank");
    CHECK(refused([&] { m.rank_of({.pcp = 2}); }) == "rank");
    CHECK(refused([&] { m.rank_of({.pp = 1}); }) == "rank");
    CHECK(refused([&] { m.rank_of({.dp = -1}); }) == "rank");
    CHECK(refused([&] { m.rank_of({.external_dp = 1}); }) == "rank");
    CHECK(refused([&] { mesh({.tp = 4, .dcp = 2}, {gqa_kind, 32, 8}); }) == "dcp_kv_heads");

    CHECK_FALSE(m.scatters_heads()); // 3 heads over 2 ranks
    CHECK(refused([&] { m.output_projection(0, output_placement::scattered); }, &text) == "scatter_heads");
    CHECK(text.find("own_heads or all_heads") != std::string::npos);
    CHECK(refused([&] { m.output_projection(0, output_placement::own_heads); }).empty());
    CHECK(refused([&] { m.output_projection(0, output_placement::all_heads); }).empty());
    CHECK(refused([&] { m.output_projection(0, output_placement::partial_sums); }).empty());

    CHECK(refused([&] { m.check_world(8); }).empty());
    CHECK(refused([&] { mesh({.tp = 8, .pcp = 8}, {mla_kind, 0, 1}).check_world(8); }, &text) == "world_size");
    CHECK(text.find("64 ranks") != std::string::npos);
    CHECK(text.find("given 8") != std::string::npos);

    const mesh unknown({.tp = 4, .dcp = 2}, {mla_kind, 0, 1});
    CHECK_FALSE(unknown.knows_q_heads());
    CHECK(unknown.kv_heads(3) == head_range{0, 1});
    CHECK(unknown.groups_of(3).kv.members == numbers{2, 3});
    CHECK(refused([&] { unknown.heads_per_rank(); }) == "q_heads");
    CHECK(refused([&] { unknown.gathered_heads(); }) == "q_heads");
    CHECK(refused([&] { unknown.scatters_heads(); }) == "q_heads");
    CHECK(refused([&] { unknown.q_heads(0); }) == "q_heads");
    CHECK(refused([&] { unknown.query_projection(0, true); }) == "q_heads");
    CHECK(refused([&] { unknown.output_projection(0, output_placement::own_heads); }) == "q_heads");
}

TEST_CASE("ranks up to 2^31 and heads up to 2^62 are exact") {
    const std::int64_t q_heads = std::int64_t{1} << 62, tp = 1 << 20, pcp = 1 << 10;
    const mesh m({.tp = tp, .pcp = pcp, .dcp = pcp}, {gqa_kind, q_heads, 1});
    const std::int64_t last = m.world_size() - 1;
    CHECK(last == (1 << 30) - 1);
    CHECK(m.coordinates(last) == mesh_coordinates{.pcp = pcp - 1, .tp = tp - 1});
    CHECK(m.rank_of({.pcp = pcp - 1, .tp = tp - 1}) == last);
    CHECK(m.q_heads(last) == head_range{q_heads - q_heads / tp, q_heads});
    CHECK(m.group(group_kind::dcp, last).members.back() == last);
    CHECK(m.output_projection(last, output_placement::own_heads).sum.rank == tp - 1);
    CHECK(mesh({.tp = tp, .dcp = tp}, {gqa_kind, q_heads, 1}).gathered_heads(5) == head_range{0, q_heads});
    CHECK(mesh({.tp = 2147483647}, {mla_kind, 0, 1}).coordinates(2147483646).tp == 2147483646);
}

} // namespace
