// zigzag: how the requests of a step are split over the PCP ranks, and how their rows are put back in order.
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include <ctxpar/layout/zigzag.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    std::int64_t pcp = 0;
    std::string requests, split = "balanced";
};

ctxpar::zigzag_split split_of(const std::string& word) {
    if (word == "padded") return ctxpar::zigzag_split::padded;
    return word == "ceil" ? ctxpar::zigzag_split::ceil : ctxpar::zigzag_split::balanced;
}

// n@c:kind
ctxpar::zigzag_request parse_request(std::string_view item) {
    const std::string name = fmt::format("the request '{}'", item);
    const std::size_t at = item.find('@'), colon = item.find(':');
    ctxpar::require(at != std::string_view::npos && colon != std::string_view::npos && at < colon, "request", name,
                    " has another shape than NEW@COMPUTED:KIND, such as 8@0:prefill or 1@20:decode");
    const std::string_view kind = item.substr(colon + 1);
    ctxpar::zigzag_request request;
    request.tokens = parse_number("request", name, item.substr(0, at));
    request.computed = parse_number("request", name, item.substr(at + 1, colon - at - 1));
    ctxpar::require(kind == "prefill" || kind == "decode", "request", name, " has the kind '", std::string(kind),
                    "'; it must be prefill or decode");
    request.kind = kind == "decode" ? ctxpar::row_kind::decode : ctxpar::row_kind::prefill;
    return request;
}

std::vector<ctxpar::zigzag_request> parse_requests(std::string_view text) {
    std::vector<ctxpar::zigzag_request> requests;
    for (;;) {
        const std::size_t comma = text.find(',');
        requests.push_back(parse_request(text.substr(0, comma)));
        if (comma == std::string_view::npos) return requests;
        text.remove_prefix(comma + 1);
    }
}

json values_of(const ctxpar::zigzag& plan) {
    json ranks = json::array();
    for (std::int64_t rank = 0; rank < plan.law().pcp; ++rank) {
        json segments = json::array();
        for (const ctxpar::zigzag_segment& run : plan.segments(rank))
            segments.push_back({run.request, run.first, run.count, run.context});
        ranks.push_back({{"segments", std::move(segments)}, {"positions", plan.positions(rank)}});
    }
    return {{"rows", plan.rows()},       {"ranks", std::move(ranks)},   {"gather", plan.gather()},
            {"restore", plan.restore()}, {"kv_write", plan.kv_write()}, {"work", plan.work()}};
}

std::string segments_text(const ctxpar::zigzag& plan) {
    table rows({"rank", "request", "first token", "count", "context"});
    for (std::int64_t rank = 0; rank < plan.law().pcp; ++rank) {
        for (const ctxpar::zigzag_segment& run : plan.segments(rank)) {
            rows.row({fmt::format("{}", rank), fmt::format("{}", run.request), fmt::format("{}", run.first),
                      fmt::format("{}", run.count), fmt::format("{}", run.context)});
        }
    }
    return "segments: new tokens of a request on a rank, and the positions before them\n" + rows.text();
}

std::string rows_text(const ctxpar::zigzag& plan) {
    const numbers gather = plan.gather();
    const std::vector<bool> kv_write = plan.kv_write();
    table rows({"gathered row", "rank", "position", "batch row", "KV"});
    std::size_t gathered = 0;
    for (std::int64_t rank = 0; rank < plan.law().pcp; ++rank) {
        const numbers positions = plan.positions(rank);
        for (std::size_t i = 0; i < static_cast<std::size_t>(plan.rows()); ++i, ++gathered) {
            const std::int64_t batch_row = gather[gathered];
            rows.row({fmt::format("{}", gathered), fmt::format("{}", rank),
                      i < positions.size() ? fmt::format("{}", positions[i]) : std::string("-"),
                      batch_row == -1 ? std::string("pad") : fmt::format("{}", batch_row),
                      kv_write[gathered] ? "write" : "-"});
        }
    }
    return "rows of all ranks, gathered\n" + rows.text();
}

answer run(const options& given) {
    const ctxpar::zigzag_split split = split_of(given.split);
    ctxpar::make_zigzag(given.pcp, split);
    const std::vector<ctxpar::zigzag_request> requests = parse_requests(given.requests);
    constexpr std::int64_t numbers_of_segment = 32, numbers_of_row = 4; // what the lines about one are worth
    check_readable({given.pcp, std::ssize(requests), numbers_of_segment});
    const ctxpar::zigzag plan(given.pcp, requests, split);
    check_readable({given.pcp, plan.rows(), numbers_of_row});

    std::string text = fmt::format("{} ranks with {} rows each, split {}\n\n", given.pcp, plan.rows(), given.split);
    text += segments_text(plan) + '\n' + rows_text(plan);
    text += fmt::format("\ngathered row of each batch row: {}\n", joined(plan.restore()));
    text += fmt::format("work, positions that the prefill rows of each rank see: {}\n", joined(plan.work()));
    return {values_of(plan), std::move(text)};
}

} // namespace

std::function<answer()> zigzag_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--pcp", given->pcp, "ranks that share the rows of a prefill");
    text(app, "--requests", given->requests, "requests NEW@COMPUTED:prefill or NEW@COMPUTED:decode, comma separated");
    word(app, need::optional, "--split", given->split, {"balanced", "padded", "ceil"},
         "how new tokens become chunks (balanced)");
    return [given] { return run(*given); };
}

} // namespace inspect
