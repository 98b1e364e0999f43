#include "cases.hpp"

namespace demo {

const char* name_of_way(std::size_t way) {
    constexpr std::array names = {"apart", "a2a", "ag_rs", "ag_ar"};
    return names.at(way);
}

std::size_t least(const std::array<double, num_ways>& us) {
    return static_cast<std::size_t>(std::min_element(us.begin(), us.end()) - us.begin());
}

void predict(const ctxpar::machine_costs& costs, const model_dims& model, const requests& all, std::int64_t ranks,
             way_times& to) {
    to.predicted_us[0] = predicted_apart_us(costs, model, all, ranks);
    for (std::size_t way = 1; way < num_ways; ++way)
        to.predicted_us[way] = predicted_shared_us(costs, model, all, ranks, merge_kinds[way - 1]);
}

double distance(const std::vector<float>& got, const std::vector<float>& wanted) {
    return distance(got, std::vector<double>(wanted.begin(), wanted.end()));
}

} // namespace demo
