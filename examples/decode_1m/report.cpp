#include "report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ctxpar/core/error.hpp>

#include "common/text.hpp"

namespace demo {
namespace {

// Why the KV is shared over PCP where it is: what the library says to the same DCP inside TP.
void print_why_pcp(const problem& all) {
    if (all.is_mla() || all.sizes.pcp == 1 || all.sizes.tp != 1) return;
    ctxpar::topology inside = all.sizes;
    inside.tp = all.sizes.pcp;
    inside.pcp = 1;
    try {
        ctxpar::check_topology(inside, {all.kind, all.q_heads, all.kv_heads}, ctxpar::topology_rules::general);
    } catch (const ctxpar::config_error& refusal) {
        fmt::print("  DCP runs over PCP, as inside TP {} it would be refused:\n    {}\n", inside.tp, refusal.what());
    }
}

// Bytes a rank would hold without DCP, every token of its KV heads.
std::uint64_t replicated_bytes(const problem& all) {
    return static_cast<std::uint64_t>(all.tokens) *
           static_cast<std::uint64_t>(all.requests * all.layers * all.token_bytes());
}

// "1.5 1.4 1.6", the first few of many.
std::string each_step(const verdict& one) {
    std::string text;
    constexpr std::size_t most = 8;
    for (std::size_t i = 0; i < std::min(most, one.seconds.size()); ++i)
        text += fmt::format("{}{:.4g}", i == 0 ? "" : " ", one.seconds[i] * 1e3);
    return text + (one.seconds.size() > most ? " ..." : "");
}

// Smaller working sets stay in the caches, where memory bandwidth is no ceiling.
bool exceeds_caches(const facts& known) {
    return known.pool_bytes > std::size_t{512} << 20;
}

} // namespace

void print_problem(const problem& all) {
    const ctxpar::mesh ranks = all.ranks();
    if (all.is_mla()) {
        fmt::print("MLA, {} heads over rows of {} + {}, ", all.q_heads, all.value_width,
                   all.query_width - all.value_width);
    } else {
        fmt::print("GQA, {} query and {} KV heads of {}, ", all.q_heads, all.kv_heads, all.query_width);
    }
    fmt::print("{} cache, {} tokens{}\n", name_of(all.kv_type), grouped(all.tokens),
               all.requests > 1 ? fmt::format(" in the longest of {} requests", all.requests) : std::string());
    fmt::print("  DCP {} over TP {} x PCP {}, interleave {}, blocks of {} tokens, {}, {}, {} a step\n", all.law.ranks,
               all.sizes.tp, all.sizes.pcp, all.law.interleave, all.block_size, counted(all.layers, "layer"),
               counted(all.requests, "request"), counted(all.query_rows, "query row"));
    print_why_pcp(all);
    fmt::print("  m {}, heads owned Hl {}, heads evaluated Hg {}\n", ranks.distinct_tp(), ranks.heads_per_rank(),
               ranks.gathered_heads());
    std::fflush(stdout);
}

void print_fill(const problem& all, const facts& known) {
    const double part = static_cast<double>(known.kv_bytes_per_rank) / static_cast<double>(replicated_bytes(all));
    fmt::print("  KV cache: {} bytes allocated on each rank; without DCP {} ({:.3g} times as much)\n",
               grouped(std::uint64_t{known.kv_bytes_per_rank}), grouped(replicated_bytes(all)), 1 / part);
    const std::string readers = known.reading_threads == 0 ? std::string("copies on the GPUs move")
                                                           : counted(known.reading_threads, "thread") +
                                                                 (known.reading_threads == 1 ? " reads" : " read");
    fmt::print("  filled in {:.1f} s; {} {:.1f} GB/s{}{}\n", known.fill_seconds, readers, known.ceiling / 1e9,
               known.reading_threads == 0 ? "" : " of it",
               exceeds_caches(known) ? "" : " (a pool this small says nothing about memory)");
    std::fflush(stdout);
}

void print_reference(const problem& all, const reference& right) {
    const auto checked = static_cast<std::int64_t>(right.heads.size());
    fmt::print("  compared with {} in double precision, {}; made in {:.1f} s\n",
               checked == all.q_heads ? fmt::format("all {} heads", checked)
                                      : fmt::format("{} of {} heads", checked, all.q_heads),
               checked == all.q_heads ? "every row of every step"
                                      : "every KV head, every rank, every row of every step",
               right.seconds);
    fmt::print(
        "  planted tokens each have at least {:.1f}% of a checked head; shard LSEs are up to {:.1f} nats apart\n",
        right.least_planted_share * 100, right.shard_lse_spread);
    std::fflush(stdout);
}

void print_verdicts(const problem& all, const facts& known, const std::vector<verdict>& verdicts) {
    constexpr const char* line = "  {:<6} {:>11} {:>8} {:>12} {:>9} {:>8} {:>7} {:>7} {:>9} {:>9}{}\n";
    fmt::print("\n");
    fmt::print(line, "", "collectives", "launches", "bytes sent", "ms a step", "KV read", "of the", "", "largest",
               "relative", "");
    fmt::print(line, "merge", "a layer", "a layer", "a rank, step", "(median)", "GB/s", "ceiling", "GFLOP/s", "error",
               "L2 error", "");
    for (const verdict& one : verdicts) {
        const std::string of_ceiling =
            exceeds_caches(known) ? fmt::format("{:.0f}%", 100 * one.read_rate / known.ceiling) : "-";
        fmt::print(line, one.merge, one.collectives, one.launches, grouped(one.bytes_sent),
                   fmt::format("{:.4g}", one.median_seconds * 1e3), fmt::format("{:.3g}", one.read_rate / 1e9),
                   of_ceiling, fmt::format("{:.3g}", one.flop_rate / 1e9), fmt::format("{:.1e}", one.worst.max_abs),
                   fmt::format("{:.1e}", one.worst.relative_l2), one.pass ? "  pass" : "  FAIL");
    }
    double worst = 0.0;
    for (const verdict& one : verdicts) {
        fmt::print("  {}: ms of each step {}\n", one.merge, each_step(one));
        if (one.bytes_sent != one.bytes_planned)
            fmt::print("  {}: a rank sent {} bytes a step; exchange() says {}\n", one.merge, grouped(one.bytes_sent),
                       grouped(one.bytes_planned));
        worst = std::max(worst, one.worst.relative_l2);
    }
    fmt::print("  the relative L2 error may be {:.0e}", error_bound(all));
    if (all.injected != fault::none)
        fmt::print("; with the injected fault it is {:.3g} times that", worst / error_bound(all));
    fmt::print("\n");
    std::fflush(stdout);
}

void print_json(const problem& all, const facts& known, const reference& right, const verdict& one) {
    std::vector<double> steps;
    for (const double seconds : one.seconds) steps.push_back(seconds * 1e3);
    nlohmann::ordered_json line = {{"attention", all.is_mla() ? "mla" : "gqa"},
                                   {"tokens", all.tokens},
                                   {"ranks", all.law.ranks},
                                   {"tp", all.sizes.tp},
                                   {"pcp", all.sizes.pcp},
                                   {"interleave", all.law.interleave},
                                   {"block_size", all.block_size},
                                   {"merge", one.merge},
                                   {"kv_type", name_of(all.kv_type)},
                                   {"q_heads", all.q_heads},
                                   {"kv_heads", all.kv_heads},
                                   {"layers", all.layers},
                                   {"batch", all.requests},
                                   {"query_rows", all.query_rows},
                                   {"kv_bytes_per_rank", known.kv_bytes_per_rank},
                                   {"kv_bytes_replicated", replicated_bytes(all)},
                                   {"collectives_per_layer", one.collectives},
                                   {"launches_per_layer", one.launches},
                                   {"ms_per_step", one.median_seconds * 1e3},
                                   {"ms_of_steps", steps},
                                   {"read_gb_per_s", one.read_rate / 1e9},
                                   {"read_bandwidth_gb_per_s", known.ceiling / 1e9},
                                   {"read_bandwidth_fraction", one.read_rate / known.ceiling},
                                   {"gflop_per_s", one.flop_rate / 1e9},
                                   {"bytes_sent_per_rank", one.bytes_sent},
                                   {"bytes_planned_per_rank", one.bytes_planned},
                                   {"heads_checked", right.heads.size()},
                                   {"max_abs_error", one.worst.max_abs},
                                   {"relative_l2_error", one.worst.relative_l2},
                                   {"worst_head_relative_l2", one.worst.worst_head},
                                   {"error_bound", error_bound(all)},
                                   {"least_planted_share", right.least_planted_share},
                                   {"shard_lse_spread", right.shard_lse_spread},
                                   {"fill_seconds", known.fill_seconds},
                                   {"reference_seconds", right.seconds},
                                   {"pass", one.pass}};
    fmt::print("{}\n", line.dump());
}

} // namespace demo
