#include "grid.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "calibrate/calibrate.hpp"

namespace bench {
namespace {

constexpr double near_enough = 0.1;
constexpr double least_near_best = 0.9;
constexpr double most_alike = 0.7;

template <class Way>
grid_score score_of(const std::vector<grid_row>& rows, const Way& way) {
    grid_score score;
    for (const grid_row& row : rows) {
        const double loss = row.loss(way(row));
        score.near_best += loss <= near_enough ? 1 : 0;
        score.best += way(row) == row.best() ? 1 : 0;
        score.mean_loss += loss;
    }
    const auto count = static_cast<double>(std::max<std::size_t>(1, rows.size()));
    return {score.near_best / count, score.mean_loss / count, score.best / count};
}

std::string line_of(const char* name, const grid_score& score) {
    return fmt::format("{:<14} best or within 10%: {:3.0f}%   best: {:3.0f}%   loss on average: {:5.1f}%\n", name,
                       100 * score.near_best, 100 * score.best, 100 * score.mean_loss);
}

} // namespace

std::vector<demo::requests> grid_steps(bool smoke) {
    if (smoke) return {{{1, 70}}, {{2, 50}, {1, 33}}, demo::requests(3, {1, 40})};
    std::vector<demo::requests> steps;
    for (const std::int64_t keys : {256, 512, 1024, 2048, 4096, 16384, 65536, 131072}) steps.push_back({{1, keys}});
    for (const std::int64_t rows : {4, 16, 32})
        for (const std::int64_t keys : {256, 1024, 4096}) steps.push_back({{rows, keys}});
    steps.push_back({{8, 16384}});
    for (const std::int64_t batch : {2, 3, 7, 15, 32})
        for (const std::int64_t keys : {256, 1024, 4096})
            steps.emplace_back(static_cast<std::size_t>(batch), ctxpar::request_load{1, keys});
    for (const std::int64_t keys : {1024, 2048, 8192, 32768}) { // one long request among short ones
        demo::requests uneven(6, {1, 256});
        uneven.push_back({1, keys});
        steps.push_back(uneven);
    }
    return steps;
}

grid_result judge(const std::vector<grid_row>& rows) {
    grid_result result;
    result.chosen = score_of(rows, [](const grid_row& row) { return row.chosen(); });
    double most_best = 0, errors = 0;
    for (std::size_t way = 0; way < demo::num_ways; ++way) {
        result.always.at(way) = score_of(rows, [way](const grid_row&) { return way; });
        most_best = std::max(most_best, result.always.at(way).best);
    }
    for (const grid_row& row : rows) {
        result.most_error = std::max(result.most_error, row.times.error);
        for (std::size_t way = 0; way < demo::num_ways; ++way)
            errors += std::fabs(row.times.predicted_us.at(way) / row.times.measured_us.at(way) - 1);
    }
    result.mean_error = errors / static_cast<double>(std::max<std::size_t>(1, rows.size() * demo::num_ways));
    result.passes = result.chosen.near_best >= least_near_best && most_best <= most_alike;
    return result;
}

std::string table_of(const std::vector<grid_row>& rows, const grid_result& result) {
    std::string text = "measured/predicted us of a layer\n";
    text += fmt::format("{:<4} {:<46}", "", "step");
    for (std::size_t way = 0; way < demo::num_ways; ++way) text += fmt::format(" {:>13}", demo::name_of_way(way));
    text += fmt::format("  {:<6} {:<6} {:>5}\n", "best", "chosen", "loss");
    for (const grid_row& row : rows) {
        text += fmt::format("{:<4} {:<46}", row.attention, demo::text_of(row.what));
        for (std::size_t way = 0; way < demo::num_ways; ++way)
            text += fmt::format(
                " {:>13}", fmt::format("{:.0f}/{:.0f}", row.times.measured_us.at(way), row.times.predicted_us.at(way)));
        text += fmt::format("  {:<6} {:<6} {:>4.0f}%\n", demo::name_of_way(row.best()), demo::name_of_way(row.chosen()),
                            100 * row.loss(row.chosen()));
    }
    text += fmt::format("\n{} steps\n", rows.size()) + line_of("the model's", result.chosen);
    for (std::size_t way = 0; way < demo::num_ways; ++way)
        text += line_of(fmt::format("always {}", demo::name_of_way(way)).c_str(), result.always.at(way));
    return text + fmt::format("predictions are off by {:.0f}% on average; results by {:.1e} at most\n",
                              100 * result.mean_error, result.most_error);
}

} // namespace bench
