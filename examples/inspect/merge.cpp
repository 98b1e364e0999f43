// merge: one exact softmax from the partial results of shards, read as JSON from standard input.
#include <cmath>
#include <iostream>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/core/error.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

using ctxpar::require;

struct shards {
    ctxpar::lse_base base = ctxpar::lse_base::natural;
    std::vector<float> lse;
    std::vector<std::vector<double>> out;
    std::vector<bool> empty;
    std::optional<float> sink;
};

// A number, or one of the strings for what JSON numbers can not say.
double real(const json& value, const char* where) {
    if (value.is_number()) return value.get<double>();
    if (value == "inf") return std::numeric_limits<double>::infinity();
    if (value == "-inf") return -std::numeric_limits<double>::infinity();
    require(value == "nan", "input", where, " has the value ",
            value.dump(-1, ' ', false, json::error_handler_t::replace),
            "; it must be a number, \"inf\", \"-inf\" or \"nan\"");
    return std::numeric_limits<double>::quiet_NaN();
}

// LSEs and sinks are fp32 in the library; a finite number that would become infinite there is refused.
float logit(const json& value, const char* where) {
    const double wide = real(value, where);
    require(!std::isfinite(wide) || std::fabs(wide) <= static_cast<double>(std::numeric_limits<float>::max()), "input",
            where, " has the value ", fmt::format("{}", wide), ", which does not fit fp32");
    return static_cast<float>(wide);
}

const json& array_of(const json& input, const char* key, std::size_t count) {
    require(input.contains(key) && input[key].is_array(), "input", "\"", key, "\" must be an array");
    require(count == 0 || input[key].size() == count, "input", "\"", key, "\" has ", input[key].size(),
            " entries; there are ", count, " shards by \"lse\", so it must have as many");
    return input[key];
}

void read_lengths(const json& lengths, shards& to) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const bool whole = lengths[i].is_number_integer() && lengths[i] >= 0;
        require(whole, "input", "\"lengths\" has the value ",
                lengths[i].dump(-1, ' ', false, json::error_handler_t::replace), "; it must be a whole number >= 0");
        to.empty[i] = lengths[i] == 0;
    }
}

shards read(std::istream& in) {
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const json input = json::parse(text, nullptr, false);
    require(input.is_object(), "input",
            "standard input is not a JSON object; it must be like {\"base\": \"e\", \"lse\": [0, 1], \"out\": [[1], "
            "[2]]}");
    for (const auto& [key, value] : input.items()) {
        require(key == "base" || key == "lse" || key == "out" || key == "lengths" || key == "sink", "input",
                "there is no key \"", key, "\"; the keys are base, lse, out, lengths and sink");
    }
    const json base = input.value("base", json());
    require(base == "e" || base == "2", "input", "\"base\" must be \"e\" or \"2\"");

    shards result;
    result.base = base == "2" ? ctxpar::lse_base::binary : ctxpar::lse_base::natural;
    for (const json& value : array_of(input, "lse", 0)) result.lse.push_back(logit(value, "\"lse\""));
    const std::size_t count = result.lse.size();
    require(count > 0, "input", "there are no shards; \"lse\" must have at least one entry");
    for (const json& vector : array_of(input, "out", count)) {
        require(vector.is_array(), "input", "\"out\" must hold one array of numbers for each shard");
        require(result.out.empty() || vector.size() == result.out.front().size(), "input", "\"out\" has vectors of ",
                result.out.empty() ? std::size_t{0} : result.out.front().size(), " and of ", vector.size(),
                " numbers; all must have the same width");
        result.out.emplace_back();
        for (const json& value : vector) result.out.back().push_back(real(value, "\"out\""));
    }
    result.empty.assign(count, false);
    if (input.contains("lengths")) read_lengths(array_of(input, "lengths", count), result);
    if (input.contains("sink")) result.sink = logit(input["sink"], "\"sink\"");
    return result;
}

template <ctxpar::lse_base Base>
std::pair<double, std::vector<double>> merged(const shards& parts) {
    const std::size_t count = parts.lse.size();
    const auto lse_of = [&](std::size_t i) { return ctxpar::lse<Base>{parts.lse[i]}; };
    ctxpar::merge_weights<Base> weights;
    for (std::size_t i = 0; i < count; ++i) weights.see(lse_of(i), parts.empty[i]);
    if (parts.sink) weights.see_sink(*parts.sink);
    for (std::size_t i = 0; i < count; ++i) weights.add(lse_of(i), parts.empty[i]);
    if (parts.sink) weights.add_sink(*parts.sink);

    const double start = weights.broken() ? std::numeric_limits<double>::quiet_NaN() : 0.0;
    std::vector<double> out(parts.out.front().size(), start);
    for (std::size_t i = 0; i < count; ++i) {
        if (!weights.has_weight(lse_of(i), parts.empty[i])) continue; // its payload must not be read
        const double weight = static_cast<double>(weights.weight(lse_of(i)));
        for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * parts.out[i][d];
    }
    return {static_cast<double>(weights.result().value), out};
}

json value_of(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
}

answer run() {
    const shards parts = read(std::cin);
    const auto [lse, out] = parts.base == ctxpar::lse_base::binary ? merged<ctxpar::lse_base::binary>(parts)
                                                                   : merged<ctxpar::lse_base::natural>(parts);
    answer result;
    result.values = {{"lse", value_of(lse)}, {"out", json::array()}};
    result.text =
        fmt::format("LSE ({})  {:.7g}\nout", parts.base == ctxpar::lse_base::binary ? "base 2" : "base e", lse);
    for (const double value : out) {
        result.values["out"].push_back(value_of(value));
        result.text += fmt::format("  {:.7g}", value);
    }
    result.text += '\n';
    return result;
}

} // namespace

std::function<answer()> merge_command(CLI::App&) {
    return run;
}

} // namespace inspect
