#include "engine.hpp"

#include <algorithm>
#include <utility>

#include "engine_cuda.hpp"

namespace demo {

record::record(const problem& all, std::string merge_name)
    : merge(std::move(merge_name)), world(all.ranks().world_size()),
      outputs(static_cast<std::size_t>(all.steps * all.layers * world)),
      begin(static_cast<std::size_t>(all.steps * world)), end(begin.size()), sent(static_cast<std::size_t>(world)) {}

double record::step_seconds(std::int64_t step) const {
    const auto first = static_cast<std::ptrdiff_t>(step * world);
    const auto last = first + static_cast<std::ptrdiff_t>(world);
    return *std::max_element(end.begin() + first, end.begin() + last) -
           *std::min_element(begin.begin() + first, begin.begin() + last);
}

std::unique_ptr<engine> make_engine(const problem& all, const kv_data& data) {
    if (all.on_gpus) return make_cuda_engine(all, data);
    return all.is_mla() ? make_mla_engine(all, data) : make_gqa_engine(all, data);
}

} // namespace demo
