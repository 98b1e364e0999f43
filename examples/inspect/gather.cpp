// gather: the chunks in which cached context goes through a workspace, and where each token of a chunk then lies.
#include <memory>

#include <fmt/format.h>

#include <ctxpar/layout/gather.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    std::int64_t ranks = 0, interleave = 0, workspace = 0;
    numbers contexts;
};

// Refuses a plan of more tokens or chunks than anyone can read, before it is made.
void check_size(const ctxpar::gather_law& gather, const numbers& contexts) {
    std::int64_t tokens = 0, rounds = 0;
    for (const std::int64_t context : contexts) {
        check_readable({context});
        tokens += context;
        rounds += gather.rows_for(context) / gather.law.interleave;
    }
    constexpr std::int64_t numbers_of_chunk = 32; // what its frame is worth
    check_readable({tokens});
    check_readable({rounds / gather.units, numbers_of_chunk});
}

std::string chunk_text(const ctxpar::gather_law& gather, const ctxpar::planned_chunk& chunk) {
    table rows({"request", "tokens", "first row"});
    for (const ctxpar::context_span& span : chunk.spans) {
        rows.row({fmt::format("{}", span.request), fmt::format("{}..{}", span.start, span.start + span.length),
                  fmt::format("{}", span.row)});
    }
    return fmt::format("{}gathered row of each token: {}\n", rows.text(),
                       joined(ctxpar::gathered_index(gather, chunk)));
}

answer run(const options& given) {
    const ctxpar::ownership law = ctxpar::make_ownership(given.ranks, given.interleave);
    for (const std::int64_t context : given.contexts) ctxpar::check_length(context);
    const ctxpar::gather_law gather = ctxpar::make_gather(law, given.workspace);
    check_size(gather, given.contexts);

    json chunks = json::array();
    std::string text = fmt::format("{} of {} rows of the workspace are used; tokens a..b do not include b\n",
                                   gather.workspace_rows(), given.workspace);
    for (const ctxpar::planned_chunk& chunk : ctxpar::plan_gather(gather, given.contexts)) {
        json spans = json::array();
        for (const ctxpar::context_span& span : chunk.spans) spans.push_back({span.request, span.start, span.length});
        text += fmt::format("\nchunk {}: {} rows of each rank\n", chunks.size(), chunk.rows_per_rank);
        text += chunk_text(gather, chunk);
        chunks.push_back({{"spans", std::move(spans)},
                          {"rows_per_rank", chunk.rows_per_rank},
                          {"index", ctxpar::gathered_index(gather, chunk)}});
    }
    return {{{"chunks", std::move(chunks)}}, std::move(text)};
}

} // namespace

std::function<answer()> gather_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--ranks", given->ranks, "ranks that share the KV");
    number(app, need::required, "--interleave", given->interleave, "consecutive tokens on one rank");
    list(app, "--contexts", given->contexts, "cached tokens of each request");
    number(app, need::required, "--workspace", given->workspace, "rows of the workspace, all ranks together");
    return [given] { return run(*given); };
}

} // namespace inspect
