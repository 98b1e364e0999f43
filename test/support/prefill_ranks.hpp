// Runs a deployment with prefills: all ranks, from empty caches through the earlier steps to the outputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decode_ranks.hpp"
#include "prefill_rank.hpp"

namespace ctxpar_test {

// What one rank has to say afterwards.
struct prefill_report {
    path_choice prefill_rows;
    path_choice decode_rows;
    std::uint64_t bytes_sent = 0;    // by append and attend of the step that is tested
    std::int64_t context_chunks = 0; // in which context was gathered
    std::string problem;             // something that is wrong whatever the outputs are
};

struct prefill_result {
    std::vector<std::vector<prefill_output>> steps; // of each step that was attended, the tested one last: of each rank
    std::vector<prefill_report> reports;            // of each rank

    const std::vector<prefill_output>& outputs() const { return steps.back(); }

    // The first problem of any rank.
    std::string problem() const {
        for (const prefill_report& report : reports)
            if (!report.problem.empty()) return report.problem;
        return "";
    }
};

// Appends and attends a planned step on one rank.
template <class Out, lse_base Base, class Rank>
void serve(const prefill_deployment& d, Rank& rank, const prefill_step& step, prefill_output& output,
           prefill_report& report) {
    const std::int64_t rows = step.rows(), heads = rank.facts().own.count;
    output_buffer<Out> out(rows, heads, d.value_width, d.strided_views, false);
    output_buffer<Out> projected(d.projects() ? rows : 0, heads, d.projected_value_width, d.strided_views, true);
    output_buffer<lse<Base>> lses(d.merged_lse ? rows : 0, heads, 1, d.strided_views, true);
    const std::uint64_t before = rank.communicators().bytes_sent();
    rank.append(step);
    rank.attend(step, out.view(), projected.view(), d.merged_lse ? lses.view() : head_view<lse<Base>>{});
    rank.wait();
    report.bytes_sent = rank.communicators().bytes_sent() - before;
    for (int i = 0; i < step.schedule.count; ++i) {
        const collective_call& call = step.schedule.calls[static_cast<std::size_t>(i)];
        if (std::string(call.what) == "context") report.context_chunks += call.calls;
    }
    const auto number = [](Out value) { return number_of(value); };
    output.out = out.values(number);
    output.projected = projected.values(number);
    output.lse = lses.values([](lse<Base> value) { return value.value; });
    if (report.bytes_sent != step.schedule.bytes_sent())
        report.problem = sentence(report.bytes_sent, " bytes were sent, ", step.schedule.bytes_sent(), " planned");
    if (!out.gaps_hold() || !lses.gaps_hold() || !projected.gaps_hold())
        report.problem = "something was written between the outputs";
}

// All ranks, of the kind `Ranks`. make(rank number) gives the backend of a rank.
template <class Policy, class Out = float, lse_base Base = lse_base::natural, class Ranks = suite_ranks, class Make>
prefill_result run_prefill(const prefill_deployment& d, const prefill_data& data, const Policy& policy,
                           const Make& make) {
    using backend_type = decltype(make(0));
    const std::vector<new_batch> steps = steps_of(d);
    prefill_result result;
    result.steps.resize(d.attends_earlier ? steps.size() : 1);
    for (auto& outputs : result.steps) outputs.resize(static_cast<std::size_t>(d.world()));
    result.reports.resize(static_cast<std::size_t>(d.world()));
    Ranks::run(d, [&](typename Ranks::communicator& world) {
        const auto number = static_cast<std::size_t>(world.rank());
        prefill_report& report = result.reports[number];
        prefill_rank<Policy, backend_type, Ranks> rank(world, d, data, policy, make(world.rank()));
        if (d.earlier_steps == 0) rank.fill_plainly();
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const bool last = i + 1 == steps.size();
            if (last) rank.forget_unseen();
            const prefill_step step = rank.plan(steps[i]);
            if (last || d.attends_earlier) {
                prefill_output& output = result.steps[d.attends_earlier ? i : 0][number];
                serve<Out, Base>(d, rank, step, output, report);
                report.prefill_rows = step.prefill_rows;
                report.decode_rows = step.decode_rows;
            } else {
                rank.append(step);
                rank.wait();
            }
            if (report.problem.empty()) report.problem = rank.wrong_places(step);
        }
        if (!rank.pool_holds()) report.problem = "the cache does not hold each token once and nothing else";
        if (!rank.scratch().guards_hold()) report.problem = "something was written behind the workspace";
    });
    if constexpr (has_twin<Ranks>) {
        std::uint64_t values = 0;
        for (std::vector<prefill_output>& outputs : result.steps) {
            Ranks::exchange_results(outputs, [](prefill_output& output, const auto& send) {
                send(output.out);
                send(output.lse);
                send(output.projected);
            });
            for (const prefill_output& output : outputs) values += output.out.size() + output.lse.size();
        }
        Ranks::exchange_results(result.reports, [](prefill_report& report, const auto& send) {
            send(report.bytes_sent);
            send(report.context_chunks);
            for (path_choice* choice : {&report.prefill_rows, &report.decode_rows}) {
                send(choice->requests_gather_q);
                send(choice->requests_gather_kv);
                send(choice->bytes);
            }
            send(report.problem);
        });
        Ranks::count_run(values);
    }
    return result;
}

// How far all attended steps are from the reference, together.
inline distance distance_of(const prefill_deployment& d, const prefill_data& data, const prefill_result& got) {
    const std::vector<new_batch> steps = steps_of(d);
    distance sum;
    for (std::size_t i = 0; i < got.steps.size(); ++i) {
        const new_batch& batch = got.steps.size() == 1 ? steps.back() : steps[i];
        const distance far = distances(d, batch, expected_step(d, data, batch), got.steps[i]).sum();
        sum.out = std::max(sum.out, far.out);
        sum.lse = std::max(sum.lse, far.lse);
        sum.lse_of_scores = std::max(sum.lse_of_scores, far.lse_of_scores);
    }
    return sum;
}

} // namespace ctxpar_test
