// decode_1m: decode over a million tokens of KV cache that no rank holds alone, checked against an unsharded reference.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/core/error.hpp>

#include "common/memory.hpp"
#include "data.hpp"
#include "engine.hpp"
#include "engine_cuda.hpp"
#include "needs.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "report.hpp"

namespace {

using namespace demo;

constexpr int right = 0;
constexpr int wrong = 1;
constexpr int refused = 2;

// Threads outnumber cores, so that a rank may wait long for its peers.
const ctxpar::local_options patient{std::chrono::minutes(30)};

std::string gib(double bytes) {
    return fmt::format("{:.1f} GiB", bytes / 0x1p30);
}

// Before anything is allocated: refuses what does not fit, or takes fewer tokens where that was asked for.
void fit_memory(const options& given, problem& all) {
    const double needed = needed_memory(all);
    const double there = all.on_gpus ? free_device_memory(all) : available_memory();
    if (needed <= there) return;
    const std::int64_t fits = fitting_tokens(all, there);
    if (given.fit && fits > 0) {
        fmt::print("{} tokens need {} of memory and {} is available: {} tokens are taken instead\n", all.tokens,
                   gib(needed), gib(there), fits);
        all.tokens = fits;
        return;
    }
    const std::string advice =
        fits > 0 ? fmt::format("--tokens {} would fit", fits) : std::string("not even --tokens 1024 would fit");
    ctxpar::raise(
        ctxpar::config_error("memory", fmt::format("this run needs about {} of memory and {} is available; {}",
                                                   gib(needed), gib(there), advice)));
}

facts fill(const problem& all, const std::vector<std::string>& merges, engine& ranks) {
    const auto start = std::chrono::steady_clock::now();
    const int world = static_cast<int>(all.ranks().world_size());
    {
        std::int64_t tokens = 0;
        for (std::int64_t request = 0; request < all.requests; ++request) tokens += all.filled(request);
        progress bar("fill", tokens * all.layers * world / all.law.ranks);
        ctxpar::run_local_ranks(world, patient,
                                [&](ctxpar::local_communicator& comm) { ranks.fill(comm, merges, bar); });
    }
    facts known;
    known.fill_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    known.pool_bytes = ranks.pool_bytes();
    known.kv_bytes_per_rank = known.pool_bytes / static_cast<std::size_t>(world); // every rank has the same
    known.reading_threads = ranks.reading_threads();
    known.ceiling = ranks.read_bandwidth(known.reading_threads);
    return known;
}

int run(const options& given) {
    problem all = make_problem(given);
    fit_memory(given, all);
    print_problem(all);
    const kv_data data(all);
    const std::unique_ptr<engine> ranks = make_engine(all, data);
    const facts known = fill(all, given.merges, *ranks);
    print_fill(all, known);

    std::vector<record> records;
    for (const std::string& merge : given.merges) {
        record& steps = records.emplace_back(all, merge);
        ctxpar::run_local_ranks(static_cast<int>(steps.world), patient,
                                [&](ctxpar::local_communicator& comm) { ranks->decode(comm, steps); });
    }
    const reference expected = make_reference(all, data, heads_to_check(all, data));
    print_reference(all, expected);

    std::vector<verdict> verdicts;
    for (const record& steps : records) verdicts.push_back(judge(all, expected, steps));
    print_verdicts(all, known, verdicts);
    for (const verdict& one : verdicts)
        if (given.json) print_json(all, known, expected, one);
    return std::all_of(verdicts.begin(), verdicts.end(), [](const verdict& one) { return one.pass; }) ? right : wrong;
}

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        return run(given);
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "decode_1m: {}\n", problem.what());
        return refused;
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "decode_1m: there is too little memory\n");
        return refused;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "decode_1m: {}\n", problem.what());
        return wrong;
    }
}
