#include "problem.hpp"

#include <algorithm>
#include <cmath>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/paged.hpp>

namespace demo {
namespace {

fault fault_named(const std::string& name) {
    if (name == "context_short") return fault::context_short;
    if (name == "chunks_swapped") return fault::chunks_swapped;
    return name == "pad_kept" ? fault::pad_kept : fault::none;
}

// The runs that were asked for; with one rank there is but one way.
std::vector<configuration> configurations_of(const options& given) {
    using ctxpar::prefill_path;
    std::vector<configuration> all;
    for (const std::int64_t dcp : given.dcp) {
        if (dcp == 1 || given.path == "automatic") {
            all.push_back({dcp, prefill_path::automatic});
            continue;
        }
        if (given.path != "gather_kv") all.push_back({dcp, prefill_path::gather_q});
        if (given.path != "gather_q") all.push_back({dcp, prefill_path::gather_kv});
    }
    return all;
}

void check_fault(const problem& all) {
    ctxpar::require(all.injected != fault::pad_kept || all.chunk % (2 * all.pcp) % all.pcp != 0, "inject",
                    "pad_kept needs ranks with pads, and ", all.chunk, " rows over pcp ", all.pcp,
                    " leave none; --chunk ", all.chunk - 1, " does where pcp is above 1");
    ctxpar::require(all.injected != fault::chunks_swapped || all.chunk >= 2 * all.pcp, "inject",
                    "to swap two chunks --chunk must be at least twice pcp, ", 2 * all.pcp, "; it is ", all.chunk);
}

} // namespace

const char* configuration::name() const {
    if (dcp == 1) return "local";
    if (path == ctxpar::prefill_path::automatic) return "automatic";
    return path == ctxpar::prefill_path::gather_q ? "gather_q" : "gather_kv";
}

std::int64_t problem::largest_dcp() const {
    std::int64_t largest = 1;
    for (const configuration& each : configurations) largest = std::max(largest, each.dcp);
    return largest;
}

ctxpar::mesh problem::ranks(std::int64_t dcp) const {
    ctxpar::topology sizes;
    sizes.pcp = pcp;
    sizes.dcp = dcp;
    return {sizes, {ctxpar::attention_kind::gqa, q_heads, kv_heads}};
}

std::int64_t problem::blocks(std::int64_t dcp) const {
    return ctxpar::table_width(law(dcp), block_size, tokens);
}

problem make_problem(const options& given) {
    problem all;
    all.tokens = given.tokens;
    all.chunk = given.chunk;
    all.pcp = given.pcp;
    all.q_heads = given.q_heads;
    all.kv_heads = given.kv_heads;
    all.head_dim = given.head_dim;
    all.interleave = given.interleave;
    all.block_size = given.block_size;
    all.workspace_rows = given.workspace;
    all.threads_per_rank = given.threads_per_rank;
    all.instructions = given.portable ? ctxpar::cpu::isa::portable : ctxpar::cpu::best_isa();
    all.softmax_scale = 1.0F / std::sqrt(static_cast<float>(given.head_dim));
    all.on_gpus = given.backend == "cuda";
    all.through_nccl = given.comm == "nccl";
    all.id_file = given.id_file;
    ctxpar::require(all.on_gpus || !all.through_nccl, "comm",
                    "--comm nccl is for --backend cuda; ranks on a CPU are threads of one process, --comm local, or "
                    "processes, --comm mpi");
    all.seed = given.seed;
    all.injected = fault_named(given.inject);
    all.configurations = configurations_of(given);
    for (const configuration& each : all.configurations) (void)all.ranks(each.dcp); // refuses an illegal topology
    ctxpar::require(all.chunk <= all.tokens, "chunk", "--chunk is ", all.chunk, " and --tokens ", all.tokens,
                    "; a prompt has at least the rows that are prefilled");
    check_fault(all);
    return all;
}

} // namespace demo
