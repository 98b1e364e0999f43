#include "report.hpp"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/text.hpp"
#include "splits.hpp"

namespace demo {
namespace {

// "1,024 1,024", the first few of many, each `width` wide.
std::string each_rank(const std::vector<std::int64_t>& numbers) {
    constexpr std::size_t most = 8;
    std::string text;
    for (std::size_t i = 0; i < std::min(most, numbers.size()); ++i)
        text += fmt::format("{}{}", i == 0 ? "" : " ", grouped(numbers[i]));
    return text + (numbers.size() > most ? " ..." : "");
}

void print_split_table(std::int64_t pcp, std::int64_t rows, std::int64_t computed) {
    fmt::print("\n  {} rows over PCP {}{}\n", grouped(rows), pcp,
               computed > 0 ? ", behind " + grouped(computed) + " computed tokens" : ", the whole prompt");
    const auto facts = compare_splits(pcp, rows, computed);
    std::size_t tokens = 6;
    std::size_t work = 4;
    for (const split_facts& each : facts) {
        tokens = std::max(tokens, each_rank(each.tokens).size());
        work = std::max(work, each_rank(each.work).size());
    }
    fmt::print("  {:<12}{:<{}}  {:>6}  {:<{}}  {}\n", "split", "tokens of each rank", std::max<std::size_t>(tokens, 19),
               "rows", "(row, key) pairs of each rank", std::max<std::size_t>(work, 29), "largest / mean");
    for (const split_facts& each : facts)
        fmt::print("  {:<12}{:<{}}  {:>6}  {:<{}}  {:.3f}\n", each.name, each_rank(each.tokens),
                   std::max<std::size_t>(tokens, 19), grouped(each.rows), each_rank(each.work),
                   std::max<std::size_t>(work, 29), each.imbalance());
}

} // namespace

void print_problem(const problem& all) {
    fmt::print("GQA, {} query and {} KV heads of {}, bf16 cache; a prompt of {} tokens\n", all.q_heads, all.kv_heads,
               all.head_dim, grouped(all.tokens));
    fmt::print("  {} tokens are filled by append, {} rows are then attended over PCP {}\n", grouped(all.computed()),
               grouped(all.chunk), all.pcp);
    fmt::print("  interleave {}, blocks of {} tokens, {} a rank, {} kernels\n", all.interleave, all.block_size,
               counted(all.threads_per_rank, "thread"), name_of(all.instructions));
    std::fflush(stdout);
}

void print_splits(const problem& all) {
    print_split_table(all.pcp, all.chunk, all.computed());
    if (all.computed() > 0) print_split_table(all.pcp, all.chunk, 0);
    print_split_table(all.pcp, 2 * all.pcp + 1, 0); // few rows, which do not divide evenly
    fmt::print("\n");
    std::fflush(stdout);
}

void print_reference(const problem& all, const reference& right) {
    const auto rows = static_cast<std::int64_t>(right.rows.size());
    fmt::print("  compared with {} in double precision, all heads; made in {:.1f} s\n",
               rows == all.chunk ? fmt::format("all {} rows", grouped(rows))
                                 : fmt::format("{} of {} rows, of every head and tail the first, the middle and the "
                                               "last one,",
                                               rows, grouped(all.chunk)),
               right.seconds);
    fmt::print("  planted tokens each have at least {:.1f}% of a checked row; shard LSEs are up to {:.1f} nats apart\n",
               right.least_planted_share * 100, right.shard_lse_spread);
    std::fflush(stdout);
}

void print_verdicts(const problem& all, const std::vector<record>& runs, const std::vector<verdict>& verdicts) {
    constexpr const char* line = "  {:<4}{:<10}{:>8}{:>8}{:>14}{:>15}{:>15}{:>10}{:>10}{:>11}{}\n";
    fmt::print("\n");
    fmt::print(line, "", "", "", "GFLOP", "bytes sent", "KV bytes", "workspace", "relative", "largest", "error of", "");
    fmt::print(line, "dcp ", "path", "seconds", "/s", "a rank", "a rank", "bytes", "L2 error", "error", "LSE", "");
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const record& run = runs[i];
        const verdict& one = verdicts[i];
        fmt::print(line, run.run.dcp, run.run.name(), fmt::format("{:.3g}", run.seconds()),
                   fmt::format("{:.3g}", one.flop_rate / 1e9), grouped(run.ranks.front().sent),
                   grouped(std::uint64_t{run.kv_bytes}), grouped(std::uint64_t{run.workspace_bytes}),
                   fmt::format("{:.1e}", one.relative_l2), fmt::format("{:.1e}", one.max_abs),
                   fmt::format("{:.1e}", one.lse_error), one.pass ? "  pass" : "  FAIL");
    }
    fmt::print("\n");
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const record& run = runs[i];
        fmt::print("  dcp {} {}: {}\n", run.run.dcp, run.run.name(),
                   run.collectives.empty() ? "nothing is sent" : fmt::format("{}", fmt::join(run.collectives, ", ")));
        const bool last = i + 1 == runs.size() || runs[i + 1].run.dcp != run.run.dcp;
        if (last && run.run.dcp > 1)
            fmt::print("    rows and keys meet for {} bytes by gather_q, {} by gather_kv; automatic takes {} ({})\n",
                       grouped(run.automatic.bytes_gather_q), grouped(run.automatic.bytes_gather_kv),
                       run.automatic.requests_gather_q > 0 ? "gather_q" : "gather_kv", run.automatic.reason);
        if (!verdicts[i].bytes_agree)
            fmt::print("    a rank sent {} bytes; its schedule says {}\n", grouped(run.ranks.front().sent),
                       grouped(run.planned));
        if (!verdicts[i].ranks_agree) fmt::print("    ranks restored different rows\n");
    }
    double worst = 0.0;
    for (const verdict& one : verdicts) worst = std::max(worst, one.relative_l2);
    fmt::print("  the relative L2 error may be {:.0e}, that of an LSE 2e-6 or two units in its last place",
               error_bound(all));
    if (all.injected != fault::none)
        fmt::print("; with the injected fault the former is {:.3g} times that", worst / error_bound(all));
    fmt::print("\n");
    std::fflush(stdout);
}

