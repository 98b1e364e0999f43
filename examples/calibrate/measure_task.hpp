// What a calibration measures, over ranks of any kind.
#pragma once

#include <string>
#include <vector>

#include "calibrate.hpp"
#include "cases.hpp"
#include "costs.hpp"

namespace demo {

// Steps that no cost is taken from.
inline std::vector<requests> steps_to_check(const effort& how) {
    if (how.tiny) return {{{1, 90}}};
    requests uneven(6, {1, 400});
    uneven.push_back({1, 12000});
    return {{{1, 1500}}, {{1, 6000}}, {{8, 2500}}, requests(5, {1, 800}), uneven};
}

// All but the names of the machine. All ranks call it.
template <class Rank>
calibration_report measure_task(Rank& own, const calibration_task& task, typename Rank::kind::pool& pool) {
    team<Rank> ranks(own);
    calibration_report report;
    calibration& file = report.file;
    file.transport = task.transport;
    file.backend = Rank::kind::on_device ? "cuda" : "cpu";
    file.ranks = ranks.size();
    file.costs = measure_costs(ranks, task.model, pool, task.how);
    file.attention = task.model.attention();
    file.kv_heads = task.model.kv_heads;
    file.layers = task.layers;
    file.model = task.model.shape();
    for (const requests& what : steps_to_check(task.how))
        report.checked.push_back({what, measure_ways(ranks, task.model, what, pool, task.how, file.costs)});
    return report;
}

} // namespace demo
