// One part of a re-sharding, as one rank of a domain sees it: which of its rows go to whom, where rows that arrive go,
// and what is wrong with its tables.
//
// A domain of G ranks holds both layouts: rank r of a layout is rank first_rank + r of the domain. A rank may be in
// both layouts, in one or in none. Block tables are each rank's own.
//
//   from_slots   rows that leave the rank, by the rank that they go to, then those that stay
//   to_slots     rows that arrive, by the rank that they come from, then those that stay
//
// Of two ranks, and of those that stay, tokens are in their order; so both ends of a pair mean the same tokens.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/core/config.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/reshard.hpp>

namespace ctxpar::inline v0_1 {

// The paged cache of one request in one layout, as one rank of a domain holds it. law and first_rank are the same on
// all ranks; the table is this rank's own, and is not looked at on ranks outside [first_rank, first_rank + N).
struct domain_request {
    ownership law;
    std::int64_t first_rank = 0; // of the domain: the layout's rank 0
    block_table table;
    std::int64_t request = 0; // row of the table

    // Whether a rank of the domain is one of the layout, and which.
    CTXPAR_HD constexpr bool has(std::int64_t rank) const { return rank >= first_rank && place(rank) < law.ranks; }
    CTXPAR_HD constexpr std::int64_t place(std::int64_t rank) const { return rank - first_rank; }
    // The rank of the domain that holds a token.
    CTXPAR_HD constexpr std::int64_t rank_of(std::int64_t position) const { return first_rank + law.owner(position); }
    // The tokens before `length` that a rank of the domain holds; 0 outside the layout.
    CTXPAR_HD constexpr std::int64_t local_len(std::int64_t length, std::int64_t rank) const {
        return has(rank) ? law.local_len(length, place(rank)) : 0;
    }
};

// What is wrong with a rank's tables; the smaller is found first.
enum class reshard_fault : std::uint8_t { none, from_too_short, to_too_short, from_block, to_block, overlap };

// What one rank tells the others before rows move.
struct reshard_status {
    std::uint64_t facts = 0; // digest of what must be the same on all ranks
    reshard_fault fault = reshard_fault::none;
    std::int64_t block = -1; // of the request, where it has a fault: of the source's for an overlap
    std::int64_t value = 0;  // blocks present, a block's id, or the target's block that overlaps
    char code[16] = {};      // of a refusal that the host has found itself; else empty
};

struct reshard_arrays {
    std::int64_t* from_slots = nullptr; // [end - first]
    std::int64_t* to_slots = nullptr;   // [end - first]
    std::int64_t* cursors = nullptr;    // [G] used on the host
    reshard_status* status = nullptr;   // [1]
};

// Everything that the arrays depend on. Tokens [kept, length) are in the source, or will be; [first, end) move now.
struct reshard_args {
    domain_request from, to;
    std::int64_t rank = 0;  // of the domain: this one
    std::int64_t ranks = 1; // G
    std::int64_t kept = 0;  // tokens before it are not looked at
    std::int64_t first = 0; // kept <= first <= end <= length
    std::int64_t end = 0;
    std::int64_t length = 0;
    std::int64_t from_blocks = 0; // of this rank's pools
    std::int64_t to_blocks = 0;
    bool one_pool = true; // source and target blocks lie in one pool, and so must not be the same
    reshard_status known; // facts and code; with a code nothing else is looked at
    reshard_arrays out;
};

static_assert(std::is_trivially_copyable_v<reshard_args>);

// Rows of the tokens [first, end), for each pair: visit(from rank, to rank, first local index of either side, count).
// All rows of a pair come in token order. On the host.
template <class Visit>
void for_each_domain_run(const domain_request& from, const domain_request& to, std::int64_t first, std::int64_t end,
                         const Visit& visit) {
    reshard_law{from.law, to.law}.runs(first, end, [&](const reshard_run& run) {
        visit(from.first_rank + run.src_rank, to.first_rank + run.dst_rank, run.src_local, run.dst_local, run.count);
    });
}

namespace detail {

// Blocks of a request as its table has them; 0 where row offsets make no sense.
CTXPAR_HD constexpr std::int64_t blocks_present(const domain_request& side) {
    const std::int64_t present = side.table.blocks_of(side.request);
    const bool readable = side.table.row_offsets.data == nullptr || side.table.row_offsets.at(side.request) >= 0;
    return present < 0 || !readable ? 0 : present;
}

// The block of a request in a pool of some size, or -1.
CTXPAR_HD constexpr std::int64_t block_in_pool(const domain_request& side, std::int64_t block, std::int64_t present,
                                               std::int64_t pool_blocks) {
    if (block >= present) return -1;
    const std::int64_t id = side.table.id(side.request, block);
    return id < pool_blocks ? id : -1;
}

// Blocks that tokens [first, end) of a rank lie in.
CTXPAR_HD constexpr block_range blocks_of(const domain_request& side, std::int64_t rank, std::int64_t first,
                                          std::int64_t end) {
    const std::int64_t begin = side.local_len(first, rank), behind = side.local_len(end, rank);
    if (begin == behind) return {};
    return {begin / side.table.block_size, blocks_for(behind, side.table.block_size)};
}

} // namespace detail

// The slot of one of the rank's own tokens on a side, given by its index among them; -1 where the table or the pool
// does not have it.
CTXPAR_HD constexpr std::int64_t reshard_slot(const domain_request& side, std::int64_t local_index,
                                              std::int64_t present, std::int64_t pool_blocks) {
    const std::int64_t size = side.table.block_size;
    const std::int64_t id = detail::block_in_pool(side, local_index / size, present, pool_blocks);
    return id < 0 ? -1 : id * size + local_index % size;
}

// The faults of one worker's share of the blocks: the first of all shares, by before(), is that of the rank.
class reshard_check {
public:
    CTXPAR_HD explicit reshard_check(const reshard_args& args) : args_(args) {}

