#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "grid.hpp"

namespace {

using bench::grid_row;

// One way is chosen, another may be best.
grid_row row(std::array<double, demo::num_ways> measured, std::size_t chosen) {
    grid_row made{"gqa", {{1, 100}}, {}};
    made.times.measured_us = measured;
    made.times.predicted_us.fill(200);
    made.times.predicted_us.at(chosen) = 100;
    return made;
}

} // namespace

TEST_CASE("a choice is near the best where it takes at most a tenth more") {
    const std::vector<grid_row> rows = {row({100, 109, 111, 300}, 1), row({100, 109, 111, 300}, 2),
                                        row({300, 200, 100, 150}, 2), row({100, 400, 400, 400}, 0)};
    const bench::grid_result result = bench::judge(rows);
    CHECK(rows[0].best() == 0);
    CHECK(rows[0].chosen() == 1);
    CHECK(result.chosen.near_best == doctest::Approx(0.75));
    CHECK(result.chosen.best == doctest::Approx(0.5));
    CHECK(result.chosen.mean_loss == doctest::Approx((0.09 + 0.11 + 0 + 0) / 4));
    CHECK(result.always[0].near_best == doctest::Approx(0.75));
    CHECK(result.always[0].best == doctest::Approx(0.75));
    CHECK(result.always[2].near_best == doctest::Approx(0.25));
    CHECK(result.always[2].mean_loss == doctest::Approx((0.11 + 0.11 + 0 + 3) / 4));
    CHECK(!result.passes);
}

TEST_CASE("a grid passes with good choices and without a way that is nearly always best") {
    std::vector<grid_row> rows;
    for (int i = 0; i < 10; ++i)
        rows.push_back(
            row(i < 7 ? std::array<double, 4>{100, 200, 200, 200} : std::array<double, 4>{200, 100, 200, 200},
                i < 7 ? 0 : 1));
    CHECK(bench::judge(rows).passes);
    rows[9] = row({200, 100, 200, 200}, 2); // 9 of 10
    CHECK(bench::judge(rows).passes);
    rows[8] = row({200, 100, 200, 200}, 2);
    CHECK(!bench::judge(rows).passes);
    for (int i = 7; i < 10; ++i) rows[static_cast<std::size_t>(i)] = row({200, 100, 200, 200}, 1);
    rows[7] = row({100, 200, 200, 200}, 0); // one way is best in 8 of 10
    CHECK(!bench::judge(rows).passes);
}

TEST_CASE("errors of predictions and results are those of all rows") {
    std::vector<grid_row> rows = {row({100, 200, 200, 200}, 0), row({100, 100, 200, 200}, 0)};
    rows[0].times.error = 3e-7;
    rows[1].times.error = 2e-7;
    const bench::grid_result result = bench::judge(rows);
    CHECK(result.mean_error == doctest::Approx(1.0 / 8)); // one of 8 is predicted at twice what it took
    CHECK(result.most_error == 3e-7);
    const std::string text = bench::table_of(rows, result);
    CHECK(text.find("2 steps") != std::string::npos);
    CHECK(text.find("always ag_ar") != std::string::npos);
    CHECK(bench::judge({}).chosen.near_best == 0);
}

TEST_CASE("the full grid has at least 40 steps over both models, from 256 tokens to 128K and up to 32 rows") {
    std::int64_t least = 1 << 30, longest = 0, most_rows = 0;
    for (const demo::requests& step : bench::grid_steps(false)) {
        std::int64_t rows = 0;
        for (const ctxpar::request_load& each : step) {
            least = std::min(least, each.keys);
            longest = std::max(longest, each.keys);
            rows += each.rows;
        }
        most_rows = std::max(most_rows, rows);
    }
    CHECK(2 * bench::grid_steps(false).size() >= 40);
    CHECK(least == 256);
    CHECK(longest == 131072);
    CHECK(most_rows == 32);
}
