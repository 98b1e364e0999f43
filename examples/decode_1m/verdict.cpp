#include <algorithm>

#include "report.hpp"

namespace demo {
namespace {

// KV bytes that all ranks read in a step, every layer.
double bytes_read(const problem& all, std::int64_t step) {
    const double groups = static_cast<double>(all.ranks().world_size() / all.law.ranks);
    double tokens = 0.0;
    for (std::int64_t request = 0; request < all.requests; ++request)
        tokens += static_cast<double>(all.length(request, step));
    return groups * tokens * static_cast<double>(all.layers) * static_cast<double>(all.token_bytes());
}

// Multiplications and additions of a step: scores and weighted values of every gathered head. A row sees all tokens but
// those of later rows, which are not worth counting.
double flops(const problem& all, std::int64_t step) {
    return bytes_read(all, step) / static_cast<double>(all.token_bytes()) * 2.0 *
           static_cast<double>(all.query_rows * all.ranks().gathered_heads()) *
           static_cast<double>(all.query_width + all.value_width);
}

} // namespace

verdict judge(const problem& all, const reference& right, const record& got) {
    verdict one;
    one.merge = got.merge;
    for (std::int64_t step = 0; step < all.steps; ++step) one.seconds.push_back(got.step_seconds(step));
    std::vector<double> sorted = one.seconds;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    one.median_seconds = *middle;
    one.read_rate = bytes_read(all, all.steps - 1) / one.median_seconds;
    one.flop_rate = flops(all, all.steps - 1) / one.median_seconds;

    const auto steps = static_cast<std::uint64_t>(all.steps);
    one.bytes_sent = got.sent.front() / steps;
    one.bytes_planned = got.planned / steps;
    const bool bytes_agree =
        std::all_of(got.sent.begin(), got.sent.end(), [&](std::uint64_t sent) { return sent == got.planned; });
    one.collectives = got.collectives;
    one.launches = got.launches;
    one.worst = compare(all, right, got);
    one.pass = bytes_agree && one.worst.relative_l2 <= error_bound(all); // false for NaN
    return one;
}

} // namespace demo
