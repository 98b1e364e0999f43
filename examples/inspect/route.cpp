// route: how many ranks should share the KV of a request, by what a machine was measured to take.
#include <memory>
#include <span>

#include <fmt/format.h>

#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/plan/cp_size.hpp>

#include <common/calibration.hpp>
#include <common/text.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    std::int64_t sequence = 0, queries = 0, domain = 0, interleave = 1;
    std::optional<std::int64_t> capacity;
    std::string model;
};

std::string merge_of(const ctxpar::cp_size_option& option) {
    return option.ranks == 1 ? "none" : ctxpar::merge::dynamic{option.merge}.name();
}

json values_of(const ctxpar::cp_size_option& option, std::int64_t layers) {
    return {{"ranks", option.ranks},
            {"tokens", option.tokens},
            {"legal", option.legal},
            {"fits", option.fits},
            {"merge", merge_of(option)},
            {"attention_us", option.cost.attention_us},
            {"exchange_us", option.cost.exchange_us},
            {"merge_us", option.cost.merge_us},
            {"layer_us", option.cost.total_us()},
            {"step_us", static_cast<double>(layers) * option.cost.total_us()}};
}

// The chosen size against the smallest other with room, one rank if that has; CP 1 against the best of the others.
std::string why(const ctxpar::cp_size_choice& choice) {
    const ctxpar::cp_size_option& best = choice.best;
    const ctxpar::cp_size_option* other = nullptr;
    for (const ctxpar::cp_size_option& option : choice.options) {
        if (option.ranks == best.ranks || !option.legal || !option.fits) continue;
        if (other == nullptr || (best.ranks == 1 && option.cost.total_us() < other->cost.total_us())) other = &option;
    }
    const std::string chosen = fmt::format("CP {}", best.ranks);
    if (other == nullptr)
        return choice.options.size() == 1 ? chosen + " is the only size of this domain"
                                          : chosen + " is the only size with room";
    const double attention = other->cost.attention_us - best.cost.attention_us;
    const double exchange =
        best.cost.total_us() - best.cost.attention_us - (other->cost.total_us() - other->cost.attention_us);
    const auto what = [](double us, const char* less, const char* more) {
        return fmt::format("{} {:.4g} us of", us >= 0 ? less : more, us >= 0 ? us : -us);
    };
    return fmt::format(
        "{} takes the least time of the sizes with room: against CP {} it {} attention and {} exchange and "
        "merge a layer",
        chosen, other->ranks, what(attention, "saves", "adds"), what(-exchange, "saves", "adds"));
}

answer run(const options& given) {
    ctxpar::make_ownership(given.domain, given.interleave);
    ctxpar::check_length(given.sequence);
    const demo::calibration measured = demo::read_calibration(given.model);
    const ctxpar::request_load request{given.queries, given.sequence};
    const ctxpar::cp_size_choice choice =
        ctxpar::cp_size_costs(measured.costs, measured.model, std::span(&request, 1),
                              {given.domain, given.interleave, given.capacity.value_or(-1)});
    answer result;
    const std::string reason = why(choice);
    result.values = {{"ranks", choice.best.ranks},
                     {"merge", merge_of(choice.best)},
                     {"step_us", static_cast<double>(measured.layers) * choice.best.cost.total_us()},
                     {"layers", measured.layers},
                     {"sizes", json::array()},
                     {"why", reason}};
    table rows({"CP", "tokens a rank", "merge", "attention us", "exchange us", "merge us", "layer us", "step us", ""});
    for (const ctxpar::cp_size_option& option : choice.options) {
        result.values["sizes"].push_back(values_of(option, measured.layers));
        const ctxpar::decode_cost& cost = option.cost;
        const char* note = !option.legal                       ? "not legal"
                           : !option.fits                      ? "no room"
                           : option.ranks == choice.best.ranks ? "chosen"
                                                               : "";
        rows.row({fmt::format("{}", option.ranks), demo::grouped(option.tokens), merge_of(option),
                  fmt::format("{:.2f}", cost.attention_us), fmt::format("{:.2f}", cost.exchange_us),
                  fmt::format("{:.2f}", cost.merge_us), fmt::format("{:.2f}", cost.total_us()),
                  fmt::format("{:.1f}", static_cast<double>(measured.layers) * cost.total_us()), note});
    }
    result.text = fmt::format("{} query {} over {}; a step has {}\n{}{}\n", given.queries,
                              given.queries == 1 ? "row" : "rows", demo::counted(given.sequence, "token"),
                              demo::counted(measured.layers, "layer"), rows.text(), reason);
    return result;
}

} // namespace

std::function<answer()> route_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--sequence", given->sequence, "tokens of the request, this step's own included");
    number(app, need::required, "--queries", given->queries, "query rows of a step: 1 to decode");
    number(app, need::required, "--domain", given->domain, "replicas that may join");
    text(app, "--model", given->model, "calibration file: what the machine and the model take");
    number(app, need::optional, "--interleave", given->interleave, "tokens dealt to a rank at a time (1)");
    number(app, "--capacity", given->capacity, "tokens that a rank's cache has room for (without end)");
    return [given] { return run(*given); };
}

} // namespace inspect
