// prefill_zigzag: the last rows of a long prompt prefilled over PCP ranks, with the cache replicated and sharded, both
// ways in which rows meet the keys of other ranks, checked against an unsharded reference.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

#include "common/memory.hpp"
#include "common/text.hpp"
#include "data.hpp"
#include "engine.hpp"
#include "engine_cuda.hpp"
#include "options.hpp"
#include "reference.hpp"
#include "report.hpp"

namespace {

using namespace demo;

constexpr int right = 0;
constexpr int wrong = 1;
constexpr int refused = 2;

// Before anything is allocated: pools of one DCP size at a time, rows on their way, outputs of all configurations.
void check_memory(const problem& all) {
    double pools = 0.0;
    for (const configuration& each : all.configurations)
        pools = std::max(pools, static_cast<double>(all.pool_bytes(each.dcp)));
    const double states = static_cast<double>(all.chunk * all.q_heads * all.head_dim) * 4;
    const double gathered =
        static_cast<double>(std::min(all.workspace_rows, all.tokens) * all.kv_heads * all.head_dim) * 4;
    const double ranks = static_cast<double>(all.pcp);
    const double outputs = states * ranks * static_cast<double>(all.configurations.size());
    const double needed = (pools + 5 * states + gathered) * ranks + outputs + 256e6;
    const double there = available_memory();
    ctxpar::require(needed <= there, "memory", "this run needs about ", fmt::format("{:.1f}", needed / 0x1p30),
                    " GiB of memory and ", fmt::format("{:.1f}", there / 0x1p30),
                    " GiB is available; fewer --tokens would fit");
}

int run(const options& given) {
    const problem all = make_problem(given);
    if (all.on_gpus) check_cuda(all);
    check_memory(all);
    print_problem(all);
    print_splits(all);
    const prompt_data data(all);
    const reference expected = make_reference(all, data);
    print_reference(all, expected);

    std::vector<record> records;
    for (std::size_t first = 0; first < all.configurations.size();) {
        std::vector<configuration> runs; // of one DCP size, over one cache
        while (first < all.configurations.size() && (runs.empty() || all.configurations[first].dcp == runs.front().dcp))
            runs.push_back(all.configurations[first++]);
        for (record& done : run_configurations(all, data, runs)) records.push_back(std::move(done));
    }
    std::vector<verdict> verdicts;
    for (const record& each : records) verdicts.push_back(judge(all, expected, each));
    print_verdicts(all, records, verdicts);
    for (std::size_t i = 0; given.json && i < records.size(); ++i) print_json(all, expected, records[i], verdicts[i]);
    return std::all_of(verdicts.begin(), verdicts.end(), [](const verdict& one) { return one.pass; }) ? right : wrong;
}

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        return run(given);
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "prefill_zigzag: {}\n", problem.what());
        return refused;
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "prefill_zigzag: there is too little memory\n");
        return refused;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "prefill_zigzag: {}\n", problem.what());
        return wrong;
    }
}
