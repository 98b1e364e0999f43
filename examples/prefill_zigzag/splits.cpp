#include "splits.hpp"

#include <algorithm>
#include <numeric>

#include <ctxpar/layout/zigzag.hpp>

namespace demo {
namespace {

// Rank w takes rows [w * n / W, (w + 1) * n / W).
split_facts contiguous(std::int64_t pcp, std::int64_t rows, std::int64_t computed) {
    split_facts facts;
    facts.name = "contiguous";
    for (std::int64_t rank = 0; rank < pcp; ++rank) {
        const std::int64_t first = rank * rows / pcp;
        const std::int64_t last = (rank + 1) * rows / pcp;
        facts.tokens.push_back(last - first);
        std::int64_t work = 0;
        for (std::int64_t row = first; row < last; ++row) work += computed + row + 1;
        facts.work.push_back(work);
    }
    facts.rows = *std::max_element(facts.tokens.begin(), facts.tokens.end());
    return facts;
}

split_facts zigzag(const char* name, ctxpar::zigzag_split split, std::int64_t pcp, std::int64_t rows,
                   std::int64_t computed) {
    const ctxpar::zigzag_request request{rows, computed, ctxpar::row_kind::prefill};
    const ctxpar::zigzag all(pcp, std::span(&request, 1), split);
    split_facts facts;
    facts.name = name;
    facts.rows = all.rows();
    facts.work = all.work();
    for (std::int64_t rank = 0; rank < pcp; ++rank) {
        std::int64_t tokens = 0;
        for (const ctxpar::zigzag_segment& run : all.segments(rank))
            tokens += std::clamp<std::int64_t>(rows - run.first, 0, run.count); // pads lie behind the last token
        facts.tokens.push_back(tokens);
    }
    return facts;
}

} // namespace

double split_facts::imbalance() const {
    const auto sum = static_cast<double>(std::accumulate(work.begin(), work.end(), std::int64_t{0}));
    return static_cast<double>(*std::max_element(work.begin(), work.end())) * static_cast<double>(work.size()) / sum;
}

std::vector<split_facts> compare_splits(std::int64_t pcp, std::int64_t rows, std::int64_t computed) {
    using ctxpar::zigzag_split;
    return {contiguous(pcp, rows, computed), zigzag("ceil", zigzag_split::ceil, pcp, rows, computed),
            zigzag("padded", zigzag_split::padded, pcp, rows, computed),
            zigzag("balanced", zigzag_split::balanced, pcp, rows, computed)};
}

} // namespace demo
