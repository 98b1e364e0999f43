#include "work.hpp"

#include <algorithm>

namespace demo {
namespace {

// The cost with exactly so many ranks.
double cost_at(const ctxpar::machine_costs& costs, const ctxpar::model_shape& model, const requests& all,
               std::int64_t ranks) {
    const ctxpar::cp_size_choice choice = ctxpar::cp_size_costs(costs, model, all, {ranks, cache_interleave});
    return choice.options.back().cost.total_us();
}

} // namespace

ctxpar::model_shape model_dims::shape() const {
    ctxpar::model_shape model;
    model.heads = heads;
    model.query_width = query_width();
    model.value_width = value_width();
    model.bytes_per_token = token_bytes();
    model.partial_bytes = model.output_bytes = 4;
    return model;
}

std::vector<requests> spread_requests(const requests& all, std::int64_t replicas) {
    requests sorted = all;
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.keys > b.keys; });
    std::vector<requests> parts(static_cast<std::size_t>(replicas));
    std::vector<std::int64_t> keys(parts.size(), 0);
    for (const ctxpar::request_load& each : sorted) {
        const auto to = std::min_element(keys.begin(), keys.end()) - keys.begin();
        parts[static_cast<std::size_t>(to)].push_back(each);
        keys[static_cast<std::size_t>(to)] += each.keys;
    }
    return parts;
}

double predicted_apart_us(const ctxpar::machine_costs& costs, const model_dims& model, const requests& all,
                          std::int64_t ranks) {
    double most = 0;
    for (const requests& part : spread_requests(all, ranks))
        if (!part.empty()) most = std::max(most, cost_at(costs, model.shape(), part, 1));
    return most;
}

double predicted_shared_us(const ctxpar::machine_costs& costs, const model_dims& model, const requests& all,
                           std::int64_t ranks, ctxpar::merge_kind merge) {
    ctxpar::model_shape shape = model.shape();
    shape.merge = merge;
    return cost_at(costs, shape, all, ranks);
}

} // namespace demo
