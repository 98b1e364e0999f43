// The groups of one rank, whatever its ranks are.
#pragma once

#include <cstdint>
#include <optional>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace demo {

// The groups that decode and prefill need, split from all ranks as the mesh says. All ranks make theirs together.
template <ctxpar::communicator C = ctxpar::local_communicator>
struct rank_groups {
    std::optional<C> kv, query, heads, rows;

    rank_groups(C& world, const ctxpar::mesh& ranks) {
        const ctxpar::decode_groups wanted = ranks.groups_of(world.rank());
        const auto split = [&world](const ctxpar::rank_group& group) {
            return world.split(static_cast<int>(group.color), static_cast<int>(group.key));
        };
        kv = split(wanted.kv);
        query = split(wanted.query);
        heads = split(wanted.heads);
        rows = split(wanted.rows);
    }
    ctxpar::groups<C> view() { return {&*kv, &*query, &*heads, &*rows}; }
    std::uint64_t bytes_sent() const {
        return kv->bytes_sent() + query->bytes_sent() + heads->bytes_sent() + rows->bytes_sent();
    }
};

} // namespace demo
