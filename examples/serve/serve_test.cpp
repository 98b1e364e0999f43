// The parts of serve that no run of it shows by itself.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/plan/router.hpp>

#include "blocks.hpp"
#include "check.hpp"
#include "engine.hpp"
#include "schedule.hpp"
#include "simulate.hpp"

using namespace serve;

namespace {

ctxpar::prefix_key key_of(std::uint64_t number) {
    return {number, number};
}

simulated plain_machine() {
    simulated machine;
    machine.costs.collectives = {{ctxpar::collective_op::all_gather, 2, 5, 5000},
                                 {ctxpar::collective_op::all_to_all, 2, 5, 5000}};
    machine.costs.read_bytes_per_us = 10'000;
    machine.costs.flops_per_us = 50'000;
    machine.costs.attend_us = 5;
    machine.costs.merge_bytes_per_us = 10'000;
    machine.costs.merge_us = 2;
    machine.model.heads = model_dims::q_heads;
    machine.model.query_width = machine.model.value_width = model_dims::head_dim;
    machine.model.bytes_per_token = 256;
    machine.layers = 2;
    machine.row_us = 20;
    return machine;
}

// A scheduler, and what it needs.
struct setting {
    simulated machine = plain_machine();
    std::vector<asked> trace;
    ctxpar::router routes;
    scheduler steps;

    setting(std::vector<asked> requests, std::int64_t ranks, std::int64_t blocks,
            const std::vector<std::int64_t>& sizes, double pause = 2)
        : trace(std::move(requests)), routes(routes_of(machine, ranks, blocks, sizes)),
          steps(options_of(machine, ranks, blocks, sizes, pause), routes, trace) {}

    static ctxpar::router routes_of(const simulated& machine, std::int64_t ranks, std::int64_t blocks,
                                    std::vector<std::int64_t> sizes) {
        ctxpar::router_options how;
        how.layers = machine.layers;
        how.row_us = how.decode_row_us = machine.row_us;
        how.reshard_bytes_per_us = 2000;
        return {machine.costs, machine.model, {ranks, 16, 16, blocks, std::move(sizes)}, how};
    }
    static schedule_options options_of(const simulated& machine, std::int64_t ranks, std::int64_t blocks,
                                       const std::vector<std::int64_t>& sizes, double pause) {
        schedule_options how;
        how.ranks = ranks;
        how.sizes = sizes;
        how.pause = pause;
        how.pool_blocks = blocks;
        how.row_us = [machine](std::int64_t tokens) { return row_us(machine, tokens); };
        return how;
    }
};

std::vector<asked> random_trace(std::uint64_t seed, std::int64_t requests) {
    trace_options wanted;
    wanted.seed = seed;
    wanted.requests = requests;
    wanted.longest = 8192;
    wanted.outputs = 40;
    wanted.rate = 20;
    return make_trace(wanted);
}

} // namespace

TEST_CASE("blocks go back to the pools with their last owner") {
    block_pools pools(4, 3);
    prefix_cache cache(pools);
    {
        const shared_block pair = cache.make({2, 2});
        CHECK(pools.free_blocks(1) == 3);
        CHECK(pools.free_blocks(2) == 2);
        const shared_block same = pair;
        CHECK(same->id_on(3) == pair->id_on(3));
    }
    for (std::int64_t rank = 0; rank < 4; ++rank) CHECK(pools.free_blocks(rank) == 3);
}

