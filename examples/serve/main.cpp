// serve: a small serving loop with continuous batching, a paged KV cache, a prefix cache, chunked prefill over ranks,
// decode over ranks, and a number of ranks that follows each request's length.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

#include <fmt/format.h>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/plan/router.hpp>

#include "check.hpp"
#include "desk.hpp"
#include "engine.hpp"
#include "options.hpp"
#include "report.hpp"
#include "simulate.hpp"

namespace {

using namespace serve;

// CP sizes that a setting allows; each divides the next.
struct setting {
    std::string name;
    std::vector<std::int64_t> sizes;
};

std::vector<setting> settings_of(const options& given, std::int64_t ranks) {
    std::vector<std::int64_t> sizes = given.sizes;
    if (sizes.empty()) sizes.push_back(1);
    for (std::int64_t size = 2; size <= ranks && given.sizes.empty(); ++size)
        if (ranks % size == 0 && size % sizes.back() == 0) sizes.push_back(size);
    return {{"CP 1", {1}}, {fmt::format("CP {}", ranks), {ranks}}, {"dynamic CP", sizes}};
}

// The toy transformer on this machine, as the cost model sees it. Its arithmetic is fp32, which the calibration's is
// not, and so it is measured here.
simulated machine_of(const options& given, const demo::calibration& measured, const model<float>& weights) {
    const core_speed speed = measure_core(weights);
    simulated machine;
    machine.costs = measured.costs;
    machine.costs.flops_per_us = speed.flops_per_us;
    machine.row_us = speed.row_us;
    machine.model.heads = model_dims::q_heads;
    machine.model.query_width = machine.model.value_width = model_dims::head_dim;
    machine.model.bytes_per_token = model_dims::kv_heads * 2 * model_dims::head_dim * 4;
    machine.model.output_bytes = 4;
    machine.layers = model_dims::layers;
    machine.interleave = given.interleave;
    return machine;
}

ctxpar::router router_of(const simulated& machine, const options& given, std::int64_t ranks, std::int64_t blocks,
                         const setting& chosen) {
    ctxpar::router_domain domain;
    domain.ranks = ranks;
    domain.interleave = given.interleave;
    domain.block_size = given.block_size;
    domain.capacity_blocks = blocks;
    domain.sizes = chosen.sizes;
    ctxpar::router_options how;
    how.layers = machine.layers;
    how.row_us = machine.row_us;
    how.decode_row_us = machine.row_us; // every rank of a place computes the row, and each has other requests
    how.reshard_bytes_per_us = machine.costs.read_bytes_per_us / 4; // packed, sent, received and written
    return {machine.costs, machine.model, domain, how};
}

schedule_options schedule_of(const simulated& machine, const options& given, std::int64_t ranks, std::int64_t blocks,
                             const setting& chosen) {
    schedule_options how;
    how.ranks = ranks;
    how.sizes = chosen.sizes;
    how.block_size = given.block_size;
    how.pool_blocks = blocks;
    how.chunk = given.chunk;
    how.row_us = [machine](std::int64_t tokens) { return row_us(machine, tokens); };
    return how;
}

// One core for each rank, where there are as many.
void pin(std::int64_t rank) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof(allowed), &allowed);
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(static_cast<unsigned>(core), &allowed)) cores.push_back(core);
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(static_cast<unsigned>(cores[static_cast<std::size_t>(rank) % cores.size()]), &own);
    sched_setaffinity(0, sizeof(own), &own);
}

std::int64_t longest_of(const std::vector<asked>& trace) {
    std::int64_t longest = 1;
    for (const asked& request : trace) longest = std::max(longest, request.longest());
    return longest;
}

std::vector<served> run_simulated(const simulated& machine, const options& given, std::int64_t ranks,
                                  const setting& chosen, const std::vector<asked>& trace) {
    const std::int64_t blocks = given.blocks(longest_of(trace));
    ctxpar::router routes = router_of(machine, given, ranks, blocks, chosen);
    scheduler steps(schedule_of(machine, given, ranks, blocks, chosen), routes, trace);
    run_simulated(steps, machine, ranks);
    return steps.results();
}

// The trace at the rate that was asked for, or else at the rate that keeps the ranks busy for the part `load` of the
// time: one rank alone, never idle, takes so long for all of it.
std::vector<asked> trace_of(const simulated& machine, const options& given, std::int64_t ranks, trace_options wanted) {
    if (wanted.rate > 0) return make_trace(wanted);
    const std::vector<asked> at_once = make_trace(wanted);
    double end_s = 0;
    for (const served& result : run_simulated(machine, given, 1, {"CP 1", {1}}, at_once))
        end_s = std::max(end_s, result.end_s);
    wanted.rate = static_cast<double>(wanted.requests) * static_cast<double>(ranks) * given.load / end_s;
    return make_trace(wanted);
}

