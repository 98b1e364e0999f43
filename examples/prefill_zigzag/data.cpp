#include "data.hpp"

#include <algorithm>
#include <cmath>

#include "common/random_rows.hpp"

namespace demo {
namespace {

constexpr float unit = 0x1p-6F; // of keys and values
constexpr double variance = random_variance * unit * unit;

constexpr double even_share = 0.35;   // of each of about six tokens, the random ones having 1
constexpr double heavy_share = 12.0;  // of the one heavy token
constexpr double newest_beside = 0.9; // of the newest token where there is a heavy one

} // namespace

prompt_data::prompt_data(const problem& all) : all_(all), plants_(static_cast<std::size_t>(all.kv_heads)) {
    const double spread = std::sqrt(static_cast<double>(all.head_dim)) * all.softmax_scale;
    query_unit_ = unit * static_cast<float>(std::exp2(-std::round(std::log2(spread))));
    for (std::int64_t kv_head = 0; kv_head < all.kv_heads; ++kv_head)
        for (std::int64_t i = 0; i < all.group(); ++i) plant_head(kv_head, i);
}

// Heads meet different rounds, blocks and ranks, in the middle of as many equal parts of the context as there are
// heads.
void prompt_data::plant_head(std::int64_t kv_head, std::int64_t in_group) {
    const ctxpar::ownership law = all_.law(all_.largest_dcp());
    const std::int64_t head = kv_head * all_.group() + in_group;
    const std::int64_t rank = (head / 2 + 1) % law.ranks;
    const std::int64_t own = law.local_len(all_.computed(), rank);
    const auto middle = [&](std::int64_t whole) {
        return static_cast<std::int64_t>(static_cast<double>(whole) * (static_cast<double>(head) + 0.5) /
                                         static_cast<double>(all_.q_heads));
    };
    const auto add = [&](std::int64_t position, double share) {
        if (position >= 0 && position < all_.computed())
            plants_[static_cast<std::size_t>(kv_head)].insert({position, {head, std::log(share)}});
    };
    if (is_heavy(kv_head, in_group)) {
        if (own > 0) add(law.global(middle(own), rank), heavy_share);
        return;
    }
    add(0, even_share);
    add(all_.computed() - 1, even_share);
    const std::int64_t round = 1 + middle(all_.computed() / law.unit());
    add(round * law.unit() - 1, even_share);
    add(round * law.unit(), even_share);
    const std::int64_t block = 1 + middle(own / all_.block_size);
    add(law.global(block * all_.block_size - 1, rank), even_share);
    add(law.global(block * all_.block_size, rank), even_share);
}

plant prompt_data::new_plant(std::int64_t position, std::int64_t kv_head) const {
    const std::int64_t in_group = position % all_.group();
    return {kv_head * all_.group() + in_group, std::log(is_heavy(kv_head, in_group) ? newest_beside : even_share)};
}

void prompt_data::key(std::int64_t position, std::int64_t kv_head, float* to) const {
    if (position >= all_.computed()) return planted_key(new_plant(position, kv_head), position, to);
    const auto& planted = plants(kv_head);
    const auto found = planted.find(position);
    if (found != planted.end()) return planted_key(found->second, position, to);
    random_row(row_hash(all_.seed, row_use::key, 0, 0, position, kv_head), all_.head_dim, unit, to);
}

void prompt_data::value(std::int64_t position, std::int64_t kv_head, float* to) const {
    random_row(row_hash(all_.seed, row_use::value, 0, 0, position, kv_head), all_.head_dim, unit, to);
}

// Even dimensions are those of the head, odd ones those of the row.
void prompt_data::query(std::int64_t position, std::int64_t head, float* to) const {
    thread_local std::vector<float> own;
    own.resize(static_cast<std::size_t>(all_.head_dim));
    random_row(row_hash(all_.seed, row_use::query, 0, 0, 0, head), all_.head_dim, query_unit_, to);
    random_row(row_hash(all_.seed, row_use::new_query, 0, 0, position, head), all_.head_dim, query_unit_, own.data());
    for (std::size_t d = 1; d < own.size(); d += 2) to[d] = own[d];
}

// A multiple of half of the query, such that the logit is that of all random keys together plus log_share.
void prompt_data::planted_key(const plant& chosen, std::int64_t position, float* to) const {
    const bool is_new = position >= all_.computed();
    const std::int64_t seen = is_new ? position : std::max<std::int64_t>(all_.computed(), 1) + all_.chunk / 2;
    query(is_new ? position : all_.computed(), chosen.head, to);
    double whole = 0.0;
    double half = 0.0;
    float largest = 0.0F;
    for (std::int64_t d = 0; d < all_.head_dim; ++d) {
        whole += static_cast<double>(to[d]) * to[d];
        if ((d % 2 == 1) != is_new) to[d] = 0.0F;
        half += static_cast<double>(to[d]) * to[d];
        largest = std::max(largest, std::fabs(to[d]));
    }
    const double scale = all_.softmax_scale;
    const double random = std::log(static_cast<double>(std::max<std::int64_t>(seen, 1)));
    const double logit = random + variance * scale * scale * whole / 2 + chosen.log_share;
    if (half == 0.0 || logit == 0.0) return;
    const double factor = logit / (scale * half);
    const double step = std::exp2(std::ceil(std::log2(std::fabs(factor) * largest / 255))); // |t| <= 255 again
    for (std::int64_t d = 0; d < all_.head_dim; ++d)
        to[d] = static_cast<float>(std::nearbyint(factor * to[d] / step) * step);
}

} // namespace demo
