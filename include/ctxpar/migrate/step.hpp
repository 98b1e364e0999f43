// What a migration is made of: the state that an engine keeps of it, the caches of the layers, and a step, which is one
// part of the tokens on its way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/reshard_part.hpp>

namespace ctxpar::inline v0_1 {

// What all migrations of a migrator have in common. The same on every rank.
struct migration_shape {
    std::int64_t kv_heads = 1;         // of a rank's cache; 1 for MLA
    std::int64_t scales_per_token = 0; // and plane, kept beside the cache: kv_heads, 1 (shared by the heads) or none
    std::int64_t chunk_tokens = 4096;  // of a step, at most; the workspace follows from it
};

// A request that goes from one layout to another. It stays in the source layout, where it may grow, until
// done == its length; the source is never written. Laws, first ranks, `first` and `done` are the same on every rank,
// tables are each rank's own and may be assigned anew between steps.
struct migration {
    domain_request from;
    domain_request to;
    std::int64_t first = 0; // tokens before it are neither moved nor looked at, as behind a window
    std::int64_t done = 0;  // tokens [first, done) are in the target

    // The first token that is still to be moved.
    constexpr std::int64_t next() const { return std::max(first, done); }
};

// The caches of one layer on this rank, where it is in the source or the target; else nothing is read of them. Pages,
// page sizes and orders may differ. Scales a tensor or a head do not move: they are the engine's, and the same on all
// ranks and sides.
template <class Kv>
struct migrated_layer {
    kv_view<const Kv> from;
    kv_view<Kv> to;
};

// Tokens [first, end) of a migration, planned. It refers to its workspace and to the layers, which must outlive it.
template <class Kv>
struct migration_step {
    std::int64_t first = 0;
    std::int64_t end = 0;
    std::span<const migrated_layer<Kv>> layers;
    std::vector<std::size_t> send_bytes;    // [G] to each rank of the domain, for each layer
    std::vector<std::size_t> receive_bytes; // [G] from each
    std::int64_t sent_rows = 0;             // by this rank
    std::int64_t received_rows = 0;
    std::int64_t kept_rows = 0; // that stay on this rank
    bool exchanges = false;     // some rank sends a row
    std::uint64_t digest = 0;   // of what all ranks have in common
    std::uint64_t migrator = 0; // of the migrator that planned it
    reshard_arrays arrays;      // in the workspace
    void* scratch = nullptr;    // the workspace

    bool empty() const { return first == end; }
};

} // namespace ctxpar::inline v0_1