void print_json(const problem& all, const reference& right, const record& run, const verdict& one) {
    nlohmann::ordered_json splits;
    for (const split_facts& each : compare_splits(all.pcp, all.chunk, all.computed()))
        splits[each.name] = {{"tokens", each.tokens}, {"rows", each.rows}, {"work", each.work}};
    nlohmann::ordered_json line = {{"tokens", all.tokens},
                                   {"chunk", all.chunk},
                                   {"pcp", all.pcp},
                                   {"dcp", run.run.dcp},
                                   {"path", run.run.name()},
                                   {"interleave", all.interleave},
                                   {"block_size", all.block_size},
                                   {"q_heads", all.q_heads},
                                   {"kv_heads", all.kv_heads},
                                   {"head_dim", all.head_dim},
                                   {"kernels", name_of(all.instructions)},
                                   {"threads_per_rank", all.threads_per_rank},
                                   {"splits", splits},
                                   {"seconds", run.seconds()},
                                   {"gflop_per_s", one.flop_rate / 1e9},
                                   {"bytes_sent_per_rank", run.ranks.front().sent},
                                   {"bytes_planned_per_rank", run.planned},
                                   {"collectives", run.collectives},
                                   {"bytes_gather_q", run.automatic.bytes_gather_q},
                                   {"bytes_gather_kv", run.automatic.bytes_gather_kv},
                                   {"automatic", run.automatic.requests_gather_q > 0 ? "gather_q" : "gather_kv"},
                                   {"automatic_reason", run.automatic.reason},
                                   {"reason", run.choice.reason},
                                   {"kv_bytes_per_rank", run.kv_bytes},
                                   {"workspace_bytes", run.workspace_bytes},
                                   {"rows_checked", right.rows.size()},
                                   {"max_abs_error", one.max_abs},
                                   {"relative_l2_error", one.relative_l2},
                                   {"worst_vector_relative_l2", one.worst_vector},
                                   {"lse_error", one.lse_error},
                                   {"error_bound", error_bound(all)},
                                   {"least_planted_share", right.least_planted_share},
                                   {"shard_lse_spread", right.shard_lse_spread},
                                   {"fill_seconds", run.fill_seconds},
                                   {"reference_seconds", right.seconds},
                                   {"pass", one.pass}};
    fmt::print("{}\n", line.dump());
}

} // namespace demo
