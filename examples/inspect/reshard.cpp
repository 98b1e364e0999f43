// reshard: which cached tokens go from which rank to which where a request changes its layout.
#include <memory>

#include <fmt/format.h>

#include <ctxpar/layout/reshard.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    numbers from, to;
    std::int64_t length = 0;
};

ctxpar::ownership layout_of(const char* name, const numbers& given) {
    ctxpar::require(given.size() == 2, "usage", name, " has ", given.size(), " numbers (", joined(given),
                    "); a layout is two, RANKS,INTERLEAVE, such as 4,16");
    return {given[0], given[1]};
}

answer run(const options& given) {
    const ctxpar::ownership from = layout_of("--from", given.from), to = layout_of("--to", given.to);
    const ctxpar::reshard_law law = ctxpar::make_reshard(from, to);
    ctxpar::check_length(given.length);
    constexpr std::int64_t numbers_of_run = 5;
    check_readable({law.run_bound(0, given.length), numbers_of_run});

    json moves = json::array();
    table rows({"from rank", "index", "to rank", "index", "tokens"});
    ctxpar::for_each_run(law, 0, given.length, [&](const ctxpar::reshard_run& run) {
        moves.push_back({run.src_rank, run.src_local, run.dst_rank, run.dst_local, run.count});
        rows.row({fmt::format("{}", run.src_rank), fmt::format("{}", run.src_local), fmt::format("{}", run.dst_rank),
                  fmt::format("{}", run.dst_local), fmt::format("{}", run.count)});
    });
    const std::int64_t moved = law.moved(0, given.length), kept = law.kept(0, given.length);
    std::string text = fmt::format("{} tokens change rank, {} stay; indexes are among a rank's own tokens\n{}", moved,
                                   kept, rows.text());
    return {{{"moves", std::move(moves)}, {"moved", moved}, {"kept", kept}}, std::move(text)};
}

} // namespace

std::function<answer()> reshard_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    list(app, "--from", given->from, "the layout of the cache: RANKS,INTERLEAVE");
    list(app, "--to", given->to, "the layout it is to have: RANKS,INTERLEAVE");
    number(app, need::required, "--length", given->length, "cached tokens of the request");
    return [given] { return run(*given); };
}

} // namespace inspect
