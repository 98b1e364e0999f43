// What a migrator refuses, what its ranks must have in common, and how all of them refuse together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/reshard_part.hpp>
#include <ctxpar/merge/merge.hpp>
#include <ctxpar/migrate/step.hpp>

namespace ctxpar::inline v0_1::detail {

inline void check_migration_shape(const migration_shape& shape, const packed_row& row, std::int64_t element_bytes) {
    require(shape.chunk_tokens >= 1, "chunk", "a migration moves ", shape.chunk_tokens,
            " tokens at a time; it must be at least 1");
    require(shape.kv_heads >= 1 && (shape.kv_heads == 1 || !row.values_in_keys), "kv_heads",
            "a migration moves rows of ", shape.kv_heads, " KV heads; there must be at least 1, and of MLA just 1");
    const std::int64_t scales = shape.scales_per_token;
    require(scales == 0 || scales == 1 || scales == shape.kv_heads, "scales", "a migration moves ", scales,
            " scales of a token; it can be 0 (they are not a token's own), 1 or one for each of ", shape.kv_heads,
            " KV heads");
    require(row.key_width >= 1 && row.value_width >= 1, "width", "a migration moves keys of ", row.key_width,
            " and values of ", row.value_width, " elements a head; both must be at least 1");
    constexpr std::int64_t most = std::int64_t{1} << 56; // bytes
    const std::int64_t width = row.key_width > most - row.value_width ? most : row.key_width + row.value_width + 24;
    require(width < most / element_bytes / shape.kv_heads / shape.chunk_tokens, "size", "a migration moves ",
            shape.chunk_tokens, " tokens of ", shape.kv_heads, " KV heads of ", row.key_width, " and ", row.value_width,
            " elements at a time; that must be less than 2^56 bytes");
}

// What all ranks have in common, refused alike on all of them.
inline void check_domain(const domain_request& side, std::int64_t ranks, const char* name) {
    make_ownership(side.law.ranks, side.law.interleave);
    require(side.first_rank >= 0 && side.law.ranks <= ranks && side.first_rank <= ranks - side.law.ranks, "ranks",
            "the ", name, " of a migration has ", side.law.ranks, " ranks from rank ", side.first_rank,
            " of the domain on; the domain has ", ranks, " ranks");
}

inline void check_migration(const migration& job, std::int64_t length, std::int64_t ranks) {
    check_domain(job.from, ranks, "source");
    check_domain(job.to, ranks, "target");
    require(job.first >= 0 && job.done >= 0 && job.next() <= length, "range", "a migration of tokens from ", job.first,
            " on has moved those before ", job.done, " of ", length,
            "; the first must be at least 0 and at most the length, and so must those that are done");
}

// Of a rank that is in the layout. Blocks themselves are looked at where the backend reads them.
inline void check_side_table(const domain_request& side) {
    check_block_size(side.table.block_size);
    require(side.request >= 0 && side.request < side.table.requests, "request", "request ", side.request,
            " was named; the block table has ", side.table.requests, " requests, counted from 0");
}

template <class T>
std::int64_t scales_per_token(const kv_view<T>& cache, const kv_scale& scale) {
    if (scale.kind != scale_kind::token) return 0;
    return scale.head_stride == 0 ? 1 : cache.kv_heads;
}

// A cache of one layer and side, as it must be for rows to be moved as they are.
template <class T>
void check_side_cache(const kv_view<T>& cache, const packed_row& row, std::int64_t scales, const char* name,
                      std::size_t layer) {
    check_kv_view(cache);
    require(cache.kv_heads == row.kv_heads && cache.key_width == row.key_width && cache.value_width == row.value_width,
            "cache", "the ", name, " cache of layer ", layer, " has ", cache.kv_heads, " KV heads of ", cache.key_width,
            " and ", cache.value_width, " elements; the migrator moves rows of ", row.kv_heads, " of ", row.key_width,
            " and ", row.value_width);
    require(values_in_keys(cache) == row.values_in_keys || cache.pages == 0, "cache", "the ", name, " cache of layer ",
            layer, values_in_keys(cache) ? " has" : " does not have",
            " its values in the rows of its keys; only MLA has");
    const std::int64_t of_keys = scales_per_token(cache, cache.k_scale);
    const std::int64_t of_values = row.values_in_keys ? of_keys : scales_per_token(cache, cache.v_scale);
    require(of_keys == scales && of_values == scales, "cache", "the ", name, " cache of layer ", layer, " has ",
            of_keys, " and ", of_values, " scales of a token's keys and values; the migrator moves ", scales);
}

// Whether blocks of the two caches can be the same memory.
template <class Kv>
bool one_pool(const migrated_layer<Kv>& layer) {
    const kv_plane<const Kv>& from = layer.from.k;
    const kv_plane<Kv>& to = layer.to.k;
    if (from.pages != nullptr || to.pages != nullptr) return from.pages == to.pages;
    return from.base == to.base;
}

// What a rank's caches have to say to its tables. Nothing for a side that the rank is not in.
struct pool_facts {
    std::int64_t from_blocks = 0;
    std::int64_t to_blocks = 0;
    bool one_pool = false;
};

template <class Kv>
pool_facts check_layers(const migration& job, std::span<const migrated_layer<Kv>> layers, const packed_row& row,
                        std::int64_t scales, std::int64_t rank) {
    const bool reads = job.from.has(rank), writes = job.to.has(rank);
    if (reads) check_side_table(job.from);
    if (writes) check_side_table(job.to);
    require(!layers.empty(), "layers", "a migration was given no layers; there must be at least 1");
    pool_facts facts{largest_index, largest_index, false};
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const migrated_layer<Kv>& layer = layers[i];
        if (reads) {
            check_side_cache(layer.from, row, scales, "source", i);
            facts.from_blocks = std::min(facts.from_blocks, layer.from.slots() / job.from.table.block_size);
        }
        if (writes) {
            check_side_cache(layer.to, row, scales, "target", i);
            facts.to_blocks = std::min(facts.to_blocks, layer.to.slots() / job.to.table.block_size);
        }
        facts.one_pool = facts.one_pool || (reads && writes && one_pool(layer));
    }
    return facts;
}

