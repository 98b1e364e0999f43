// ctxpar-inspect: shows every mapping the library makes. This file finds the command, and prints its answer or error.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

#include "arguments.hpp"

namespace {

using inspect::json;

struct entry {
    const char* name;
    const char* description;
    inspect::command* add;
};

constexpr entry commands[] = {
    {"topology", "groups, coordinates, head ranges and legal DCP sizes of a mesh of ranks", inspect::topology_command},
    {"lengths", "tokens of a sequence on each rank, and what its last rows see", inspect::lengths_command},
    {"slots", "owner and slot of token positions in the paged KV", inspect::slots_command},
    {"blocks", "blocks that each rank needs, and what prefix can be shared", inspect::blocks_command},
    {"zigzag", "rows of each rank where a step's prefills are split, and their restore", inspect::zigzag_command},
    {"gather", "chunks in which cached context is gathered, and its token order", inspect::gather_command},
    {"reshard", "runs of cached tokens that go from rank to rank where the layout changes", inspect::reshard_command},
    {"exchange", "bytes and collectives of one layer", inspect::exchange_command},
    {"merge", "the exact merge of partial results, read from standard input", inspect::merge_command},
    {"calibrate", "what this machine takes, for the cost model; measures it", inspect::calibrate_command},
    {"route", "how many ranks should share a request's KV, by measured costs", inspect::route_command},
    {"capacity", "how many tokens the KV caches of a deployment have room for", inspect::capacity_command}};

std::string help() {
    std::string text = "ctxpar-inspect COMMAND [OPTIONS] [--json]\n\n";
    for (const entry& each : commands) text += fmt::format("  {:<10} {}\n", each.name, each.description);
    return text + "\nLists are comma separated; a:b in a list is the range a..b-1. --json prints one JSON object.\n"
                  "ctxpar-inspect COMMAND --help lists the options of a command.\n";
}

const entry& find_command(const std::vector<std::string>& arguments) {
    std::string names;
    for (const entry& each : commands) {
        if (!arguments.empty() && arguments.front() == each.name) return each;
        names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
    }
    const std::string problem =
        arguments.empty() ? "there is no command" : fmt::format("there is no command '{}'", arguments.front());
    ctxpar::raise(ctxpar::config_error(
        "usage", ctxpar::sentence(problem, "; the first word must be one of ", names, ", or --help")));
}

// With the text for standard output.
inspect::answer reply(std::vector<std::string> arguments, bool as_json) {
    if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) return {{}, help()};
    const entry& chosen = find_command(arguments);
    CLI::App app(chosen.description, fmt::format("ctxpar-inspect {}", chosen.name));
    const std::function<inspect::answer()> run = chosen.add(app);
    app.footer("--json, anywhere on the line, prints one JSON object instead of a table.");
    std::reverse(arguments.begin() + 1, arguments.end()); // the parser takes arguments from the back
    try {
        app.parse(std::vector<std::string>(arguments.begin() + 1, arguments.end()));
    } catch (const CLI::CallForHelp&) {
        return {{}, app.help()};
    } catch (const CLI::ParseError& problem) {
        ctxpar::raise(ctxpar::config_error(
            "usage", ctxpar::sentence(problem.what(), "; ctxpar-inspect ", chosen.name, " --help lists the options")));
    }
    inspect::answer result = run();
    if (as_json && !result.values.is_null())
        result.text = result.values.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
    return result;
}

void print_error(const ctxpar::error& problem, const std::vector<std::int64_t>& legal, bool as_json) {
    if (!as_json) {
        fmt::print(stderr, "ctxpar-inspect: {}\n", problem.what());
        return;
    }
    const json error = {{"error", {{"code", problem.code()}, {"message", problem.what()}, {"legal", legal}}}};
    fmt::print(stderr, "{}\n", error.dump(-1, ' ', false, json::error_handler_t::replace));
}

} // namespace

int main(int argc, char** argv) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    // --json may stand anywhere, even where the line is otherwise wrong.
    const bool as_json = std::erase(arguments, "--json") > 0;
    try {
        const inspect::answer said = reply(std::move(arguments), as_json);
        const bool written = std::fwrite(said.text.data(), 1, said.text.size(), stdout) == said.text.size();
        if (written && std::fflush(stdout) == 0) return said.status;
        fmt::print(stderr, "ctxpar-inspect: standard output can not be written\n");
        return 1;
    } catch (const ctxpar::config_error& problem) {
        print_error(problem, problem.legal(), as_json);
        return 2;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "ctxpar-inspect: {}\n", problem.what());
        return 1;
    }
}
