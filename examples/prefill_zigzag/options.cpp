#include "options.hpp"

#include <cstdlib>

#include <CLI/CLI.hpp>

#include "common/place_options.hpp"

namespace demo {
namespace {

constexpr const char* about =
    "Prefills the last rows of a long prompt over PCP ranks that share a sharded KV cache, once for every way in which "
    "rows can meet the keys of other ranks, and compares outputs and LSEs with an unsharded double-precision "
    "reference. Ranks are threads of this process, or the processes that mpirun starts.";

constexpr const char* notes =
    "The first TOKENS - CHUNK tokens are filled by append, CHUNK at a time. The long form is --tokens 131072 --chunk "
    "8192.\n"
    "Exit status: 0 right, 1 wrong result, 2 wrong usage, illegal configuration or too little memory.";

} // namespace

options parse_options(int argc, char** argv) {
    options given;
    CLI::App app(about, "prefill_zigzag");
    app.footer(notes);
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast); // so that scripts have defaults
    const auto number = [&app](const char* name, auto& to, std::int64_t most, const char* description) {
        return app.add_option(name, to, description)->check(CLI::Range(std::int64_t{1}, most));
    };
    constexpr std::int64_t many = 1'000'000;
    number("--tokens", given.tokens, std::int64_t{1} << 40, "tokens of the prompt (32768)");
    number("--chunk", given.chunk, std::int64_t{1} << 24, "rows of a step, the last of which is attended (4096)");
    number("--pcp", given.pcp, 256, "PCP ranks, over which rows are split (4)");
    number("--dcp", given.dcp, 256, "DCP sizes, with commas: ranks that share the KV (1,4)")
        ->delimiter(',')
        ->expected(1, 64)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_option("--path", given.path, "gather_q, gather_kv, both, or automatic: what sends fewer bytes (both)")
        ->check(CLI::IsMember({"both", "gather_q", "gather_kv", "automatic"}));
    number("--q-heads", given.q_heads, many, "query heads of the model (32)");
    number("--kv-heads", given.kv_heads, many, "KV heads of the model (8)");
    number("--head-dim", given.head_dim, 65536, "width of a head (128)");
    number("--interleave", given.interleave, std::int64_t{1} << 40, "consecutive tokens on one rank (16)");
    number("--block-size", given.block_size, std::int64_t{1} << 40, "tokens of a block of the paged cache (16)");
    number("--workspace", given.workspace, std::int64_t{1} << 40,
           "tokens of context that are gathered at once on the way gather_kv (8192)");
    number("--threads", given.threads_per_rank, 4096, "threads of a rank (1)");
    add_place_options(app, given.backend, given.comm, given.id_file);
    app.add_option("--seed", given.seed, "of the random data (1)");
    app.add_option("--inject", given.inject, "makes a fault that the comparison must find; the exit status is then 1")
        ->check(CLI::IsMember({"context_short", "chunks_swapped", "pad_kept"}));
    app.add_flag("--portable", given.portable, "use the kernels that run on any processor");
    app.add_flag("--json", given.json, "end with one JSON line for each configuration");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        std::exit(app.exit(problem) == 0 ? 0 : 2);
    }
    return given;
}

} // namespace demo
