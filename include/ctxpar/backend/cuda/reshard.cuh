// The arrays of a part of a re-sharding on a device: which slots leave and where rows arrive, from tables that only the
// device need read. A warp takes one peer of one side and looks at all rows of the rank; the first block looks at the
// tables. What a slot or a fault is, layout/reshard_part.hpp says.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/layout/reshard_part.hpp>

namespace ctxpar::inline v0_1::cuda {

inline constexpr unsigned reshard_threads = 128;

CTXPAR_DEVICE std::int64_t count_of(unsigned bits) {
    std::int64_t count = 0;
    for (; bits != 0; bits &= bits - 1) ++count;
    return count;
}

// The slots of the rows of one side that go to, or come from, one peer; those that stay are behind all others.
CTXPAR_DEVICE void write_peer_slots(const reshard_args& args, const domain_request& side, const domain_request& other,
                                    std::int64_t pool_blocks, std::int64_t peer, std::int64_t* slots) {
    if (!side.has(args.rank) || !other.has(peer)) return;
    const std::int64_t place = side.place(args.rank);
    const std::int64_t first = side.law.local_len(args.first, place), end = side.law.local_len(args.end, place);
    const std::int64_t present = detail::blocks_present(side);
    const auto turn = [&](std::int64_t rank) { return rank == args.rank ? args.ranks : rank; };
    const auto peer_of = [&](std::int64_t index) { return other.rank_of(side.law.global(index, place)); };
    std::int64_t at = 0; // rows of peers that come before
    for (std::int64_t i = first; i < end; i += warp_size) {
        const std::int64_t index = i + lane_index();
        at += count_of(vote(index < end && turn(peer_of(index)) < turn(peer)));
    }
    const unsigned lanes_below = (1U << lane_index()) - 1;
    for (std::int64_t i = first; i < end; i += warp_size) {
        const std::int64_t index = i + lane_index();
        const bool mine = index < end && peer_of(index) == peer;
        const unsigned all = vote(mine);
        if (mine) slots[at + count_of(all & lanes_below)] = reshard_slot(side, index, present, pool_blocks);
        at += count_of(all);
    }
}

// The first fault that any thread of the block has found. Shared memory: a status for each thread.
CTXPAR_DEVICE void write_status(const reshard_args& args) {
    auto* const found = shared_array<reshard_status>();
    const bool refused = args.known.code[0] != 0;
    if (!refused) {
        found[thread_index()] = reshard_check(args).run(thread_index(), block_threads());
        sync_block();
    }
    if (thread_index() != 0) return;
    reshard_status status = args.known;
    for (unsigned i = 0; !refused && i < block_threads(); ++i)
        if (reshard_check::before(found[i], status)) status = found[i];
    status.facts = args.known.facts;
    *args.out.status = status;
}

template <class Args>
CTXPAR_KERNEL void reshard_metadata_kernel(Args args) {
    if (block_x() == 0) return write_status(args);
    if (args.known.code[0] != 0) return;
    const std::int64_t warps = block_threads() / warp_size;
    const std::int64_t step = (std::int64_t{grid_x()} - 1) * warps;
    for (std::int64_t i = (std::int64_t{block_x()} - 1) * warps + thread_index() / warp_size; i < 2 * args.ranks;
         i += step) {
        const bool leaving = i < args.ranks;
        write_peer_slots(args, leaving ? args.from : args.to, leaving ? args.to : args.from,
                         leaving ? args.from_blocks : args.to_blocks, i % args.ranks,
                         leaving ? args.out.from_slots : args.out.to_slots);
    }
}

} // namespace ctxpar::inline v0_1::cuda
