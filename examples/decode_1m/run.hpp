// What decode_1m does, over ranks of any kind: fill the caches, decode with each merge, compare, print.
//
// A World is the ranks of this process among all:
//   communicator               of a rank
//   speaks()                   whether this process prints
//   share()                    of all ranks, those on this host; all processes call it
//   first(fn)                  fn() on the process that speaks; where it throws config_error, all do
//   agree(all)                 gives all processes the problem's tokens
//   make_engine(all, data)     the engine of this process's ranks
//   run(all, fn)               fn(communicator) on each of them; returns when all have ended
//   reading_threads(all, ranks)   that read at once to see what this host's memory gives
//   gather(known), gather(all, steps)   gives the process that speaks what the others have
//   end()                      prints, after all else for a person, what there is to say of the processes
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

#include "common/memory.hpp"
#include "data.hpp"
#include "engine.hpp"
#include "engine_cuda.hpp"
#include "needs.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "report.hpp"

namespace demo {

constexpr int right = 0;
constexpr int wrong = 1;
constexpr int refused = 2;

inline std::string gib(double bytes) {
    return fmt::format("{:.1f} GiB", bytes / 0x1p30);
}

// Before anything is allocated: refuses what does not fit, or takes fewer tokens where that was asked for. `share` of
// the ranks are on this host.
inline void fit_memory(const options& given, problem& all, double share) {
    const double needed = needed_memory(all);
    const double there = (all.on_gpus ? free_device_memory(all) : available_memory()) / share;
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

template <class World, class Engine>
facts fill(World& world, const problem& all, const std::vector<std::string>& merges, Engine& ranks) {
    const auto start = std::chrono::steady_clock::now();
    {
        std::int64_t tokens = 0;
        for (std::int64_t request = 0; request < all.requests; ++request) tokens += all.filled(request);
        progress bar("fill", world.speaks() ? tokens * all.layers * world.own_ranks(all) / all.law.ranks : 0);
        world.run(all, [&](typename World::communicator& comm) { ranks.fill(comm, merges, bar); });
    }
    facts known;
    known.fill_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    known.pool_bytes = ranks.pool_bytes();
    known.kv_bytes_per_rank =
        known.pool_bytes / static_cast<std::size_t>(world.own_ranks(all)); // every rank has the same
    known.reading_threads = world.reading_threads(all, ranks);
    if (world.speaks()) known.ceiling = ranks.read_bandwidth(known.reading_threads); // while other processes wait
    world.gather(known);
    return known;
}

// The process that speaks compares and prints. Returns its exit status.
template <class World>
int judge_all(World& world, const options& given, const problem& all, const kv_data& data, const facts& known,
              const std::vector<record>& records) {
    if (!world.speaks()) {
        world.end();
        return right;
    }
    const reference expected = make_reference(all, data, heads_to_check(all, data));
    print_reference(all, expected);
    std::vector<verdict> verdicts;
    for (const record& steps : records) verdicts.push_back(judge(all, expected, steps));
    print_verdicts(all, known, verdicts);
    world.end();
    for (const verdict& one : verdicts)
        if (given.json) print_json(all, known, expected, one);
    return std::all_of(verdicts.begin(), verdicts.end(), [](const verdict& one) { return one.pass; }) ? right : wrong;
}

// The exit status, in the process that speaks.
template <class World>
int run(World& world, const options& given) {
    problem all = make_problem(given);
    const double share = world.share();
    world.first([&] { fit_memory(given, all, share); });
    world.agree(all);
    if (world.speaks()) print_problem(all);
    const kv_data data(all);
    const auto ranks = world.make_engine(all, data);
    const facts known = fill(world, all, given.merges, *ranks);
    if (world.speaks()) print_fill(all, known);

    std::vector<record> records;
    for (const std::string& merge : given.merges) {
        record& steps = records.emplace_back(all, merge);
        world.run(all, [&](typename World::communicator& comm) { ranks->decode(comm, steps); });
        world.gather(all, steps);
    }
    return judge_all(world, given, all, data, known, records);
}

} // namespace demo
