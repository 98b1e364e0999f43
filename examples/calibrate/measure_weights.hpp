// How fast a decode step's projections read their weights, measured over ranks of any kind. All ranks call these
// functions and get the same numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/core/error.hpp>

#include "effort.hpp"
#include "fit.hpp"
#include "team.hpp"
#include "weights.hpp"
#include "work.hpp"

namespace demo {

// One projection of so many rows and outputs, us: compared with numbers added in double first, where that is asked.
// config_error "result" on all ranks where it is wrong.
template <class Rank>
double projection_us(team<Rank>& ranks, const projection& all, typename Rank::kind::pool& pool, const effort& how,
                     bool compared) {
    using kind = typename Rank::kind;
    const auto stream = ranks.own().stream();
    const std::vector<ctxpar::bf16> numbers = rows_to_project(all);
    const auto rows = kind::moved(std::vector<typename kind::activation>(numbers.begin(), numbers.end()), stream);
    auto out = kind::moved(std::vector<float>(static_cast<std::size_t>(all.rows * all.outputs)), stream);
    const std::size_t bytes = static_cast<std::size_t>(all.inputs * all.outputs) * sizeof(ctxpar::bf16);
    const auto project = [&](const std::byte* weights) {
        kind::project(all, reinterpret_cast<const ctxpar::bf16*>(weights), rows.data(), out.data(), stream);
    };
    if (compared) {
        project(pool.data());
        const auto weights =
            kind::copied(reinterpret_cast<const ctxpar::bf16*>(pool.data()), all.inputs * all.outputs, stream);
        const std::vector<float> got = kind::copied(std::as_const(out).data(), all.rows * all.outputs, stream);
        const double error = ranks.largest(distance(got, projected(all, weights.data(), numbers.data())));
        ctxpar::require(error <= most_projection_error, "result", "a projection of ", all.rows, " rows is off by ",
                        std::to_string(error * 1e6), " millionths; at most 10 are legal");
    }
    const std::int64_t calls = calls_in(how, ranks.time([&] { project(pool.data()); }));
    const auto some = [&](std::size_t) {
        return ranks.time([&] {
            for (std::int64_t i = 0; i < calls; ++i) project(pool.next(bytes));
        }) / static_cast<double>(calls);
    };
    return ranks.medians(1, how.rounds, some).front();
}

// Bytes of weights/us: how much longer a projection takes that has more outputs, as with replicated Q; the median over
// numbers of rows. All ranks at once, weights from memory.
template <class Rank>
double measure_weights(team<Rank>& ranks, const model_dims& model, typename Rank::kind::pool& pool, const effort& how) {
    const std::int64_t inputs = how.tiny ? 256 : 4096, row_bytes = 2 * inputs;
    const std::int64_t room = static_cast<std::int64_t>(pool.bytes()) / 4 / row_bytes;
    const std::int64_t most = std::min(room, model.heads * model.query_width()) / 64 * 64;
    std::vector<double> rates;
    for (const std::int64_t rows : how.tiny ? std::vector<std::int64_t>{3} : std::vector<std::int64_t>{1, 4, 16}) {
        std::vector<point> points;
        for (const std::int64_t outputs : {most / 4, most / 2, most}) {
            const bool is_first = outputs == most / 4;
            const double us = projection_us(ranks, {rows, inputs, outputs}, pool, how, is_first);
            points.push_back({static_cast<double>(outputs * row_bytes), us});
        }
        rates.push_back(rate_of(fit_line(points)));
    }
    return median(rates);
}

} // namespace demo
