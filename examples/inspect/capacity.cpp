// capacity: how many tokens a deployment's KV caches have room for, and what follows from that.
#include <algorithm>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/mesh.hpp>
#include <ctxpar/layout/paged.hpp>

#include <common/text.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

using ctxpar::require;
using demo::counted;
using demo::grouped;

struct options {
    ctxpar::topology sizes;
    std::int64_t layers = 0, element_bytes = 0, interleave = 1, block_size = 16;
    std::optional<std::int64_t> kv_heads, head_dim, latent, rope, memory, gpu_memory, weights, sequence;
    bool mla = false;
};

void check_usage(const options& given) {
    require(!given.mla || (!given.kv_heads && !given.head_dim), "usage",
            "--mla excludes --kv-heads and --head-dim; it has --latent and --rope");
    require(given.mla || (given.kv_heads && given.head_dim), "usage",
            "the KV heads are missing; give --kv-heads and --head-dim, or --mla");
    require(given.mla || (!given.latent && !given.rope), "usage", "--latent and --rope belong to --mla");
    require(given.memory.has_value() != given.gpu_memory.has_value(), "usage",
            "give the memory of one GPU, either for KV as --memory, or all of it as --gpu-memory with --weights");
    require(given.gpu_memory.has_value() == given.weights.has_value(), "usage",
            "--gpu-memory and --weights belong together");
}

// How many query heads there are is nothing to a cache: as many as suit both sizes.
ctxpar::mesh mesh_of(const options& given) {
    if (given.mla) return {given.sizes, {ctxpar::attention_kind::mla, 0, 1}, ctxpar::topology_rules::general};
    const std::int64_t heads = *given.kv_heads, tp = given.sizes.tp;
    require(heads <= ctxpar::max_world_size, "size", "--kv-heads is ", heads, "; it must be at most ",
            ctxpar::max_world_size);
    const bool known = heads >= 1 && tp >= 1 && tp <= ctxpar::max_world_size;
    return {given.sizes,
            {ctxpar::attention_kind::gqa, known ? std::lcm(heads, tp) : heads, heads},
            ctxpar::topology_rules::general};
}

// What one token takes.
struct token_bytes {
    std::int64_t model = 0; // once, all layers
    std::int64_t rank = 0;  // on each rank that owns it
};

token_bytes bytes_of(const options& given, const ctxpar::mesh& mesh) {
    const auto at_least_one = [](const char* name, std::int64_t value) {
        require(value >= 1, "size", name, " is ", value, "; it must be at least 1");
    };
    const std::int64_t latent = given.latent.value_or(512), rope = given.rope.value_or(64);
    at_least_one("--layers", given.layers);
    if (given.mla) at_least_one("--latent", latent);
    if (given.mla) at_least_one("--rope", rope);
    if (!given.mla) at_least_one("--head-dim", *given.head_dim);
    at_least_one("--element-bytes", given.element_bytes);
    const double widths = given.mla ? static_cast<double>(latent) + static_cast<double>(rope)
                                    : 2 * static_cast<double>(*given.head_dim) * static_cast<double>(*given.kv_heads);
    const double bytes = static_cast<double>(given.layers) * static_cast<double>(given.element_bytes) * widths *
                         static_cast<double>(given.block_size);
    require(bytes < 0x1p60, "size", "a block of all layers has about ", fmt::format("{:.3g}", bytes),
            " bytes; layers x widths x bytes x block size must be below 2^60");
    const std::int64_t each = given.layers * given.element_bytes;
    if (given.mla) return {each * (latent + rope), each * (latent + rope)};
    const ctxpar::head_range held = mesh.kv_heads(0);
    return {each * 2 * *given.head_dim * *given.kv_heads, each * 2 * *given.head_dim * (held.last - held.first)};
}

std::int64_t memory_of(const options& given) {
    const auto at_least_zero = [](const char* name, std::int64_t value) {
        require(value >= 0, "memory", name, " is ", value, " bytes; it must be at least 0");
    };
    if (given.memory) at_least_zero("--memory", *given.memory);
    if (given.memory) return *given.memory;
    at_least_zero("--gpu-memory", *given.gpu_memory);
    at_least_zero("--weights", *given.weights);
    require(*given.weights <= *given.gpu_memory, "memory", "the weights of a GPU take ", *given.weights, " of its ",
            *given.gpu_memory, " bytes; they must leave some");
    return *given.gpu_memory - *given.weights;
}

