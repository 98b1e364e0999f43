#include "needs.hpp"

namespace demo {

double needed_memory(const problem& all) {
    const double ranks = static_cast<double>(all.ranks().world_size());
    const double rows = static_cast<double>(all.requests * all.query_rows);
    const double widths = static_cast<double>(all.query_width + all.value_width);
    // Queries, partial outputs, messages and splits of a rank; outputs and their references of all steps.
    const double states = 40 * rows * static_cast<double>(all.q_heads) * widths * 4 * ranks;
    const double results = 8 * rows * static_cast<double>(all.steps * all.layers * all.q_heads) * widths * ranks;
    const double tables = 4 * static_cast<double>(all.blocks_per_request()) * static_cast<double>(all.requests);
    constexpr double program = 256e6;
    return all.pool_bytes_per_rank() * ranks + states + results + tables + program;
}

std::int64_t fitting_tokens(problem all, double bytes) {
    std::int64_t power = 1;
    while (power <= all.tokens / 2) power *= 2;
    for (; power >= 1024; power /= 2) {
        all.tokens = power;
        if (power >= all.steps * all.query_rows && needed_memory(all) <= bytes) return power;
    }
    return 0;
}

} // namespace demo
