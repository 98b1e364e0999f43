#include "options.hpp"

#include <cstdlib>
#include <sstream>

#include <CLI/CLI.hpp>

#include "common/place_options.hpp"

namespace demo {
namespace {

constexpr const char* about =
    "Decodes over a KV cache of a million tokens that is sharded over ranks, and compares every output with an "
    "unsharded double-precision reference. Ranks are threads of this process, or the processes that mpirun starts.";

constexpr const char* notes =
    "The last step decodes with TOKENS tokens in the cache; the earlier steps have as many fewer as there are query "
    "rows in the steps after them. With --batch every request holds that many, the r-th r * (ranks * interleave + 3) "
    "fewer, so that lengths differ.\n"
    "Exit status: 0 right, 1 wrong result, 2 wrong usage, illegal configuration or too little memory.";

// The parts of "a,b,c".
std::vector<std::string> separated(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream stream(text + ",");
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

} // namespace

options parse_options(int argc, char** argv) {
    options given;
    CLI::App app(about, "decode_1m");
    app.footer(notes);
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast); // so that scripts have defaults
    const auto number = [&app](const char* name, auto& to, std::int64_t most, const char* description) {
        return app.add_option(name, to, description)->check(CLI::Range(std::int64_t{1}, most));
    };
    constexpr std::int64_t many = 1'000'000;
    app.add_option("--attention", given.attention, "gqa or mla")->check(CLI::IsMember({"gqa", "mla"}));
    number("--tokens", given.tokens, std::int64_t{1} << 48, "tokens of a request (1048576)");
    number("--ranks", given.ranks, 256, "ranks that share the KV, the DCP size (8)");
    number("--tp", given.tp, 256, "TP size; by default TP x PCP = ranks: 1 for gqa, all for mla");
    number("--pcp", given.pcp, 256, "PCP size");
    number("--interleave", given.interleave, std::int64_t{1} << 40, "consecutive tokens on one rank (16)");
    number("--block-size", given.block_size, std::int64_t{1} << 40, "tokens of a block of the paged cache (16)");
    std::string merges = "a2a";
    app.add_option("--merge", merges, "ag_rs, ag_ar or a2a; several with commas are run one after another (a2a)")
        ->check([](const std::string& text) {
            for (const std::string& name : separated(text))
                if (name != "ag_rs" && name != "ag_ar" && name != "a2a") return "there is no merge '" + name + "'";
            return std::string();
        });
    app.add_option("--placement", given.placement, "own_heads, scattered or all_heads: what a rank holds in the end")
        ->check(CLI::IsMember({"own_heads", "scattered", "all_heads"}));
    number("--q-heads", given.q_heads, many, "query heads of the model (64, mla 128)");
    number("--kv-heads", given.kv_heads, many, "KV heads of the model (8, mla 1)");
    number("--head-dim", given.head_dim, 65536, "gqa: width of a head (128)");
    app.add_option("--kv-type", given.kv_type, "bf16, f16 or fp8 (e4m3 with a scale for each of K and V)")
        ->check(CLI::IsMember({"bf16", "f16", "fp8"}));
    number("--layers", given.layers, many, "layers, each with its own cache (1)");
    number("--batch", given.batch, many, "requests (1)");
    number("--query-rows", given.query_rows, many, "query rows of a request and step (1)");
    number("--steps", given.steps, many, "decode steps, each with its own new tokens (3)");
    number("--threads-per-rank", given.threads_per_rank, 4096, "threads of a rank (1)");
    add_place_options(app, given.backend, given.comm, given.id_file);
    app.add_option("--seed", given.seed, "of the random data (1)");
    app.add_option("--inject", given.inject, "makes a fault that the comparison must find; the exit status is then 1")
        ->check(
            CLI::IsMember({"mean_merge", "wrong_base", "drop_newest", "double_newest", "drop_shard", "swap_group"}));
    app.add_flag("--fit", given.fit, "with too little memory take the largest power of two of tokens that fits");
    app.add_flag("--json", given.json, "end with one JSON line for each merge");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        std::exit(app.exit(problem) == 0 ? 0 : 2);
    }
    given.merges = separated(merges);
    return given;
}

} // namespace demo