// What the caches have room for.
struct room {
    std::int64_t interleave = 1, block_size = 1;
    std::int64_t blocks = 0; // of a rank

    // The longest sequence over so many ranks: up to the first token that the fullest, the first, can not take.
    std::int64_t longest(std::int64_t ranks) const {
        return ctxpar::make_ownership(ranks, interleave).global(blocks * block_size, 0);
    }
};

// The way to a deployment, one sentence a step.
std::vector<std::string> path_of(const options& given, const room& all, const numbers& legal,
                                 const std::optional<std::int64_t>& least_dcp) {
    const std::int64_t alone = all.longest(1), sequence = given.sequence.value_or(0), largest = legal.back();
    std::string dcp = fmt::format("one rank alone has room for {}; ", counted(alone, "token"));
    if (!given.sequence)
        dcp += fmt::format("a longer request needs DCP, which reaches {} at the largest legal size, {}",
                           grouped(all.longest(largest)), largest);
    else if (sequence <= alone)
        dcp += fmt::format("the longest request, {}, fits, and DCP is not required", counted(sequence, "token"));
    else if (least_dcp)
        dcp += fmt::format("the longest request, {}, exceeds that: DCP is required, of {} ranks or more",
                           counted(sequence, "token"), *least_dcp);
    else
        dcp += fmt::format("the longest request, {}, exceeds that and the {} of the largest legal DCP, {}: more ranks, "
                           "memory or fewer bytes a token are required",
                           counted(sequence, "token"), grouped(all.longest(largest)), largest);
    if (!given.mla && largest == 1 && given.sizes.tp > 1 && *given.kv_heads >= given.sizes.tp)
        dcp +=
            fmt::format("; with {} KV heads over tp {} DCP inside TP removes no copy and is not legal: share over PCP "
                        "ranks or replicas",
                        *given.kv_heads, given.sizes.tp);
    std::string pcp =
        "is TTFT still too long at moderate concurrency? add PCP; it fits best for 32K to 256K input tokens";
    if (given.sequence)
        pcp += sequence >= 32768 && sequence <= 262144 ? ", as here"
                                                       : fmt::format(", here there are {}", grouped(sequence));
    std::string moved =
        "is the cache moved between machines? take the block size as interleave where the kernels allow it";
    moved += given.interleave == given.block_size ? ", as here"
                                                  : fmt::format(", {} and not {}", given.block_size, given.interleave);
    return {std::move(dcp), std::move(pcp), "mostly requests below 32K, and very many of them? plain DP, no CP",
            "a mixture? dynamic CP, with the Q projection split so that no gather of Q is needed", std::move(moved)};
}

// The numbers of an answer, each as a value and as a line.
class lines {
public:
    lines() : rows_({"KV cache", "size"}) {}

    void add(const char* name, std::int64_t value, const char* label, const char* unit = "") {
        values[name] = value;
        rows_.row({label, fmt::format("{}{}{}", grouped(value), *unit != 0 ? " " : "", unit)});
    }
    std::string text() const { return rows_.text(); }

    json values;

private:
    table rows_;
};

// What one sequence takes; returns the smallest legal DCP that has room for it.
std::optional<std::int64_t> add_sequence(lines& to, const options& given, const room& all, const token_bytes& token,
                                         const numbers& legal) {
    const std::int64_t sequence = *given.sequence, block_bytes = token.rank * given.block_size;
    const std::int64_t blocks =
        ctxpar::table_width(ctxpar::make_ownership(given.sizes.dcp, given.interleave), given.block_size, sequence);
    const double bytes = static_cast<double>(token.model) * static_cast<double>(sequence);
    const double held = static_cast<double>(block_bytes) * static_cast<double>(blocks);
    require(bytes < 0x1p62 && held < 0x1p62, "length", "a sequence of ", sequence, " tokens has about ",
            fmt::format("{:.3g}", bytes), " bytes of KV; it must have less than 2^62");
    to.add("sequence_bytes", token.model * sequence, "the given sequence, without copies", "bytes");
    to.add("sequence_blocks", blocks, "on its fullest rank", "blocks");
    to.add("sequence_rank_bytes", blocks * block_bytes, "that is", "bytes");
    if (blocks > 0) to.add("sequences_at_once", all.blocks / blocks, "at once", "such sequences");
    const auto least =
        std::find_if(legal.begin(), legal.end(), [&](std::int64_t size) { return all.longest(size) >= sequence; });
    if (least == legal.end()) return {};
    return *least;
}

