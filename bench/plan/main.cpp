// plan_grid: does the cost model choose the way that is the fastest? Calibrates, predicts, measures every step in every
// way, and compares. Exit status 0; 1 where the choices are not good enough, or a result is wrong; 2 for wrong usage; 3
// where others wanted the cores, so that times say nothing.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "calibrate/costs.hpp"
#include "calibrate/host_rank.hpp"
#include "calibrate/over_ranks.hpp"
#include "grid.hpp"

namespace {

constexpr int ranks_of_grid = 2;
constexpr double most_of_others = 0.1; // of a core, that others used meanwhile

struct options {
    std::string transport = "local";
    bool smoke = false;
};

struct measured {
    std::vector<bench::grid_row> rows;
    double others = 0; // cores that others used meanwhile
};

template <ctxpar::communicator C>
measured measure(C& world, const demo::effort& how, std::size_t pool_bytes) {
    demo::keep_to_core(world.rank());
    demo::number_pool pool(pool_bytes);
    demo::host_rank<C> own_rank(world);
    demo::team ranks(own_rank);
    measured found;
    (void)ranks.largest(0);
    const double begin = demo::now_us(), of_host = demo::host_seconds(), own = demo::thread_seconds();
    for (const demo::model_dims& model : {demo::model_dims{false, 32, 8}, demo::model_dims{true, 16, 1}}) {
        const ctxpar::machine_costs costs = demo::measure_costs(ranks, model, pool, how);
        for (const demo::requests& what : bench::grid_steps(how.tiny))
            found.rows.push_back({model.attention(), what, demo::measure_ways(ranks, model, what, pool, how, costs)});
    }
    const double of_ranks = ranks.sum(demo::thread_seconds() - own);
    const double seconds = (demo::now_us() - begin) / 1e6;
    found.others = std::max(0.0, demo::host_seconds() - of_host - of_ranks) / seconds;
    return found;
}

// The status on rank 0 is that of the judgement, where nothing failed before it.
int run(const options& given) {
    demo::effort how;
    how.tiny = given.smoke;
    if (given.smoke) how.rounds = 1;
    const std::size_t pool_bytes = demo::pool_size(how, ranks_of_grid);
    int judged = 0;
    const int status = demo::over_ranks("plan_grid", given.transport, ranks_of_grid, [&](auto& world) {
        const measured found = measure(world, how, pool_bytes);
        if (world.rank() != 0) return;
        const bench::grid_result result = bench::judge(found.rows);
        const bool shared = found.others > most_of_others;
        fmt::print("two {} ranks; others used {:.2f} cores meanwhile\n{}", given.transport, found.others,
                   bench::table_of(found.rows, result));
        if (!given.smoke && shared) fmt::print("not judged: others wanted the cores\n");
        if (!given.smoke && !shared && !result.passes)
            fmt::print("FAIL: 90% and, for a fair grid, no way best in more than 70% are asked for\n");
        std::fflush(stdout);
        judged = given.smoke || (result.passes && !shared) ? 0 : shared ? 3 : 1;
    });
    return status != 0 ? status : judged;
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Compares what the cost model chooses with what is measured to be best, over two ranks");
    options given;
    app.add_option("--transport", given.transport, "local, or mpi under mpirun -n 2")
        ->check(CLI::IsMember({"local", "mpi"}));
    app.add_flag("--smoke", given.smoke, "tiny, for the results alone");
    try {
        app.parse(argc, argv);
        return run(given);
    } catch (const CLI::ParseError& problem) {
        return app.exit(problem) == 0 ? 0 : 2;
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "plan_grid: {}\n", problem.what());
        return problem.code() == "result" ? 1 : 2;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "plan_grid: {}\n", problem.what());
        return 1;
    }
}
