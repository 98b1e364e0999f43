#include "data.hpp"

#include <algorithm>
#include <cmath>

#include "common/random_rows.hpp"

namespace demo {
namespace {

constexpr float unit = 0x1p-6F;                            // of keys and values
constexpr double variance = random_variance * unit * unit; // of a random key's numbers

} // namespace

kv_data::kv_data(const problem& all) : all_(all) {
    const double spread = std::sqrt(static_cast<double>(all.query_width)) * all.softmax_scale;
    query_unit_ = unit * static_cast<float>(std::exp2(-std::round(std::log2(spread))));
    sampled_ = demo::sampled_heads(all);
    for (std::int64_t request = 0; request < all.requests; ++request)
        for (std::int64_t kv_head = 0; kv_head < all.kv_heads; ++kv_head)
            plants_.push_back(plants_of(all, request, kv_head, sampled_));
}

const plant* kv_data::plant_at(std::int64_t request, std::int64_t kv_head, std::int64_t position) const {
    const std::vector<plant>& all = plants(request, kv_head);
    const auto found = std::lower_bound(all.begin(), all.end(), position,
                                        [](const plant& each, std::int64_t at) { return each.position < at; });
    return found != all.end() && found->position == position ? &*found : nullptr;
}

void kv_data::key(std::int64_t layer, std::int64_t request, std::int64_t position, std::int64_t kv_head,
                  float* to) const {
    if (const plant* chosen = plant_at(request, kv_head, position)) return planted_key(layer, request, *chosen, to);
    random_row(row_hash(all_.seed, row_use::key, layer, request, position, kv_head), all_.query_width, unit, to);
}

void kv_data::value(std::int64_t layer, std::int64_t request, std::int64_t position, std::int64_t kv_head,
                    float* to) const {
    random_row(row_hash(all_.seed, row_use::value, layer, request, position, kv_head), all_.value_width, unit, to);
}

void kv_data::query(std::int64_t layer, std::int64_t request, std::int64_t new_row, std::int64_t head,
                    float* to) const {
    std::vector<float> fresh(static_cast<std::size_t>(all_.query_width));
    random_row(row_hash(all_.seed, row_use::query, layer, request, 0, head), all_.query_width, query_unit_, to);
    random_row(row_hash(all_.seed, row_use::new_query, layer, request, new_row, head), all_.query_width, query_unit_,
               fresh.data());
    for (std::size_t d = 1; d < fresh.size(); d += 2) to[d] = fresh[d];
}

// A multiple of half of the query, such that the logit is that of all random keys together plus log_share.
void kv_data::planted_key(std::int64_t layer, std::int64_t request, const plant& chosen, float* to) const {
    const std::int64_t width = all_.query_width;
    query(layer, request, std::max<std::int64_t>(chosen.new_row, 0), chosen.head, to);
    double whole = 0.0;
    double half = 0.0;
    float largest = 0.0F;
    for (std::int64_t d = 0; d < width; ++d) {
        whole += static_cast<double>(to[d]) * to[d];
        if ((d % 2 == 1) != (chosen.new_row >= 0)) to[d] = 0.0F;
        half += static_cast<double>(to[d]) * to[d];
        largest = std::max(largest, std::fabs(to[d]));
    }
    const double scale = all_.softmax_scale;
    const double tokens = static_cast<double>(std::max<std::int64_t>(all_.filled(request), 1));
    const double logit = std::log(tokens) + variance * scale * scale * whole / 2 + chosen.log_share;
    if (half == 0.0 || logit == 0.0) return;
    const double factor = logit / (scale * half);
    const double step = std::exp2(std::ceil(std::log2(std::fabs(factor) * largest / 255))); // |t| <= 255 again
    for (std::int64_t d = 0; d < width; ++d) to[d] = static_cast<float>(std::nearbyint(factor * to[d] / step) * step);
}

} // namespace demo
