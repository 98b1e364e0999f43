#include "options.hpp"

#include <cstdlib>

#include <CLI/CLI.hpp>

namespace serve {
namespace {

constexpr const char* about =
    "Serves a trace of requests on a toy transformer whose KV cache is sharded with ctxpar, over ranks that are "
    "threads "
    "of this process with a core each: every request on one rank, every request on all of them, and on as many as a "
    "cost model finds best. Every token is compared with a run on one rank. Then the same scheduler on a virtual "
    "clock, "
    "for more ranks and longer prompts.";
constexpr const char* notes =
    "Exit status: 0 right, 1 wrong tokens (or, with --require-best, a dynamic size that loses), 2 wrong usage.";

} // namespace

std::int64_t options::blocks(std::int64_t longest) const {
    const std::int64_t tokens = pool_tokens > 0 ? pool_tokens : 2 * longest + longest / 2;
    return (tokens + block_size - 1) / block_size;
}

options parse_options(int argc, char** argv) {
    options given;
    given.calibration = SERVE_CALIBRATION;
    CLI::App app(about, "serve");
    app.footer(notes);
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    const auto number = [&app](const char* name, std::int64_t& to, std::int64_t most, const char* description) {
        return app.add_option(name, to, description)->check(CLI::Range(std::int64_t{1}, most));
    };
    number("--requests", given.trace.requests, 100'000, "of the trace (48)");
    number("--shortest", given.trace.shortest, 1'000'000, "tokens of the shortest prompt (256)");
    number("--longest", given.trace.longest, 1'000'000, "tokens of the longest prompt (32768)");
    number("--outputs", given.trace.outputs, 100'000, "tokens that a request generates on the average (64)");
    auto* const rate = app.add_option("--rate", given.trace.rate, "mean arrivals a second")->check(CLI::PositiveNumber);
    app.add_option("--load", given.load, "instead: what part of the time the ranks should be busy (0.5)")
        ->check(CLI::Range(0.01, 10.0))
        ->excludes(rate);
    app.add_option("--seed", given.trace.seed, "of the trace and the model (1)");
    number("--ranks", given.ranks, 64, "of the measured part (2)");
    app.add_option("--sizes", given.sizes, "of dynamic CP, each dividing the next (1 to all ranks)")->delimiter(',');
    number("--interleave", given.interleave, 1'000'000, "consecutive tokens on one rank (16)");
    number("--block-size", given.block_size, 65'536, "tokens of a block (16)");
    number("--chunk", given.chunk, 1'000'000, "rows of prefills that a rank computes in a step (512)");
    number("--rounds", given.rounds, 100, "of the measured part, of which the median counts (1)");
    number("--pool-tokens", given.pool_tokens, 1'000'000'000, "that one rank's pool holds (2.5 times the longest)");
    app.add_option("--calibration", given.calibration,
                   "a file that ctxpar-inspect calibrate wrote; else the one beside the source")
        ->check(CLI::ExistingFile);
    number("--simulated-ranks", given.simulated_ranks, 256, "(8)");
    number("--simulated-requests", given.simulated_requests, 1'000'000, "(400)");
    number("--simulated-longest", given.simulated_longest, 16'000'000,
           "tokens of the longest simulated prompt (262144)");
    app.add_flag("!--no-measure", given.measure, "only the simulated part");
    app.add_flag("!--no-simulate", given.simulate, "only the measured part");
    app.add_flag("--require-best", given.require_best,
                 "exit status 1 where dynamic is more than 5% behind the better static setting in a class");
    app.add_option("--charts", given.charts, "an existing folder for SVG charts")->check(CLI::ExistingDirectory);
    app.add_option("--inject", given.inject, "makes a fault that the comparison must find")
        ->check(CLI::IsMember({"skip_move"}));
    try {
        app.parse(argc, argv);
        if (given.trace.shortest > given.trace.longest)
            throw CLI::ValidationError("--shortest", "must be at most --longest");
    } catch (const CLI::ParseError& problem) {
        const int status = app.exit(problem);
        std::exit(status == 0 ? 0 : 2);
    }
    return given;
}

} // namespace serve
