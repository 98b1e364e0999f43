#include "problem.hpp"

#include <algorithm>
#include <cmath>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/paged.hpp>

namespace demo {
namespace {

constexpr std::int64_t mla_latent = 512;
constexpr std::int64_t mla_rope = 64;
constexpr std::int64_t mla_nope = 128; // width of a key without rope before absorption; the softmax scale knows it
constexpr std::int64_t most_threads = 1024;

fault fault_named(const std::string& name) {
    if (name == "mean_merge") return fault::mean_merge;
    if (name == "wrong_base") return fault::wrong_base;
    if (name == "drop_newest") return fault::drop_newest;
    if (name == "double_newest") return fault::double_newest;
    if (name == "drop_shard") return fault::drop_shard;
    return name == "swap_group" ? fault::swap_group : fault::none;
}

ctxpar::output_placement placement_named(const std::string& name) {
    if (name == "scattered") return ctxpar::output_placement::scattered;
    return name == "all_heads" ? ctxpar::output_placement::all_heads : ctxpar::output_placement::own_heads;
}

// DCP adds no ranks: it regroups those of TP and PCP. GQA with 8 KV heads shares its KV over PCP, MLA over TP.
ctxpar::topology topology_of(const options& given) {
    ctxpar::topology sizes;
    sizes.dcp = given.ranks;
    const bool mla = given.attention == "mla";
    const auto rest = [&](std::int64_t other) { return std::max<std::int64_t>(1, given.ranks / other); };
    sizes.tp = given.tp.value_or(given.pcp ? rest(*given.pcp) : (mla ? given.ranks : 1));
    sizes.pcp = given.pcp.value_or(rest(sizes.tp));
    return sizes;
}

void check_fault(const problem& all) {
    const bool at_merge =
        all.injected == fault::mean_merge || all.injected == fault::wrong_base || all.injected == fault::drop_shard;
    ctxpar::require(!at_merge || all.law.ranks > 1, "inject",
                    "this fault is one of the merge, and one rank merges nothing; --ranks must be at least 2");
    ctxpar::require(all.injected != fault::swap_group ||
                        all.filled(all.requests - 1) >= all.law.unit() + all.law.interleave,
                    "inject", "to swap two interleave groups of a rank every request must be filled with at least ",
                    all.law.unit() + all.law.interleave, " tokens, and one has ", all.filled(all.requests - 1));
}

} // namespace

std::int64_t problem::filled(std::int64_t request) const {
    return std::max<std::int64_t>(0, tokens - steps * query_rows - request * (law.unit() + 3));
}

std::int64_t problem::blocks_per_request() const {
    return ctxpar::table_width(law, block_size, room());
}

std::int64_t problem::token_bytes() const {
    const std::int64_t element = kv_type == ctxpar::scalar_type::e4m3 ? 1 : 2;
    return (is_mla() ? query_width : query_width + value_width) * ranks().kv_heads_per_rank() * element;
}

double problem::pool_bytes_per_rank() const {
    return static_cast<double>(blocks_per_request()) * static_cast<double>(block_size) * static_cast<double>(requests) *
           static_cast<double>(layers) * static_cast<double>(token_bytes());
}

problem make_problem(const options& given) {
    problem all;
    const bool mla = given.attention == "mla";
    ctxpar::require(!mla || !given.head_dim, "usage", "--head-dim belongs to --attention gqa; an MLA row is ",
                    mla_latent, " + ", mla_rope, " wide");
    all.kind = mla ? ctxpar::attention_kind::mla : ctxpar::attention_kind::gqa;
    all.sizes = topology_of(given);
    all.q_heads = given.q_heads.value_or(mla ? 128 : 64);
    all.kv_heads = given.kv_heads.value_or(mla ? 1 : 8);
    all.value_width = mla ? mla_latent : given.head_dim.value_or(128);
    all.query_width = mla ? mla_latent + mla_rope : all.value_width;
    all.softmax_scale = 1.0F / std::sqrt(static_cast<float>(mla ? mla_nope + mla_rope : all.query_width));
    if (given.kv_type == "f16") all.kv_type = ctxpar::scalar_type::f16;
    if (given.kv_type == "fp8") {
        all.kv_type = ctxpar::scalar_type::e4m3;
        all.k_scale = 0.021F;
        all.v_scale = mla ? all.k_scale : 0x1p-6F; // makes ties when values are rounded
    }
    all.law = ctxpar::make_ownership(given.ranks, given.interleave);
    all.tokens = given.tokens;
    all.block_size = given.block_size;
    all.layers = given.layers;
    all.requests = given.batch;
    all.query_rows = given.query_rows;
    all.steps = given.steps;
    all.threads_per_rank = given.threads_per_rank;
    all.on_gpus = given.backend == "cuda";
    all.through_nccl = given.comm == "nccl";
    all.id_file = given.id_file;
    ctxpar::require(all.on_gpus || !all.through_nccl, "comm",
                    "--comm nccl is for --backend cuda; ranks on a CPU are "
                    "threads of one process, --comm local, or processes, --comm mpi");
    all.seed = given.seed;
    all.injected = fault_named(given.inject);
    all.placement = placement_named(given.placement);
    const std::int64_t world = all.ranks().world_size(); // refuses an illegal topology
    ctxpar::require(world <= most_threads, "usage", "tp ", all.sizes.tp, " x pcp ", all.sizes.pcp, " is ", world,
                    " ranks; each is a thread of this program, which makes at most ", most_threads);
    ctxpar::require(all.steps * all.query_rows <= all.tokens, "tokens", all.steps, " steps of ", all.query_rows,
                    " query rows decode ", all.steps * all.query_rows, " new tokens; --tokens is ", all.tokens,
                    " and must be at least that");
    check_fault(all);
    return all;
}

} // namespace demo
