// calibrate: what this machine takes for each part of the cost model, measured, and how well the model does with it.
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

#include "arguments.hpp"
#include "calibrate/calibrate.hpp"

namespace inspect {
namespace {

struct options {
    std::string transport = "local", attention = "gqa";
    std::int64_t ranks = 2, layers = 32;
    std::optional<std::int64_t> heads, kv_heads;
    std::optional<std::string> out;
    bool quick = false;
};

demo::calibration_task task_of(const options& given) {
    demo::calibration_task task;
    task.program = "ctxpar-inspect";
    task.transport = given.transport;
    task.ranks = given.ranks;
    task.layers = given.layers;
    task.model.latent = given.attention == "mla";
    task.model.heads = given.heads.value_or(task.model.latent ? 16 : 32);
    task.model.kv_heads = given.kv_heads.value_or(task.model.latent ? 1 : 8);
    task.how.tiny = given.quick;
    task.how.rounds = given.quick ? 1 : 15;
    task.how.sample_us = given.quick ? 100 : 10'000;
    return task;
}

std::string costs_text(const ctxpar::machine_costs& costs) {
    std::string text;
    for (const ctxpar::collective_cost& entry : costs.collectives)
        text += fmt::format("{} over {} ranks: {:.1f} us a call, {:.0f} bytes/us\n", name_of(entry.op), entry.size,
                            entry.call_us, entry.bytes_per_us);
    text += fmt::format("attention: {:.1f} us a call, {:.1f} us a request, {:.0f} numbers of rows/us, {:.0f} bytes/us, "
                        "{:.0f} flops/us, {:.0f}% of the smaller not hidden\n",
                        costs.attend_us, costs.request_us, costs.row_numbers_per_us, costs.read_bytes_per_us,
                        costs.flops_per_us, 100 * costs.serial_share);
    return text + fmt::format("merge: {:.1f} us an operation, {:.0f} bytes/us\nweights: {:.0f} bytes/us\n",
                              costs.merge_us, costs.merge_bytes_per_us, costs.weight_bytes_per_us);
}

answer answer_of(const demo::calibration_report& report, const std::optional<std::string>& out) {
    answer result;
    result.values["calibration"] = json::parse(demo::calibration_text(report.file));
    result.values["file"] = out ? json(*out) : json(nullptr);
    json checked = json::array();
    table rows({"one step, us a layer", "way", "measured", "predicted", "off"});
    for (const demo::checked_step& step : report.checked) {
        json requests = json::array(), ways = json::object();
        for (const ctxpar::request_load& each : step.what) requests.push_back({each.rows, each.keys});
        for (std::size_t way = 0; way < demo::num_ways; ++way) {
            const double measured = step.times.measured_us.at(way), predicted = step.times.predicted_us.at(way);
            const double percent = 100 * (predicted / measured - 1);
            ways[demo::name_of_way(way)] = {
                {"measured_us", measured}, {"predicted_us", predicted}, {"error_percent", percent}};
            rows.row({way == 0 ? demo::text_of(step.what) : "", demo::name_of_way(way), fmt::format("{:.0f}", measured),
                      fmt::format("{:.0f}", predicted), fmt::format("{:+.0f}%", percent)});
        }
        checked.push_back({{"requests", std::move(requests)}, {"ways", std::move(ways)}});
    }
    result.values["checked"] = std::move(checked);
    result.text = report.file.machine + '\n' + costs_text(report.file.costs) +
                  "apart: requests spread over ranks that share nothing; else all ranks share them, with that merge\n" +
                  rows.text() + (out ? fmt::format("written to {}\n", *out) : "not written: there is no --out\n");
    return result;
}

answer run(const options& given) {
    if (given.out) demo::check_calibration_place(*given.out);
    int status = 0;
    const std::optional<demo::calibration_report> report = demo::calibrate(task_of(given), status);
    answer result;
    if (report) {
        if (given.out) demo::write_calibration(*given.out, report->file);
        result = answer_of(*report, given.out);
    }
    result.status = status;
    return result;
}

} // namespace

std::function<answer()> calibrate_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    word(app, need::optional, "--transport", given->transport, {"local", "mpi", "nccl", "local_cuda"},
         "how ranks communicate: threads (local), processes that mpirun has started (mpi); with GPUs nccl, one each, "
         "for such processes or threads, or local_cuda, threads that share GPUs");
    number(app, need::optional, "--ranks", given->ranks, "ranks, each on a core or GPU of its own (2)");
    word(app, need::optional, "--attention", given->attention, {"gqa", "mla"},
         "gqa with heads of 128 (gqa), or mla with a latent of 512 and 64 rope numbers; bf16 caches");
    number(app, "--heads", given->heads, "query heads (gqa 32, mla 16)");
    number(app, "--kv-heads", given->kv_heads, "KV heads (gqa 8, mla 1)");
    number(app, need::optional, "--layers", given->layers, "layers of the model, which are only written down (32)");
    text(app, "--out", given->out, "file for the calibration; one that is there is replaced");
    flag(app, "--quick", given->quick, "a second in place of ten or more: the numbers mean little");
    return [given] { return run(*given); };
}

} // namespace inspect
