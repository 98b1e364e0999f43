// lengths: how many tokens of a sequence each rank holds, and which of them the last rows of it may see.
#include <memory>

#include <fmt/format.h>

#include <ctxpar/attention/rows.hpp>
#include <ctxpar/layout/interleave.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    std::int64_t ranks = 0, interleave = 0;
    numbers lengths;
    std::optional<std::int64_t> query_rows, window;
};

void check(const options& given) {
    for (const std::int64_t length : given.lengths) ctxpar::check_length(length);
    if (!given.query_rows) return;
    ctxpar::require(*given.query_rows >= 0, "query_rows", "there are ", *given.query_rows,
                    " query rows; there must be at least 0");
    ctxpar::require(!given.window || *given.window >= 1, "window", "the window is ", given.window.value_or(0),
                    " tokens; it must be at least 1");
}

// [[lo, hi] for each row], local indexes of one rank.
json visible_rows(const options& given, std::int64_t length, const ctxpar::shard& part) {
    json rows = json::array();
    for (std::int64_t i = 0; i < *given.query_rows; ++i) {
        const ctxpar::mask_rule mask{.window = given.window.value_or(0)};
        const ctxpar::visible_keys keys =
            ctxpar::localise(ctxpar::causal_row(length, *given.query_rows, i, mask), part);
        rows.push_back({keys.lo, keys.hi});
    }
    return rows;
}

std::string visible_text(std::int64_t length, const json& by_rank) {
    table rows(rank_header({"row"}, static_cast<std::int64_t>(by_rank.size())));
    const std::size_t count = by_rank.empty() ? 0 : by_rank[0].size();
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<std::string> cells = {fmt::format("{}", i)};
        for (const json& rank : by_rank) {
            cells.push_back(fmt::format("{}..{}", rank[i][0].get<std::int64_t>(), rank[i][1].get<std::int64_t>()));
        }
        rows.row(std::move(cells));
    }
    return fmt::format("\nlocal indexes lo..hi (hi not included) that the rows of the sequence of {} tokens see\n{}",
                       length, rows.text());
}

answer run(const options& given) {
    const ctxpar::ownership law = ctxpar::make_ownership(given.ranks, given.interleave);
    check(given);
    const auto num_lengths = static_cast<std::int64_t>(given.lengths.size());
    check_readable({num_lengths, law.ranks});
    if (given.query_rows) check_readable({num_lengths, law.ranks, *given.query_rows, 2});

    json local_lengths = json::array(), visible = json::array();
    table lengths(rank_header({"length"}, law.ranks));
    std::string text;
    for (const std::int64_t length : given.lengths) {
        json local = json::array(), seen = json::array();
        std::vector<std::string> cells = {fmt::format("{}", length)};
        for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
            local.push_back(law.local_len(length, rank));
            cells.push_back(fmt::format("{}", law.local_len(length, rank)));
            if (given.query_rows) seen.push_back(visible_rows(given, length, {law.ranks, rank, law.interleave}));
        }
        local_lengths.push_back(std::move(local));
        lengths.row(std::move(cells));
        if (given.query_rows) {
            text += visible_text(length, seen);
            visible.push_back(std::move(seen));
        }
    }
    answer result{{{"local_lengths", std::move(local_lengths)}}, lengths.text() + text};
    if (given.query_rows) result.values["visible"] = std::move(visible);
    return result;
}

} // namespace

std::function<answer()> lengths_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--ranks", given->ranks, "ranks that share the KV");
    number(app, need::required, "--interleave", given->interleave, "consecutive tokens on one rank");
    list(app, "--lengths", given->lengths, "sequence lengths in tokens");
    number(app, "--query-rows", given->query_rows, "also show what the last rows see");
    number(app, "--window", given->window, "sliding window in tokens, the row's own included");
    return [given] {
        ctxpar::require(!given->window || given->query_rows, "usage",
                        "--window is about what rows see, so it needs --query-rows");
        return run(*given);
    };
}

} // namespace inspect
