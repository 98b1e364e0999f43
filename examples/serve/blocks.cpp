#include "blocks.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ctxpar/core/error.hpp>

namespace serve {

block_pools::block_pools(std::int64_t ranks, std::int64_t blocks) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
    std::iota(ids.rbegin(), ids.rend(), 0);
    free_.assign(static_cast<std::size_t>(ranks), ids);
}

bool block_pools::can_take(const place& where) const {
    return std::all_of(free_.begin() + where.first, free_.begin() + end_of(where),
                       [](const auto& ids) { return !ids.empty(); });
}

std::vector<std::int32_t> block_pools::take(const place& where) {
    ctxpar::require(can_take(where), "pool", "a block was asked for on ranks [", where.first, ", ", end_of(where),
                    "), where all are in use");
    std::vector<std::int32_t> taken;
    for (std::int64_t rank = where.first; rank < end_of(where); ++rank) {
        std::vector<std::int32_t>& ids = free_[static_cast<std::size_t>(rank)];
        taken.push_back(ids.back());
        ids.pop_back();
    }
    return taken;
}

void block_pools::give_back(const place& where, std::span<const std::int32_t> ids) {
    for (std::int64_t rank = where.first; rank < end_of(where); ++rank)
        free_[static_cast<std::size_t>(rank)].push_back(ids[static_cast<std::size_t>(rank - where.first)]);
}

std::int64_t block_pools::free_blocks(std::int64_t rank) const {
    return static_cast<std::int64_t>(free_[static_cast<std::size_t>(rank)].size());
}

std::vector<shared_block> prefix_cache::find(const place& where, std::span<const ctxpar::prefix_key> keys) {
    std::vector<shared_block> found;
    for (const ctxpar::prefix_key& key : keys) {
        const auto at = by_key_.find(key_of(where, key));
        if (at == by_key_.end()) break;
        entries_of(where).splice(entries_of(where).end(), entries_of(where), at->second);
        found.push_back(at->second->block);
    }
    return found;
}

void prefix_cache::keep(const place& where, const ctxpar::prefix_key& key, const shared_block& block) {
    if (by_key_.contains(key_of(where, key))) return; // of two requests that computed the same, the first
    by_key_[key_of(where, key)] = entries_of(where).insert(entries_of(where).end(), {where, key, block});
}

shared_block prefix_cache::make(const place& where) {
    while (!pools_.can_take(where))
        if (!give_up_one(where)) return nullptr;
    return std::make_shared<const virtual_block>(pools_, where);
}

bool prefix_cache::give_up_one(const place& needed) {
    for (auto& [ranks, list] : by_age_) {
        if (ranks.first >= end_of(needed) || needed.first >= ranks.first + ranks.second) continue;
        for (std::size_t tries = list.size(); tries > 0; --tries) {
            const auto oldest = list.begin();
            if (oldest->block.use_count() > 1) { // in use, and so not old
                list.splice(list.end(), list, oldest);
                continue;
            }
            by_key_.erase(key_of(oldest->where, oldest->key));
            list.erase(oldest);
            return true;
        }
    }
    return false;
}

} // namespace serve
