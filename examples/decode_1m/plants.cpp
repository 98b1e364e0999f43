#include "plants.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace demo {
namespace {

constexpr double even_share = 0.35;   // of each of about six tokens, the random ones having 1
constexpr double heavy_share = 12.0;  // of the one heavy token
constexpr double newest_beside = 0.9; // of the newest token where there is a heavy one

// Adds the middle of the range unless a head of it is there.
void sample(ctxpar::head_range range, std::set<std::int64_t>& heads) {
    const auto found = heads.lower_bound(range.first);
    if (range.count() > 0 && (found == heads.end() || *found >= range.last))
        heads.insert((range.first + range.last) / 2);
}

// Positions of one KV head; a token is planted once.
class planter {
public:
    planter(const problem& all, std::int64_t request) : all_(all), filled_(all.filled(request)) {}

    void add(std::int64_t position, std::int64_t head, double share) {
        if (position >= 0 && position < filled_) plants_.insert({position, {position, head, -1, std::log(share)}});
    }
    void add_new(std::int64_t new_row, std::int64_t head, double share) {
        const std::int64_t position = filled_ + new_row;
        plants_.insert({position, {position, head, new_row, std::log(share)}});
    }

    // The i-th of `count` heads that meet the boundaries, each its own.
    void boundaries(std::int64_t i, std::int64_t count, std::int64_t head) {
        const ctxpar::ownership& law = all_.law;
        add(0, head, even_share);
        const std::int64_t round = 1 + middle(filled_ / law.unit(), i, count);
        add(round * law.unit() - 1, head, even_share);
        add(round * law.unit(), head, even_share);
        const std::int64_t rank = (i + 1) % law.ranks;
        const std::int64_t block = 1 + middle(law.local_len(filled_, rank) / all_.block_size, i, count);
        add(law.global(block * all_.block_size - 1, rank), head, even_share);
        add(law.global(block * all_.block_size, rank), head, even_share);
    }
    void heavy(std::int64_t i, std::int64_t count, std::int64_t head) {
        const std::int64_t rank = (2 * i + 1) % all_.law.ranks;
        const std::int64_t own = all_.law.local_len(filled_, rank);
        if (own > 0) add(all_.law.global(middle(own, i, count), rank), head, heavy_share);
    }

    std::vector<plant> list() const {
        std::vector<plant> sorted;
        for (const auto& [position, each] : plants_) sorted.push_back(each);
        return sorted;
    }

private:
    // The middle of the i-th of `count` parts of [0, whole).
    static std::int64_t middle(std::int64_t whole, std::int64_t i, std::int64_t count) {
        return static_cast<std::int64_t>(static_cast<double>(whole) * (2 * static_cast<double>(i) + 1) /
                                         (2 * static_cast<double>(count)));
    }

    const problem& all_;
    std::int64_t filled_;
    std::map<std::int64_t, plant> plants_;
};

} // namespace

std::vector<std::int64_t> sampled_heads(const problem& all) {
    std::set<std::int64_t> heads;
    const std::int64_t group = all.q_heads / all.kv_heads;
    for (std::int64_t k = 0; k < all.kv_heads; ++k) sample({k * group, (k + 1) * group}, heads);
    const ctxpar::mesh ranks = all.ranks();
    for (std::int64_t rank = 0; rank < ranks.world_size(); ++rank) {
        sample(ranks.q_heads(rank), heads);
        if (ranks.scatters_heads())
            sample(ranks.output_projection(rank, ctxpar::output_placement::scattered).heads, heads);
    }
    if (heads.size() == 1) sample({0, *heads.begin()}, heads);
    return {heads.begin(), heads.end()};
}

std::vector<plant> plants_of(const problem& all, std::int64_t request, std::int64_t kv_head,
                             const std::vector<std::int64_t>& heads) {
    const std::int64_t group = all.q_heads / all.kv_heads;
    std::vector<std::int64_t> own;
    for (const std::int64_t head : heads)
        if (head / group == kv_head) own.push_back(head);
    const auto count = static_cast<std::int64_t>(own.size());
    const auto is_heavy = [&](std::int64_t i) { return (kv_head + i) % 2 == 1; };

    planter plants(all, request);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t head = own[static_cast<std::size_t>(i)];
        if (is_heavy(i)) {
            plants.heavy(kv_head + i, all.kv_heads + count, head);
        } else {
            plants.boundaries(kv_head + i, all.kv_heads + count, head);
        }
    }
    for (std::int64_t row = 0; row < all.steps * all.query_rows; ++row) {
        const std::int64_t i = row % count;
        plants.add_new(row, own[static_cast<std::size_t>(i)], is_heavy(i) ? newest_beside : even_share);
    }
    return plants.list();
}

} // namespace demo
