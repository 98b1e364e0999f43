#include "options.hpp"

#include <cstdlib>
#include <map>

#include <CLI/CLI.hpp>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/paged.hpp>

#include "common/place_options.hpp"

namespace demo {
namespace {

constexpr const char* about =
    "Serves four requests in steps in which some prefill while others decode, over TP x PCP ranks that share a sharded "
    "KV cache, and compares every row with an unsharded run. Ranks are threads of this process, or the "
    "processes that mpirun starts.";

constexpr const char* notes = "Exit status: 0 right, 1 wrong result, 2 wrong usage or illegal configuration.";

} // namespace

std::int64_t options::blocks() const {
    return ctxpar::table_width(ctxpar::make_ownership(sizes.dcp, interleave), block_size, longest);
}

void options::check() const {
    ctxpar::require(on_gpus() || comm != "nccl", "comm",
                    "--comm nccl is for --backend cuda; ranks on a CPU are threads of one process, --comm local, or "
                    "processes, --comm mpi");
}

options parse_options(int argc, char** argv) {
    using ctxpar::prefill_path;
    options given;
    given.sizes.tp = 2;
    given.sizes.pcp = 2;
    given.sizes.dcp = 4;
    CLI::App app(about, "mixed_batch");
    app.footer(notes);
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    const auto number = [&app](const char* name, std::int64_t& to, std::int64_t most, const char* description) {
        return app.add_option(name, to, description)->check(CLI::Range(std::int64_t{1}, most));
    };
    number("--tp", given.sizes.tp, 64, "TP ranks, over which heads are split (2)");
    number("--pcp", given.sizes.pcp, 64, "PCP ranks, over which the rows of prefills are split (2)");
    number("--dcp", given.sizes.dcp, 64, "DCP size, ranks that share the KV of a head (4)");
    number("--kv-heads", given.kv_heads, options::q_heads, "KV heads of the model (1); it has 8 query heads");
    number("--interleave", given.interleave, 1'000'000, "consecutive tokens on one rank (8)");
    number("--chunk", given.chunk, options::longest, "tokens of one prompt in a step, at most (128)");
    std::string path = "automatic";
    app.add_option("--path", path, "how the rows of prefills meet keys: gather_q, gather_kv or automatic (automatic)")
        ->check(CLI::IsMember({"automatic", "gather_q", "gather_kv"}));
    app.add_option("--seed", given.seed, "of the model (1)");
    add_place_options(app, given.backend, given.comm, given.id_file);
    std::string fault;
    app.add_option("--inject", fault, "makes a fault that the comparison must find; the exit status is then 1")
        ->check(CLI::IsMember({"computed_short"}));
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        std::exit(app.exit(problem) == 0 ? 0 : 2);
    }
    given.path = std::map<std::string, prefill_path>{{"automatic", prefill_path::automatic},
                                                     {"gather_q", prefill_path::gather_q},
                                                     {"gather_kv", prefill_path::gather_kv}}[path];
    given.computed_short = !fault.empty();
    return given;
}

} // namespace demo
