// The paged KV pools of all ranks, and the prefix cache over them. A request's tokens are cut into virtual blocks of
// ranks * block_size tokens, each with one block in the pool of every rank of its place: one that is whole can serve
// another request in the same place whose tokens up to its end are the same.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include <ctxpar/layout/prefix.hpp>
#include <ctxpar/plan/router.hpp>

namespace serve {

using place = ctxpar::placement;
constexpr std::int64_t end_of(const place& where) {
    return where.first + where.ranks;
}

// The free block ids of every rank's pool. It outlives all blocks.
class block_pools {
public:
    block_pools(std::int64_t ranks, std::int64_t blocks);
    bool can_take(const place& where) const;
    std::vector<std::int32_t> take(const place& where); // one id for each rank of it
    void give_back(const place& where, std::span<const std::int32_t> ids);
    std::int64_t free_blocks(std::int64_t rank) const;

private:
    std::vector<std::vector<std::int32_t>> free_; // [ranks]
};

// A virtual block; its ids go back to the pools with its last owner.
class virtual_block {
public:
    virtual_block(block_pools& pools, const place& where) : pools_(pools), where_(where), ids_(pools.take(where)) {}
    ~virtual_block() { pools_.give_back(where_, ids_); }
    virtual_block(const virtual_block&) = delete;
    virtual_block& operator=(const virtual_block&) = delete;

    std::int32_t id_on(std::int64_t rank) const { return ids_[static_cast<std::size_t>(rank - where_.first)]; }

private:
    block_pools& pools_;
    place where_;
    std::vector<std::int32_t> ids_;
};
using shared_block = std::shared_ptr<const virtual_block>;
using block_list = std::shared_ptr<const std::vector<shared_block>>; // of a request, from its first token on

// Blocks of finished prompts, by place and by what they hold. Those that no request uses are given up, the longest
// unused first, where a pool has no free block.
class prefix_cache {
public:
    explicit prefix_cache(block_pools& pools) : pools_(pools) {}

    // The leading blocks of a prompt that are there, of the keys of its virtual blocks.
    std::vector<shared_block> find(const place& where, std::span<const ctxpar::prefix_key> keys);
    void keep(const place& where, const ctxpar::prefix_key& key, const shared_block& block);

    // A new block; null where all blocks of a rank are in use.
    shared_block make(const place& where);

private:
    struct entry {
        place where;
        ctxpar::prefix_key key;
        shared_block block;
    };
    using entries = std::list<entry>;
    using full_key = std::tuple<std::int64_t, std::int64_t, ctxpar::prefix_key>; // with first and ranks of the place
    static full_key key_of(const place& where, const ctxpar::prefix_key& key) {
        return {where.first, where.ranks, key};
    }

    entries& entries_of(const place& where) { return by_age_[{where.first, where.ranks}]; }
    bool give_up_one(const place& needed);

    block_pools& pools_;
    std::map<std::pair<std::int64_t, std::int64_t>, entries> by_age_; // of each place, the longest unused first
    std::map<full_key, entries::iterator> by_key_;
};

} // namespace serve
