// Everything that lies in the workspace of a migration step, and where.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ctxpar/core/workspace.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/reshard_part.hpp>

namespace ctxpar::inline v0_1::detail {

template <class Kv>
struct migration_buffers {
    reshard_arrays arrays;
    reshard_status* statuses = nullptr; // [G] of all ranks
    Kv* sent = nullptr;                 // packed rows [chunk]
    Kv* received = nullptr;             // packed rows [chunk]
    std::size_t bytes = 0;              // of all
};

// Carves the workspace for steps of up to `chunk` tokens; with a null base it only counts.
template <class Kv>
migration_buffers<Kv> carve_migration(const packed_row& row, std::int64_t chunk, std::int64_t ranks, std::int64_t rank,
                                      void* base) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(Kv));
    carver memory(base);
    migration_buffers<Kv> all;
    all.arrays.from_slots = memory.take<std::int64_t>(chunk);
    all.arrays.to_slots = memory.take<std::int64_t>(chunk);
    all.arrays.cursors = memory.take<std::int64_t>(ranks);
    all.statuses = memory.take<reshard_status>(ranks);
    all.arrays.status = behind(all.statuses, rank);
    all.sent = memory.take<Kv>(chunk * (row.bytes(size) / size));
    all.received = memory.take<Kv>(chunk * (row.bytes(size) / size));
    all.bytes = memory.bytes();
    return all;
}

} // namespace ctxpar::inline v0_1::detail
