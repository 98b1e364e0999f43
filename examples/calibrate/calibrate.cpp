#include "calibrate.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/core/error.hpp>

#include "over_ranks.hpp"

namespace demo {
namespace {

std::vector<requests> steps_to_check(const effort& how) {
    if (how.tiny) return {{{1, 90}}};
    requests uneven(6, {1, 400});
    uneven.push_back({1, 12000});
    return {{{1, 1500}}, {{1, 6000}}, {{8, 2500}}, requests(5, {1, 800}), uneven};
}

template <ctxpar::communicator C>
calibration_report calibrate_on(C& world, const calibration_task& task, std::size_t pool_bytes) {
    keep_to_core(world.rank());
    number_pool pool(pool_bytes);
    team<C> ranks(world);
    calibration_report report;
    calibration& file = report.file;
    file.transport = task.transport;
    file.costs = measure_costs(ranks, task.model, pool, task.how);
    file.machine = fmt::format("{}, {} instructions, {} ranks of one thread", processor_name(),
                               ctxpar::cpu::name_of(ctxpar::cpu::default_isa()), world.size());
    file.attention = task.model.attention();
    file.kv_heads = task.model.kv_heads;
    file.layers = task.layers;
    file.model = task.model.shape();
    for (const requests& what : steps_to_check(task.how))
        report.checked.push_back({what, measure_ways(ranks, task.model, what, pool, task.how, file.costs)});
    return report;
}

} // namespace

void check_task(const calibration_task& task) {
    constexpr std::int64_t most_ranks = 64, most_heads = 1024;
    const model_dims& model = task.model;
    ctxpar::require(task.ranks >= 2 && task.ranks <= most_ranks, "usage", "there are ", task.ranks,
                    " ranks; there must be from 2 to ", most_ranks);
    ctxpar::require(model.heads >= 1 && model.heads <= most_heads && model.heads % task.ranks == 0, "usage",
                    "there are ", model.heads, " heads; there must be at most ", most_heads, ", a multiple of the ",
                    task.ranks, " ranks");
    ctxpar::require(model.kv_heads >= 1 && model.heads % model.kv_heads == 0, "usage", "there are ", model.kv_heads,
                    " KV heads; they must divide the ", model.heads, " heads");
    ctxpar::require(!model.latent || model.kv_heads == 1, "usage", "there are ", model.kv_heads,
                    " KV heads; mla has 1");
    ctxpar::require(task.layers >= 1 && task.layers <= most_heads, "usage", "there are ", task.layers,
                    " layers; there must be from 1 to ", most_heads);
}

std::optional<calibration_report> calibrate(const calibration_task& task, int& status) {
    check_task(task);
    const std::size_t pool_bytes = pool_size(task.how, task.ranks);
    std::optional<calibration_report> report;
    status = over_ranks(task.program, task.transport, static_cast<int>(task.ranks), [&](auto& world) {
        calibration_report own = calibrate_on(world, task, pool_bytes);
        if (world.rank() == 0) report = std::move(own);
    });
    if (status != 0) report.reset();
    return report;
}

std::string text_of(const requests& all) {
    std::string text;
    for (std::size_t i = 0; i < all.size();) {
        std::size_t count = 1;
        while (i + count < all.size() && all[i + count].rows == all[i].rows && all[i + count].keys == all[i].keys)
            ++count;
        text += fmt::format("{}{} x {} row{}, {} tokens", i == 0 ? "" : " + ", count, all[i].rows,
                            all[i].rows == 1 ? "" : "s", all[i].keys);
        i += count;
    }
    return text;
}

} // namespace demo
