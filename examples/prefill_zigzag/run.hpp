// What prefill_zigzag does, over ranks of any kind: print the splits, make the reference, run, compare.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

#include "common/memory.hpp"
#include "data.hpp"
#include "engine.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "report.hpp"

namespace demo {

constexpr int right = 0;
constexpr int wrong = 1;
constexpr int refused = 2;

// Before anything is allocated: pools of one DCP size at a time, rows on their way, outputs of all configurations.
// `share` of the ranks are on this host.
inline void check_memory(const problem& all, double share) {
    double pools = 0.0;
    for (const configuration& each : all.configurations)
        pools = std::max(pools, static_cast<double>(all.pool_bytes(each.dcp)));
    const double states = static_cast<double>(all.chunk * all.q_heads * all.head_dim) * 4;
    const double gathered =
        static_cast<double>(std::min(all.workspace_rows, all.tokens) * all.kv_heads * all.head_dim) * 4;
    const double ranks = static_cast<double>(all.pcp) * share;
    const double outputs = states * static_cast<double>(all.pcp) * static_cast<double>(all.configurations.size());
    const double needed = (pools + 5 * states + gathered) * ranks + outputs + 256e6;
    const double there = available_memory();
    ctxpar::require(needed <= there, "memory", "this run needs about ", fmt::format("{:.1f}", needed / 0x1p30),
                    " GiB of memory and ", fmt::format("{:.1f}", there / 0x1p30),
                    " GiB is available; fewer --tokens would fit");
}

// The exit status, in the process that speaks. run_some(runs) runs configurations of one DCP size over one cache.
template <class World, class Fn>
int run(World& ranks, const options& given, const problem& all, const Fn& run_some) {
    const double share = ranks.share();
    ranks.first([&] { check_memory(all, share); });
    const prompt_data data(all);
    reference expected;
    if (ranks.speaks()) {
        print_problem(all);
        print_splits(all);
        expected = make_reference(all, data);
        print_reference(all, expected);
    }
    std::vector<record> records;
    for (std::size_t first = 0; first < all.configurations.size();) {
        std::vector<configuration> runs;
        while (first < all.configurations.size() && (runs.empty() || all.configurations[first].dcp == runs.front().dcp))
            runs.push_back(all.configurations[first++]);
        for (record& done : run_some(data, runs)) records.push_back(std::move(done));
    }
    if (!ranks.speaks()) {
        ranks.end();
        return right;
    }
    std::vector<verdict> verdicts;
    for (const record& each : records) verdicts.push_back(judge(all, expected, each));
    print_verdicts(all, records, verdicts);
    ranks.end();
    for (std::size_t i = 0; given.json && i < records.size(); ++i) print_json(all, expected, records[i], verdicts[i]);
    return std::all_of(verdicts.begin(), verdicts.end(), [](const verdict& one) { return one.pass; }) ? right : wrong;
}

} // namespace demo
