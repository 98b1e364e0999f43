#include "calibrate.hpp"

#include <cstddef>

#include <fmt/format.h>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/core/error.hpp>

#include "calibrate_gpus.hpp"
#include "host_rank.hpp"
#include "measure_task.hpp"
#include "over_ranks.hpp"

namespace demo {
namespace {

template <ctxpar::communicator C>
calibration_report calibrate_on_cores(C& world, const calibration_task& task, std::size_t pool_bytes) {
    keep_to_core(world.rank());
    host_rank<C> own(world);
    number_pool pool(pool_bytes);
    calibration_report report = measure_task(own, task, pool);
    report.file.device = processor_name();
    report.file.machine = fmt::format("{}, {} instructions, {} ranks of one thread", processor_name(),
                                      ctxpar::cpu::name_of(ctxpar::cpu::default_isa()), world.size());
    return report;
}

} // namespace

bool on_gpus(const calibration_task& task) {
    return task.transport == "nccl" || task.transport == "local_cuda";
}

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
    if (on_gpus(task)) check_gpus(task);
}

std::optional<calibration_report> calibrate(const calibration_task& task, int& status) {
    check_task(task);
    const std::size_t pool_bytes = on_gpus(task) ? 0 : pool_size(task.how, task.ranks);
    std::optional<calibration_report> report;
    status = over_ranks(task.program, task.transport, static_cast<int>(task.ranks), [&](auto& world) {
        calibration_report own =
            on_gpus(task) ? calibrate_on_gpus(world, task) : calibrate_on_cores(world, task, pool_bytes);
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