TEST_CASE("a prefix is found as far as it is cached in the same place, and unused blocks make room, oldest first") {
    block_pools pools(2, 3);
    prefix_cache cache(pools);
    for (std::uint64_t i = 0; i < 3; ++i) cache.keep({0, 1}, key_of(i), cache.make({0, 1}));
    const std::vector<ctxpar::prefix_key> keys = {key_of(0), key_of(1), key_of(9), key_of(2)};
    std::vector<shared_block> found = cache.find({0, 1}, keys);
    CHECK(found.size() == 2);
    CHECK(cache.find({1, 1}, keys).empty());
    CHECK(cache.find({0, 2}, keys).empty());
    const shared_block made = cache.make({0, 2}); // of rank 0 in place of block 2, which nobody uses
    REQUIRE(made != nullptr);
    CHECK(cache.find({0, 1}, std::vector{key_of(2)}).empty());
    CHECK(cache.make({0, 1}) == nullptr);
    found.clear();
    CHECK(cache.find({0, 1}, std::vector{key_of(0)}).size() == 1); // the youngest now
    CHECK(cache.make({0, 1}) != nullptr);
    CHECK(cache.find({0, 1}, std::vector{key_of(1)}).empty());
    CHECK(cache.find({0, 1}, std::vector{key_of(0)}).size() == 1);
}

TEST_CASE("every request is served whole, in whatever sizes, and the same way again") {
    for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{{1}, {4}, {1, 2, 4}, {1, 2}}) {
        setting once(random_trace(3, 60), 4, 2000, sizes), again(random_trace(3, 60), 4, 2000, sizes);
        run_simulated(once.steps, once.machine, 4);
        run_simulated(again.steps, again.machine, 4);
        for (std::size_t i = 0; i < once.trace.size(); ++i) {
            const served& result = once.steps.results()[i];
            CHECK(static_cast<std::int64_t>(result.outputs.size()) == once.trace[i].outputs);
            CHECK(result.first_s > once.trace[i].arrives_s);
            CHECK(result.end_s >= result.first_s);
            CHECK(result.end_s == again.steps.results()[i].end_s);
        }
        CHECK(once.routes.requests() == 0);
    }
}

TEST_CASE("requests wait for room, and those that can never have it are refused with a reason") {
    std::vector<asked> trace = random_trace(5, 40);
    trace[7].prompt.assign(40'000, 1);
    const std::int64_t blocks = 640; // 10240 tokens a rank
    setting alone(trace, 4, blocks, {1}), joined(trace, 4, blocks, {1, 2, 4});
    run_simulated(alone.steps, alone.machine, 4);
    run_simulated(joined.steps, joined.machine, 4);
    CHECK(alone.steps.results()[7].outputs.empty());
    CHECK(alone.steps.results()[7].refused.find("can never fit") != std::string::npos);
    CHECK(joined.steps.results()[7].refused.empty()); // fits on four ranks together
    for (std::size_t i = 0; i < trace.size(); ++i)
        CHECK(static_cast<std::int64_t>(joined.steps.results()[i].outputs.size()) == trace[i].outputs);
}

namespace {

// Mean seconds of requests with at most, or with more than, so many tokens.
double mean_latency(const setting& of, bool is_short) {
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < of.trace.size(); ++i) {
        if ((of.trace[i].prompt.size() <= 1024) != is_short) continue;
        sum += of.steps.results()[i].end_s - of.trace[i].arrives_s;
        ++count;
    }
    return sum / count;
}

// Requests on one rank each beside one that is spread over both and generates for longer than they take.
std::vector<asked> short_beside_long() {
    std::vector<asked> trace(1);
    trace[0].prompt.assign(60'000, 1);
    trace[0].outputs = 1000;
    setting first(trace, 2, 8000, {2});
    run_simulated(first.steps, first.machine, 2);
    trace.resize(5);
    for (std::size_t i = 1; i < trace.size(); ++i) {
        trace[i].arrives_s = first.steps.results()[0].first_s + 0.1;
        trace[i].prompt.assign(300 + 16 * i, static_cast<std::int32_t>(i));
        trace[i].outputs = 100;
    }
    return trace;
}

} // namespace

TEST_CASE("after a step of a wide place those inside it have a pause of it, and no more") {
    setting paused(short_beside_long(), 2, 8000, {1, 2}), together(short_beside_long(), 2, 8000, {1, 2}, 0);
    setting joined(short_beside_long(), 2, 8000, {2});
    for (setting* each : {&paused, &together, &joined}) run_simulated(each->steps, each->machine, 2);
    CHECK(paused.steps.results()[0].end_s > paused.steps.results()[1].end_s); // they ran together
    const double beside = paused.steps.results()[1].end_s - paused.trace[1].arrives_s;
    CHECK(mean_latency(paused, true) < 0.7 * mean_latency(together, true));
    CHECK(mean_latency(paused, true) < mean_latency(joined, true));
    // The long one waits two thirds of the time at most, while the others run.
    CHECK(paused.steps.results()[0].end_s < together.steps.results()[0].end_s + 0.7 * beside);
}

TEST_CASE("dynamic sizes serve short and long prompts at least as well as the better of one size") {
    for (const std::uint64_t seed : {3U, 4U, 5U, 6U}) {
        setting apart(random_trace(seed, 100), 4, 2000, {1}), joined(random_trace(seed, 100), 4, 2000, {4});
        setting dynamic(random_trace(seed, 100), 4, 2000, {1, 2, 4});
        for (setting* each : {&apart, &joined, &dynamic}) run_simulated(each->steps, each->machine, 4);
        for (const bool is_short : {true, false}) {
            CAPTURE(is_short);
            const double best = std::min(mean_latency(apart, is_short), mean_latency(joined, is_short));
            CHECK(mean_latency(dynamic, is_short) < 1.02 * best);
        }
    }
}

TEST_CASE("places that would overlap are refused") {
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{1, 2, 3}, {4}, {2, 3, 6}, {0, 6}}) {
        std::string problem;
        try {
            setting(random_trace(3, 2), 6, 2000, sizes);
        } catch (const ctxpar::config_error& refused) {
            problem = refused.what();
        }
        CHECK(problem.find("must divide") != std::string::npos);
    }
}

