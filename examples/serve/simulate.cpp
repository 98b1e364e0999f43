#include "simulate.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include <ctxpar/layout/zigzag.hpp>
#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/router.hpp>

namespace serve {
namespace {

using namespace ctxpar;

// A batch of one place in one layer, on its fullest rank. Decode rows are on all ranks. The rows of a prefill are split
// over them.
double batch_us(const simulated& machine, const place_batch& batch) {
    const machine_costs& costs = machine.costs;
    const model_shape& model = machine.model;
    const std::int64_t ranks = batch.where.ranks;
    const ownership law = make_ownership(ranks, machine.interleave);
    exchange_shape shape;
    shape.ranks = ranks;
    shape.gathered_heads = model.heads;
    shape.query_width = model.query_width;
    shape.value_width = model.value_width;
    shape.partial_bytes = model.partial_bytes;
    shape.output_bytes = model.output_bytes;
    std::vector<request_load> loads;
    std::int64_t rows = 0;
    double exchange_us = 0;
    for (const step_entry& entry : batch.entries) {
        if (entry.decodes) {
            loads.push_back({entry.tokens, law.local_len(entry.computed + entry.tokens, 0)});
            shape.rows += entry.tokens;
            rows += entry.tokens;
            continue;
        }
        const std::int64_t own = make_zigzag(ranks).most_rows(entry.tokens);
        rows += own;
        // As prefill_path::automatic: the queries travel, or the context, whichever is fewer bytes.
        const std::int64_t queries = own * model.heads * (model.query_width + model.value_width + 1) * 4;
        const std::int64_t context = law.local_len(entry.computed, 0) * model.bytes_per_token;
        const std::int64_t seen = entry.computed + entry.tokens / 2; // by a new token on the average
        if (queries < context)
            loads.push_back({entry.tokens, law.local_len(seen, 0)});
        else
            loads.push_back({own, seen});
        exchange_us += call_us(costs, collective_op::all_gather, static_cast<std::int32_t>(ranks),
                               static_cast<double>(own * model.bytes_per_token + std::min(queries, context)), 3);
    }
    const attention_load load{model.heads, model.query_width, model.value_width, model.bytes_per_token, 0, loads};
    const double attention_us =
        shape.rows == 0 ? ctxpar::attention_us(costs, load) : best_merge(costs, shape, load).cost.total_us();
    return attention_us + exchange_us + static_cast<double>(rows) * machine.row_us;
}

double move_us(const simulated& machine, const step_move& part) {
    const model_shape& model = machine.model;
    const regrouped tokens = regroup(part.from, part.to, machine.interleave, part.end - part.first);
    const auto bytes = static_cast<double>(tokens.busiest * model.bytes_per_token * machine.layers);
    const double sent = call_us(machine.costs, collective_op::all_to_all, static_cast<std::int32_t>(part.over.ranks),
                                bytes, static_cast<std::int32_t>(machine.layers));
    return bytes / machine.costs.read_bytes_per_us + sent;
}

} // namespace

double row_us(const simulated& machine, std::int64_t tokens) {
    const model_shape& model = machine.model;
    const auto flops = static_cast<double>(2 * model.heads * (model.query_width + model.value_width) * tokens);
    return static_cast<double>(machine.layers) * (machine.row_us + flops / machine.costs.flops_per_us);
}

double step_us(const simulated& machine, const step& taken) {
    double slowest = 0;
    for (std::int64_t rank = taken.ranks.first; rank < end_of(taken.ranks); ++rank) {
        double own = 0;
        for (const place_batch& batch : taken.batches)
            if (batch.where.holds(rank)) own += batch_us(machine, batch) * static_cast<double>(machine.layers);
        slowest = std::max(slowest, own);
    }
    for (const step_move& part : taken.moves) slowest += move_us(machine, part);
    return slowest;
}

void run_simulated(scheduler& steps, const simulated& machine, std::int64_t ranks) {
    struct running_step {
        std::shared_ptr<const step> what;
        double end_s = 0;
    };
    std::vector<running_step> running;
    double now_s = 0;
    const auto begin_all = [&] {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
            if (std::any_of(running.begin(), running.end(),
                            [&](const running_step& each) { return each.what->ranks.holds(rank); }))
                continue;
            if (const auto made = steps.begin(rank, now_s); made != nullptr)
                running.push_back({made, now_s + step_us(machine, *made) * 1e-6});
        }
    };
    while (!steps.finished()) {
        begin_all();
        const auto first = std::min_element(running.begin(), running.end(),
                                            [](const auto& a, const auto& b) { return a.end_s < b.end_s; });
        constexpr double never = std::numeric_limits<double>::infinity();
        const double arrival_s = steps.next_arrival_s().value_or(never);
        if (first == running.end() || arrival_s < first->end_s) {
            require(arrival_s < never, "schedule", "requests wait, but no step runs and none is still to arrive");
            now_s = std::max(now_s, arrival_s);
            steps.arrive(now_s);
            continue;
        }
        const running_step done = *first;
        running.erase(first);
        now_s = done.end_s;
        std::vector<std::vector<std::int32_t>> sampled;
        for (const place_batch& batch : done.what->batches) sampled.emplace_back(batch.entries.size(), 0);
        steps.end(*done.what, sampled, now_s);
    }
}

} // namespace serve