// The refusal of what `check` does, if it refuses. Without exceptions it does not return then.
#if defined(__cpp_exceptions)
inline namespace with_exceptions {
template <class Check>
std::optional<config_error> found_refusal(const Check& check) {
    try {
        check();
    } catch (const config_error& problem) {
        return problem;
    }
    return std::nullopt;
}
} // namespace with_exceptions
#else
inline namespace without_exceptions {
template <class Check>
std::optional<config_error> found_refusal(const Check& check) {
    check();
    return std::nullopt;
}
} // namespace without_exceptions
#endif

constexpr const char* code_of(const reshard_status& status) {
    switch (status.fault) {
    case reshard_fault::none:
        return status.code;
    case reshard_fault::from_too_short:
    case reshard_fault::to_too_short:
        return "table_too_short";
    case reshard_fault::from_block:
    case reshard_fault::to_block:
        return "table";
    case reshard_fault::overlap:
        break;
    }
    return "overlap";
}

inline bool refuses(const reshard_status& status) {
    return code_of(status)[0] != 0;
}

// A fault of this rank's own tables.
inline void refuse_own(const reshard_status& status, const reshard_args& args) {
    const bool of_source = status.fault == reshard_fault::from_too_short || status.fault == reshard_fault::from_block;
    const domain_request& side = of_source ? args.from : args.to;
    const char* const name = of_source ? "source" : "target";
    const std::int64_t pool = of_source ? args.from_blocks : args.to_blocks;
    if (status.fault == reshard_fault::overlap)
        require(false, "overlap", "block ", status.block, " of the source of request ", args.from.request,
                " shares memory with block ", status.value, " of its target on rank ", args.rank,
                " of the domain; the source is kept until all is moved, so the target needs blocks of its own");
    if (status.fault == reshard_fault::from_too_short || status.fault == reshard_fault::to_too_short)
        require(false, "table_too_short", args.length, " tokens of request ", side.request, " end in block ",
                status.block, " of the ", name, " on rank ", args.rank, " of the domain (", side.table.block_size,
                " tokens a block, ", side.law.ranks, " ranks, interleave ", side.law.interleave, "); its table has ",
                status.value, " blocks");
    if (status.fault != reshard_fault::none)
        require(false, "table", "block ", status.block, " of the ", name, " of request ", side.request, " on rank ",
                args.rank, " of the domain has the id ", status.value, "; the pool has ", pool,
                " blocks, so ids must be 0 to ", pool - 1);
}

// The rank's own refusal, a peer's, or ranks that were called for different things; all ranks throw, or none does.
inline void check_statuses(std::span<const reshard_status> all, const reshard_args& args,
                           const std::optional<config_error>& own) {
    if (own.has_value()) raise(*own);
    refuse_own(all[static_cast<std::size_t>(args.rank)], args);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        require(!refuses(all[rank]), code_of(all[rank]), "rank ", rank,
                " of the domain has refused a step of a migration, with the code ", code_of(all[rank]),
                "; nothing was moved");
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        require(all[rank].facts == all[0].facts, "facts", "rank ", rank,
                " of the domain was called for another step of a migration than rank 0; layouts, first ranks, tokens, ",
                "length, layers and the migrator's shape must be the same on all ranks");
}

} // namespace ctxpar::inline v0_1::detail
