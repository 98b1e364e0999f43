// topology: groups, coordinates and head ranges of a mesh of ranks, and which DCP sizes are legal.
#include <memory>

#include <fmt/format.h>

#include <ctxpar/layout/mesh.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    ctxpar::topology sizes;
    std::optional<std::int64_t> q_heads, kv_heads, rank;
    bool mla = false;
    std::string rules = "general";
};

struct named_kind {
    const char* name;
    ctxpar::group_kind kind;
};
constexpr named_kind group_kinds[] = {{"tp", ctxpar::group_kind::tp},
                                      {"pcp", ctxpar::group_kind::pcp},
                                      {"dcp", ctxpar::group_kind::dcp},
                                      {"pp", ctxpar::group_kind::pp},
                                      {"dp", ctxpar::group_kind::dp}};

ctxpar::mesh mesh_of(const options& given) {
    const auto rules = given.rules == "vllm" ? ctxpar::topology_rules::vllm : ctxpar::topology_rules::general;
    if (!given.mla) return {given.sizes, {ctxpar::attention_kind::gqa, *given.q_heads, *given.kv_heads}, rules};
    // The library takes 0 for "not known"; here that is said by leaving the option out.
    ctxpar::require(!given.q_heads || *given.q_heads >= 1, "size", "q_heads is ", given.q_heads.value_or(1),
                    "; it must be at least 1");
    return {given.sizes, {ctxpar::attention_kind::mla, given.q_heads.value_or(0), 1}, rules};
}

json pair(const ctxpar::head_range& range) {
    return json::array({range.first, range.last});
}

// What one rank is and holds.
void add_rank(answer& result, const ctxpar::mesh& mesh, std::int64_t rank) {
    const ctxpar::mesh_coordinates at = mesh.coordinates(rank);
    result.values["coordinates"] = {
        {"external_dp", at.external_dp}, {"dp", at.dp}, {"pp", at.pp}, {"pcp", at.pcp}, {"tp", at.tp}};
    result.text += fmt::format("\nrank {}: external_dp {}, dp {}, pp {}, pcp {}, tp {}\n", rank, at.external_dp, at.dp,
                               at.pp, at.pcp, at.tp);
    for (const auto& [name, kind] : group_kinds) {
        const ctxpar::rank_group group = mesh.group(kind, rank);
        result.values["group_rank"][name] = group.rank;
        result.text += fmt::format("{:>3} group [{}], place {}\n", name, joined(group.members), group.rank);
    }
    if (mesh.heads().kind == ctxpar::attention_kind::mla) return;
    const ctxpar::head_range q = mesh.q_heads(rank), kv = mesh.kv_heads(rank);
    result.values["q_heads"] = pair(q);
    result.values["kv_heads"] = pair(kv);
    result.text += fmt::format("query heads {}..{}, KV heads {}..{} (the last not included)\n", q.first, q.last,
                               kv.first, kv.last);
}

answer run(const options& given) {
    const ctxpar::mesh mesh = mesh_of(given);
    if (given.rank) mesh.coordinates(*given.rank); // refuses a rank outside the world before anything is listed
    check_readable({mesh.world_size(), std::ssize(group_kinds)});

    answer result;
    result.values["world_size"] = mesh.world_size();
    result.text = fmt::format("{} ranks\n", mesh.world_size());
    std::string groups;
    for (const auto& [name, kind] : group_kinds) {
        const std::vector<numbers> members = mesh.groups(kind);
        groups += fmt::format("{:>3} groups:", name);
        for (const numbers& group : members) groups += fmt::format(" [{}]", joined(group));
        groups += '\n';
        result.values["groups"][name] = members;
    }
    result.values["legal_dcp"] = mesh.legal_dcp();
    result.text += fmt::format("legal dcp: {}\n", joined(mesh.legal_dcp()));
    if (mesh.knows_q_heads()) {
        result.values["heads_per_rank"] = mesh.heads_per_rank();
        result.values["gathered_heads"] = mesh.gathered_heads();
        result.values["scatter_heads"] = mesh.scatters_heads();
        result.text += fmt::format("query heads: {} on a rank, {} evaluated by a DCP group; {}\n",
                                   mesh.heads_per_rank(), mesh.gathered_heads(),
                                   mesh.scatters_heads() ? "they scatter, every merge serves"
                                                         : "they do not scatter, only AG+AR serves");
    }
    result.text += groups;
    if (given.rank) add_rank(result, mesh, *given.rank);
    return result;
}

void check_usage(const options& given) {
    ctxpar::require(!given.mla || !given.kv_heads, "usage",
                    "--mla excludes --kv-heads, because MLA has one KV head on every rank");
    ctxpar::require(given.mla || (given.q_heads && given.kv_heads), "usage",
                    "the heads are missing; give --q-heads and --kv-heads, or --mla");
}

} // namespace

std::function<answer()> topology_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--tp", given->sizes.tp, "tensor parallel size");
    number(app, need::optional, "--pcp", given->sizes.pcp, "prefill context parallel size");
    number(app, need::optional, "--dcp", given->sizes.dcp, "ranks that share the KV");
    number(app, need::optional, "--dp", given->sizes.dp, "data parallel size");
    number(app, need::optional, "--pp", given->sizes.pp, "pipeline stages");
    number(app, need::optional, "--external-dp", given->sizes.external_dp, "outermost data parallel size");
    number(app, "--q-heads", given->q_heads, "query heads of the model");
    number(app, "--kv-heads", given->kv_heads, "KV heads of the model");
    flag(app, "--mla", given->mla, "latent attention: one KV head, replicated");
    word(app, need::optional, "--rules", given->rules, {"general", "vllm"}, "which rules decide what is legal");
    number(app, "--rank", given->rank, "also show where this rank is and what it holds");
    return [given] {
        check_usage(*given);
        return run(*given);
    };
}

} // namespace inspect