room room_of(const options& given, std::int64_t memory, std::int64_t block_bytes, std::int64_t largest_dcp) {
    const room all{given.interleave, given.block_size, memory / block_bytes};
    require(all.blocks >= 1, "memory", "there are ", memory, " bytes for KV on a GPU; a block of ", given.block_size,
            " tokens takes ", block_bytes);
    const double ranks = static_cast<double>(largest_dcp);
    const double tokens = static_cast<double>(all.blocks) * static_cast<double>(given.block_size) * ranks;
    require(tokens < 0x1p60, "memory", "there is room for about ", fmt::format("{:.3g}", tokens),
            " tokens; it must be for less than 2^60");
    require(static_cast<double>(given.interleave) * ranks < 0x1p60, "interleave", "the interleave is ",
            given.interleave, " tokens; over ", largest_dcp, " ranks it must be below 2^60");
    return all;
}

answer run(const options& given) {
    const ctxpar::mesh mesh = mesh_of(given);
    const std::int64_t ranks = given.sizes.dcp;
    ctxpar::make_ownership(ranks, given.interleave);
    ctxpar::check_length(given.sequence.value_or(0));
    ctxpar::check_block_size(given.block_size);
    const token_bytes token = bytes_of(given, mesh);
    const std::int64_t memory = memory_of(given), block_bytes = token.rank * given.block_size;
    const numbers legal = mesh.legal_dcp();
    const room all = room_of(given, memory, block_bytes, legal.back());
    const std::int64_t rank_tokens = all.blocks * given.block_size;

    lines found;
    found.add("kv_bytes_per_token", token.model, "a token, all layers", "bytes");
    found.add("rank_bytes_per_token", token.rank, "of it on each rank that owns the token", "bytes");
    // Each rank holds its part of one token in `ranks`.
    found.add("copies", mesh.world_size() * token.rank / (ranks * token.model), "copies in the mesh");
    found.add("memory", memory, "room on a rank", "bytes");
    found.add("block_bytes", block_bytes, "a block", "bytes");
    found.add("blocks_per_rank", all.blocks, "a rank", "blocks");
    found.add("tokens_per_rank", rank_tokens, "that is", "tokens");
    found.add("longest_sequence", all.longest(ranks), "one sequence, at most", "tokens");
    found.add("tokens_in_all", rank_tokens * ranks, "all sequences, at most", "tokens");
    std::optional<std::int64_t> least_dcp;
    if (given.sequence) {
        least_dcp = add_sequence(found, given, all, token, legal);
        found.values["least_dcp"] = least_dcp ? json(*least_dcp) : json();
    }
    found.values["legal_dcp"] = legal;
    const std::vector<std::string> path = path_of(given, all, legal, least_dcp);
    found.values["path"] = path;
    std::string text = found.text();
    for (std::size_t i = 0; i < path.size(); ++i) text += fmt::format("{}. {}\n", i + 1, path[i]);
    return {std::move(found.values), std::move(text)};
}

} // namespace

std::function<answer()> capacity_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--layers", given->layers, "layers with a KV cache");
    number(app, "--kv-heads", given->kv_heads, "gqa: KV heads of the model");
    number(app, "--head-dim", given->head_dim, "gqa: width of a head");
    flag(app, "--mla", given->mla, "latent attention: one KV head, replicated");
    number(app, "--latent", given->latent, "mla: width of the latent (512)");
    number(app, "--rope", given->rope, "mla: width of the rope part (64)");
    number(app, need::required, "--element-bytes", given->element_bytes, "bytes of an element of K and V");
    bytes(app, "--memory", given->memory, "memory for KV on a GPU, such as 80GiB or 80GB");
    bytes(app, "--gpu-memory", given->gpu_memory, "all memory of a GPU");
    bytes(app, "--weights", given->weights, "of it, what is not for KV");
    number(app, need::optional, "--tp", given->sizes.tp, "tensor parallel size (1)");
    number(app, need::optional, "--pcp", given->sizes.pcp, "prefill context parallel size (1)");
    number(app, need::optional, "--dcp", given->sizes.dcp, "ranks that share the KV (1)");
    number(app, need::optional, "--interleave", given->interleave, "tokens dealt to a rank at a time (1)");
    number(app, need::optional, "--block-size", given->block_size, "tokens of a block on one rank (16)");
    number(app, "--sequence", given->sequence, "tokens of the longest request");
    return [given] {
        check_usage(*given);
        return run(*given);
    };
}

} // namespace inspect