TEST_CASE("a prompt shares the blocks of an earlier one that begins alike") {
    asked first;
    first.prompt.assign(1000, 3);
    asked second = first;
    second.arrives_s = 1000;
    second.prompt.resize(700);
    setting both({first, second}, 2, 500, {2});
    run_simulated(both.steps, both.machine, 2);
    CHECK(both.steps.results()[0].reused == 0);
    CHECK(both.steps.results()[1].reused == 672); // 21 virtual blocks of 32: the 700th token itself is computed
}

TEST_CASE("one rank alone gives what plain attention in double precision gives") {
    const model<float> weights(7);
    const model<double> wide(7);
    std::int64_t checked = 0;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        trace_options wanted;
        wanted.seed = seed;
        wanted.requests = 1;
        wanted.longest = 600;
        const asked request = make_trace(wanted)[0];
        std::vector<std::int32_t> outputs(20);
        for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = static_cast<std::int32_t>(i * 37);
        const expected right = in_double(wide, request.prompt, outputs);
        const expected found = unsharded(weights, request.prompt, outputs, 1);
        REQUIRE(found.size() == right.size());
        for (std::size_t i = 0; i < right.size(); ++i) {
            if (right[i].margin < least_margin) continue;
            CHECK(found[i].token == right[i].token);
            CHECK(found[i].margin == doctest::Approx(right[i].margin).epsilon(0.01));
            ++checked;
        }
    }
    CHECK(checked > 50);
}

TEST_CASE("a missing key shows in what follows") {
    const model<double> weights(7);
    trace_options wanted;
    wanted.requests = 1;
    wanted.shortest = wanted.longest = 600;
    asked request = make_trace(wanted)[0];
    const std::vector<std::int32_t> outputs(24, 5);
    const expected right = in_double(weights, request.prompt, outputs);
    std::int64_t differ = 0;
    for (std::size_t spoiled = 100; spoiled < 600; spoiled += 125) {
        std::vector<std::int32_t> prompt = request.prompt;
        for (std::size_t i = 0; i < 16; ++i) prompt[spoiled + i] = (prompt[spoiled + i] + 1) % 1024; // one block
        const expected found = in_double(weights, prompt, outputs);
        for (std::size_t i = 0; i < right.size(); ++i) differ += found[i].token != right[i].token ? 1 : 0;
    }
    CHECK(differ > 10);
}
