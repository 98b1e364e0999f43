#include "verdict.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace demo {
namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// What an LSE owes: 2e-6 or two units in its last place, whichever is larger.
double lse_bound(double lse) {
    const auto magnitude = static_cast<float>(std::fabs(lse));
    const float ulp = std::nextafter(magnitude, std::numeric_limits<float>::infinity()) - magnitude;
    return std::max(2e-6, 2.0 * static_cast<double>(ulp));
}

void compare_outputs(const problem& all, const reference& right, const rank_record& got, verdict& to) {
    double error = 0.0;
    double size = 0.0;
    const auto vectors = static_cast<std::size_t>(all.q_heads);
    const auto width = static_cast<std::size_t>(all.head_dim);
    for (std::size_t i = 0; i < right.rows.size() * vectors; ++i) {
        const auto row = static_cast<std::size_t>(right.rows[i / vectors]);
        const float* const out = got.outputs.data() + (row * vectors + i % vectors) * width;
        double own_error = 0.0;
        double own_size = 0.0;
        for (std::size_t d = 0; d < width; ++d) {
            const double wanted = right.outputs[i * width + d];
            const double difference = static_cast<double>(out[d]) - wanted;
            to.max_abs = std::max(to.max_abs, std::fabs(difference));
            own_error += difference * difference;
            own_size += wanted * wanted;
        }
        error += own_error; // NaN stays
        size += own_size;
        to.worst_vector = std::max(to.worst_vector, std::sqrt(own_error / own_size));
    }
    to.relative_l2 = std::sqrt(error / size);
}

void compare_lses(const problem& all, const reference& right, const record& run, verdict& to) {
    const rank_record& got = run.ranks.front();
    const auto heads = static_cast<std::size_t>(all.q_heads);
    for (std::size_t i = 0; i < right.rows.size() * heads; ++i) {
        const auto row = static_cast<std::size_t>(right.rows[i / heads]);
        const double wanted = right.lses[i];
        const double difference = std::fabs(static_cast<double>(got.lses[row * heads + i % heads].value) - wanted);
        if (std::isnan(difference)) to.lse_error = to.lse_worst = no_number;
        to.lse_error = std::max(to.lse_error, difference);
        to.lse_worst = std::max(to.lse_worst, difference / lse_bound(wanted));
    }
}

} // namespace

double error_bound(const problem& all) {
    return all.tokens <= 131'072 ? 2e-6 : 5e-6;
}

verdict judge(const problem& all, const reference& right, const record& got) {
    verdict one;
    compare_outputs(all, right, got.ranks.front(), one);
    compare_lses(all, right, got, one);
    for (const rank_record& each : got.ranks) {
        one.bytes_agree = one.bytes_agree && each.sent == got.planned;
        one.ranks_agree = one.ranks_agree && same_bits(each.outputs, got.ranks.front().outputs) &&
                          same_bits(each.lses, got.ranks.front().lses);
    }
    const double flops = 4.0 * static_cast<double>(all.head_dim * all.q_heads) * static_cast<double>(all.pairs());
    one.flop_rate = flops / got.seconds();
    one.pass = one.bytes_agree && one.ranks_agree && one.relative_l2 <= error_bound(all) && one.lse_worst <= 1.0;
    return one;
}

} // namespace demo