    CTXPAR_HD static bool before(const reshard_status& a, const reshard_status& b) {
        if (a.fault == reshard_fault::none || b.fault == reshard_fault::none) return b.fault == reshard_fault::none;
        return a.fault != b.fault ? a.fault < b.fault : a.block < b.block;
    }

    // Blocks share, share + step, ... of both sides.
    CTXPAR_HD reshard_status run(std::int64_t share, std::int64_t step) {
        const auto from =
            side(args_.from, args_.from_blocks, reshard_fault::from_too_short, reshard_fault::from_block, share, step);
        const auto to =
            side(args_.to, args_.to_blocks, reshard_fault::to_too_short, reshard_fault::to_block, share, step);
        if (args_.one_pool) overlaps(from, to, share, step);
        return found_;
    }

private:
    CTXPAR_HD void note(reshard_fault fault, std::int64_t block, std::int64_t value) {
        reshard_status other;
        other.fault = fault;
        other.block = block;
        other.value = value;
        if (before(other, found_)) found_ = other;
    }

    // The blocks of a side that the table has.
    CTXPAR_HD std::int64_t side(const domain_request& cache, std::int64_t pool_blocks, reshard_fault too_short,
                                reshard_fault wrong_block, std::int64_t share, std::int64_t step) {
        const block_range needed = detail::blocks_of(cache, args_.rank, args_.kept, args_.length);
        if (needed.last == 0) return 0;
        const std::int64_t present = detail::blocks_present(cache);
        if (present < needed.last) note(too_short, needed.last - 1, present);
        for (std::int64_t block = needed.first + share; block < needed.last && block < present; block += step)
            if (detail::block_in_pool(cache, block, present, pool_blocks) < 0)
                note(wrong_block, block, cache.table.id(cache.request, block));
        return present;
    }

    // Target blocks that are written now against all source blocks.
    CTXPAR_HD void overlaps(std::int64_t from_present, std::int64_t to_present, std::int64_t share, std::int64_t step) {
        const domain_request& from = args_.from;
        const domain_request& to = args_.to;
        const block_range read = detail::blocks_of(from, args_.rank, args_.kept, args_.length);
        const block_range written = detail::blocks_of(to, args_.rank, args_.first, args_.end);
        for (std::int64_t b = read.first + share; b < read.last; b += step) {
            const std::int64_t source = detail::block_in_pool(from, b, from_present, args_.from_blocks);
            for (std::int64_t t = written.first; source >= 0 && t < written.last; ++t) {
                const std::int64_t target = detail::block_in_pool(to, t, to_present, args_.to_blocks);
                if (target >= 0 && source * from.table.block_size < (target + 1) * to.table.block_size &&
                    target * to.table.block_size < (source + 1) * from.table.block_size)
                    note(reshard_fault::overlap, b, t);
            }
        }
    }

    const reshard_args& args_;
    reshard_status found_;
};

namespace detail {

// The slots of one side. Of every run `own` is its rank on this side, and `local` the first index there.
template <class EachRun>
void write_side_slots(const reshard_args& args, const domain_request& side, std::int64_t pool_blocks,
                      std::int64_t* slots, const EachRun& each_run) {
    if (!side.has(args.rank)) return;
    std::int64_t* const at = args.out.cursors;
    for (std::int64_t peer = 0; peer < args.ranks; ++peer) at[peer] = 0;
    each_run([&](std::int64_t own, std::int64_t peer, std::int64_t, std::int64_t count) {
        if (own == args.rank) at[peer] += count;
    });
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < args.ranks; ++i) { // the rank itself is last
        const std::int64_t peer = i < args.rank ? i : (i + 1 < args.ranks ? i + 1 : args.rank);
        const std::int64_t count = at[peer];
        at[peer] = rows;
        rows += count;
    }
    const std::int64_t present = blocks_present(side);
    each_run([&](std::int64_t own, std::int64_t peer, std::int64_t local, std::int64_t count) {
        for (std::int64_t i = 0; own == args.rank && i < count; ++i)
            slots[at[peer]++] = reshard_slot(side, local + i, present, pool_blocks);
    });
}

} // namespace detail

// The arrays of a part, on the host: slots of both sides, and the status.
inline void write_reshard(const reshard_args& args) {
    reshard_status status = args.known;
    if (status.code[0] == 0) {
        const auto runs = [&](const auto& visit) {
            for_each_domain_run(args.from, args.to, args.first, args.end, visit);
        };
        detail::write_side_slots(args, args.from, args.from_blocks, args.out.from_slots, [&](const auto& use) {
            runs([&](std::int64_t from, std::int64_t to, std::int64_t local, std::int64_t, std::int64_t count) {
                use(from, to, local, count);
            });
        });
        detail::write_side_slots(args, args.to, args.to_blocks, args.out.to_slots, [&](const auto& use) {
            runs([&](std::int64_t from, std::int64_t to, std::int64_t, std::int64_t local, std::int64_t count) {
                use(to, from, local, count);
            });
        });
        status = reshard_check(args).run(0, 1);
        status.facts = args.known.facts;
    }
    *args.out.status = status;
}

} // namespace ctxpar::inline v0_1
