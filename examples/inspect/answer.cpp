#include "answer.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "arguments.hpp"

#include <ctxpar/core/error.hpp>

namespace inspect {

std::string table::text() const {
    std::vector<std::size_t> widths;
    for (const auto& cells : rows_) {
        widths.resize(std::max(widths.size(), cells.size()));
        for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
    }
    std::string lines;
    for (const auto& cells : rows_) {
        std::string line;
        for (std::size_t i = 0; i < cells.size(); ++i) {
            line += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", cells[i], widths[i]);
        }
        lines += line + '\n';
    }
    return lines;
}

std::string joined(const numbers& values) {
    return fmt::format("{}", fmt::join(values, " "));
}

std::vector<std::string> rank_header(std::vector<std::string> first, std::int64_t ranks) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) first.push_back(fmt::format("rank {}", rank));
    return first;
}

void check_readable(const std::vector<std::int64_t>& factors) {
    double count = 1.0;
    for (const std::int64_t factor : factors) count *= static_cast<double>(factor);
    ctxpar::require(count <= static_cast<double>(most_numbers), "usage", "the answer would have about ",
                    fmt::format("{:.3g}", count), " numbers; at most ", most_numbers, " are shown");
}

} // namespace inspect