std::vector<served> serve_all(const options& given, const simulated& machine, const setting& chosen,
                              const model<float>& weights, const std::vector<asked>& trace) {
    engine_options how;
    how.ranks = given.ranks;
    how.block_size = given.block_size;
    how.interleave = given.interleave;
    how.longest = longest_of(trace);
    how.pool_blocks = given.blocks(how.longest);
    how.chunk = given.chunk;
    how.spoil_moves = given.inject == "skip_move";
    ctxpar::router routes = router_of(machine, given, given.ranks, how.pool_blocks, chosen);
    const schedule_options order = schedule_of(machine, given, given.ranks, how.pool_blocks, chosen);
    how.max_requests = order.max_requests;
    how.move_chunk = order.move_chunk;
    scheduler steps(order, routes, trace);
    desk counter(steps, given.ranks);
    ctxpar::run_local_ranks(static_cast<int>(given.ranks), {}, [&](ctxpar::local_communicator& world) {
        pin(world.rank());
        try {
            engine own(world, how, weights);
            while (const auto todo = counter.next(world.rank())) counter.done(todo, own.run(*todo));
        } catch (...) {
            counter.give_up();
            throw;
        }
    });
    return steps.results();
}

void save_chart(const options& given, const std::string& name, const std::string& svg) {
    if (given.charts.empty()) return;
    std::ofstream file(given.charts + "/" + name);
    file << svg;
    ctxpar::require(file.good(), "charts", "could not write ", given.charts, "/", name);
}

// The round whose mean latency is in the middle.
const std::vector<served>& median_of(std::vector<std::vector<served>>& rounds, const std::vector<asked>& trace) {
    const auto latency = [&trace](const std::vector<served>& results) {
        double sum_s = 0;
        for (std::size_t i = 0; i < trace.size(); ++i) sum_s += results[i].end_s - trace[i].arrives_s;
        return sum_s;
    };
    const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
    std::nth_element(rounds.begin(), middle, rounds.end(),
                     [&](const auto& a, const auto& b) { return latency(a) < latency(b); });
    return *middle;
}

// Whether all tokens are right, and dynamic best where that is required.
bool run_measured(const options& given) {
    const model<float> weights(given.trace.seed);
    const simulated machine = machine_of(given, demo::read_calibration(given.calibration), weights);
    fmt::print("one core: {:.1f} us a row outside the attention, {:.0f} GFLOP/s in it\n",
               machine.row_us * static_cast<double>(machine.layers), machine.costs.flops_per_us * 1e-3);
    const std::vector<asked> trace = trace_of(machine, given, given.ranks, given.trace);
    const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());

    // Settings take turns, so that what else the machine does meets all of them; of a setting's rounds the median
    // counts.
    bool right = true;
    const std::vector<setting> settings = settings_of(given, given.ranks);
    std::vector<std::vector<std::vector<served>>> rounds(settings.size());
    std::vector<std::pair<std::vector<std::int32_t>, expected>> known;
    for (std::int64_t round = 0; round < given.rounds; ++round) {
        for (std::size_t s = 0; s < settings.size(); ++s) {
            rounds[s].push_back(serve_all(given, machine, settings[s], weights, trace));
            const comparison found = compare(weights, trace, rounds[s].back(), known, cores);
            fmt::print(
                "{}: {} tokens, {} differ from one rank alone, {} within {:.0e} of the next and not counted: {}\n",
                settings[s].name, found.outputs, found.differ, found.unsure, least_margin,
                found.pass() ? "pass" : "FAIL");
            std::fflush(stdout);
            right = right && found.pass();
        }
    }
    std::vector<setting_report> reports;
    std::vector<const std::vector<served>*> results;
    for (std::size_t s = 0; s < settings.size(); ++s) {
        results.push_back(&median_of(rounds[s], trace));
        reports.push_back(report_of(settings[s].name, given.trace, trace, *results.back()));
    }
    compare_settings(reports, trace, results);
    const std::string title =
        fmt::format("Measured: {} requests, {} replicas of one core each", trace.size(), given.ranks);
    print(title, given.trace, reports);
    save_chart(given, "measured.svg", chart(title, given.trace, reports));
    return right && (!given.require_best || dynamic_is_best(reports, 0.05));
}

bool run_on_virtual_clock(const options& given) {
    const demo::calibration measured = demo::read_calibration(given.calibration);
    const simulated machine = machine_of(given, measured, model<float>(given.trace.seed));
    trace_options wanted = given.trace;
    wanted.requests = given.simulated_requests;
    wanted.longest = given.simulated_longest;
    const std::vector<asked> trace = trace_of(machine, given, given.simulated_ranks, wanted);

    std::vector<std::vector<served>> results;
    std::vector<setting_report> reports;
    for (const setting& chosen : settings_of(given, given.simulated_ranks)) {
        results.push_back(run_simulated(machine, given, given.simulated_ranks, chosen, trace));
        reports.push_back(report_of(chosen.name, wanted, trace, results.back()));
    }
    compare_settings(reports, trace, {&results[0], &results[1], &results[2]});
    const std::string title =
        fmt::format("SIMULATED on a virtual clock, by a calibration of {}: {} requests, {} replicas", measured.machine,
                    trace.size(), given.simulated_ranks);
    print(title, wanted, reports);
    save_chart(given, "simulated.svg", chart(title, wanted, reports));
    return !given.require_best || dynamic_is_best(reports, 0.02);
}

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        bool right = true;
        if (given.measure) right = run_measured(given) && right;
        if (given.simulate) right = run_on_virtual_clock(given) && right;
        return right ? 0 : 1;
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "serve: {}\n", problem.what());
        return 2;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "serve: {}\n", problem.what());
        return 1;
    }
}
