#include "attention_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

namespace demo {
namespace {

constexpr std::size_t unknowns = 5; // us of a call, a request, a number of a row, a byte, a multiplication or addition
using coefficients = std::array<double, unknowns>;

// What is multiplied by them, where reading and arithmetic overlap but for a share.
coefficients features(const attention_point& at, const coefficients& us, double serial) {
    const bool reads = at.bytes * us[3] >= at.flops * us[4];
    return {1, at.requests, at.numbers, at.bytes * (reads ? 1 : serial), at.flops * (reads ? serial : 1)};
}

double predicted(const attention_point& at, const coefficients& us, double serial) {
    const coefficients factors = features(at, us, serial);
    double sum = 0;
    for (std::size_t i = 0; i < unknowns; ++i) sum += factors[i] * us[i];
    return sum;
}

// Least squares of errors in percent: normal equations by elimination, without those left out.
coefficients solve(const std::vector<attention_point>& points, const coefficients& last, double serial,
                   const std::array<bool, unknowns>& used) {
    std::array<std::array<double, unknowns + 1>, unknowns> rows{};
    std::array<double, unknowns> unit{}; // numbers of the same size are solved more exactly
    for (const attention_point& at : points) {
        const coefficients factors = features(at, last, serial);
        for (std::size_t i = 0; i < unknowns; ++i) unit[i] = std::max(unit[i], factors[i] / at.us);
    }
    for (double& each : unit)
        if (each <= 0) each = 1; // what no point has
    for (const attention_point& at : points) {
        const coefficients factors = features(at, last, serial);
        for (std::size_t i = 0; i < unknowns; ++i) {
            const double own = factors[i] / at.us / unit[i];
            for (std::size_t j = 0; j < unknowns; ++j) rows[i][j] += own * factors[j] / at.us / unit[j];
            rows[i][unknowns] += own;
        }
    }
    for (std::size_t i = 0; i < unknowns; ++i)
        if (!used[i] || rows[i][i] <= 0)
            for (std::size_t j = 0; j <= unknowns; ++j) {
                rows[i][j] = j == i ? 1 : 0;
                if (j < unknowns && j != i) rows[j][i] = 0;
            }
    for (std::size_t i = 0; i < unknowns; ++i) {
        std::size_t best = i;
        for (std::size_t j = i + 1; j < unknowns; ++j)
            if (std::fabs(rows[j][i]) > std::fabs(rows[best][i])) best = j;
        std::swap(rows[i], rows[best]);
        if (std::fabs(rows[i][i]) < 1e-12) rows[i][i] = 1e-12;
        for (std::size_t j = 0; j < unknowns; ++j) {
            if (j == i) continue;
            const double factor = rows[j][i] / rows[i][i];
            for (std::size_t k = i; k <= unknowns; ++k) rows[j][k] -= factor * rows[i][k];
        }
    }
    coefficients us{};
    for (std::size_t i = 0; i < unknowns; ++i) us[i] = rows[i][unknowns] / rows[i][i] / unit[i];
    return us;
}

// None below 0: what would be is left out, the most negative part first.
coefficients solve_above_zero(const std::vector<attention_point>& points, const coefficients& last, double serial) {
    std::array<bool, unknowns> used{};
    used.fill(true);
    coefficients us{};
    for (std::size_t tries = 0; tries < unknowns; ++tries) {
        us = solve(points, last, serial, used);
        std::size_t worst = 0;
        for (std::size_t i = 1; i < unknowns; ++i)
            if (us[i] < us[worst]) worst = i;
        if (us[worst] >= 0) break;
        used[worst] = false;
    }
    for (double& each : us) each = std::max(each, 0.0);
    return us;
}

double error_of(const std::vector<attention_point>& points, const coefficients& us, double serial) {
    double sum = 0;
    for (const attention_point& at : points) {
        const double error = predicted(at, us, serial) / at.us - 1;
        sum += error * error;
    }
    return sum;
}

double rate(double us) {
    return us > 0 ? 1 / us : free_rate;
}

} // namespace

attention_point attention_point_of(const model_dims& model, const requests& all, double us) {
    attention_point at;
    const double widths = static_cast<double>(model.heads * (model.query_width() + model.value_width()));
    for (const ctxpar::request_load& each : all) {
        const auto rows = static_cast<double>(each.rows), keys = static_cast<double>(each.keys);
        at.requests += 1;
        at.numbers += widths * rows;
        at.bytes += static_cast<double>(model.token_bytes()) * keys;
        at.flops += 2 * widths * rows * keys;
    }
    at.us = us;
    return at;
}

void fit_attention(const std::vector<attention_point>& points, ctxpar::machine_costs& costs) {
    coefficients best{};
    double best_serial = 1, least = -1;
    for (const double serial : {1.0, 0.75, 0.5, 0.25, 0.0}) {
        coefficients us = solve_above_zero(points, {0, 0, 0, 1, 0}, 1); // of which the larger is guessed
        for (int again = 0; again < 10; ++again) us = solve_above_zero(points, us, serial);
        const double error = error_of(points, us, serial);
        if (!std::isfinite(error) || (least >= 0 && error >= least)) continue;
        least = error;
        best = us;
        best_serial = serial;
    }
    costs.attend_us = best[0];
    costs.request_us = best[1];
    costs.row_numbers_per_us = best[2] > 0 ? 1 / best[2] : 0;
    costs.read_bytes_per_us = rate(best[3]);
    costs.flops_per_us = rate(best[4]);
    costs.serial_share = best_serial;
}

} // namespace demo
