// Batches with prefills and the ranks they are cut over, with the rows of every rank by dealing tokens out, and the
// sight of every row by asking every token. Shares nothing with the library but its names for sizes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <attention/plain_rows.hpp>

#include <ctxpar/attention/prefill_batch.hpp>

namespace plain {

using numbers = std::vector<std::int64_t>;

inline std::int64_t at_most(std::mt19937_64& random, std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

// The n tokens of a prefill in 2W chunks; tokens at and past n are pads.
inline std::vector<numbers> dealt_chunks(std::int64_t n, std::int64_t pcp, ctxpar::zigzag_split split) {
    numbers sizes(static_cast<std::size_t>(2 * pcp), 0);
    if (split == ctxpar::zigzag_split::balanced) {
        for (std::int64_t t = 0; t < n; ++t) ++sizes[static_cast<std::size_t>(t % (2 * pcp))];
    } else {
        while (sizes[0] * 2 * pcp < n)
            for (std::int64_t& size : sizes) ++size;
    }
    std::vector<numbers> chunks;
    std::int64_t token = 0;
    for (const std::int64_t size : sizes) {
        chunks.emplace_back();
        for (std::int64_t i = 0; i < size; ++i, ++token)
            if (token < n || split == ctxpar::zigzag_split::padded) chunks.back().push_back(token);
    }
    return chunks;
}

// The new tokens of a prefill on one PCP rank, head before tail.
inline numbers dealt_tokens(std::int64_t n, std::int64_t pcp, ctxpar::zigzag_split split, std::int64_t rank) {
    const auto chunks = dealt_chunks(n, pcp, split);
    numbers tokens = chunks[static_cast<std::size_t>(rank)];
    const numbers& tail = chunks[static_cast<std::size_t>(2 * pcp - 1 - rank)];
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    return tokens;
}

// One row of a rank.
struct prefill_row {
    std::size_t request = 0;
    std::int64_t token = 0; // of the request's new ones
    bool real = true;       // false: a pad
};

// A batch over W PCP ranks whose caches are shared by N ranks, `owners` PCP ranks of them in each group.
struct prefills {
    std::int64_t pcp = 1, ranks = 1, owners = 1, interleave = 1;
    ctxpar::zigzag_split split = ctxpar::zigzag_split::balanced;
    ctxpar::prefill_path prefill_path = ctxpar::prefill_path::automatic;
    ctxpar::prefill_path decode_path = ctxpar::prefill_path::automatic;
    std::int64_t query_bytes = 1, context_bytes = 1, units = 1;
    numbers computed, tokens, kinds;
    ctxpar::mask_rule mask;
    std::vector<std::uint64_t> tree_bits; // [decode rows], empty: none
    std::int64_t block_size = 3, columns = 1;
    std::vector<numbers> blocks; // of each KV rank: [requests][columns]

    std::size_t requests() const { return tokens.size(); }
    bool decodes(std::size_t r) const { return kinds[r] == 1; }
    std::int64_t total(std::size_t r) const { return computed[r] + tokens[r]; }
    std::int64_t tp() const { return ranks / owners; }

    // The law on the rank of these PCP and tp coordinates.
    ctxpar::prefill_law law(std::int64_t pcp_rank, std::int64_t tp_rank) const {
        ctxpar::prefill_law law;
        law.split = {pcp, split};
        law.gather = {{ranks, interleave}, units};
        law.part = {ranks, tp_rank * owners + pcp_rank % owners, interleave};
        law.pcp_rank = pcp_rank;
        law.row_owners = owners;
        law.mask = mask;
        law.prefill_rows = prefill_path;
        law.decode_rows = decode_path;
        law.query_bytes = query_bytes;
        law.decode_bytes = 2 * query_bytes;
        law.context_bytes = context_bytes;
        return law;
    }
    ctxpar::prefill_batch batch(std::int64_t kv_rank) const {
        ctxpar::prefill_batch batch;
        batch.requests = static_cast<std::int64_t>(requests());
        batch.computed = ctxpar::index_of(computed.data());
        batch.tokens = ctxpar::index_of(tokens.data());
        batch.kinds = ctxpar::index_of(kinds.data());
        batch.table = ctxpar::table_2d(blocks[static_cast<std::size_t>(kv_rank)].data(), batch.requests, columns,
                                       block_size, columns);
        batch.mask = mask;
        if (!tree_bits.empty()) batch.tree_bits = tree_bits.data();
        return batch;
    }
    ctxpar::row_set set(std::size_t r) const { return law(0, 0).set_of({computed[r], tokens[r], decodes(r)}); }

    numbers tokens_on(std::size_t r, std::int64_t pcp_rank) const {
        if (!decodes(r)) return dealt_tokens(tokens[r], pcp, split, pcp_rank);
        numbers all(static_cast<std::size_t>(tokens[r]));
        std::iota(all.begin(), all.end(), std::int64_t{0});
        return all;
    }
    std::vector<prefill_row> rows_on(std::int64_t pcp_rank) const {
        std::vector<prefill_row> rows;
        for (std::size_t r = 0; r < requests(); ++r)
            for (const std::int64_t token : tokens_on(r, pcp_rank)) rows.push_back({r, token, token < tokens[r]});
        return rows;
    }

    // New tokens of the requests before this one that are in the batch, that are staged, and rows with tree bits.
    std::int64_t batch_row(std::size_t r) const {
        return std::accumulate(tokens.begin(), tokens.begin() + at(r), zero);
    }
    std::int64_t staged_row(std::size_t r) const {
        std::int64_t sum = 0;
        for (std::size_t i = 0; i < r; ++i) sum += set(i) == ctxpar::row_set::kv ? tokens[i] : 0;
        return sum;
    }
    std::int64_t tree_row(std::size_t r) const {
        std::int64_t sum = 0;
        for (std::size_t i = 0; i < r; ++i) sum += decodes(i) ? tokens[i] : 0;
        return sum;
    }

    bool sees(const prefill_row& row, std::int64_t position) const {
        const bool tree = decodes(row.request) && !tree_bits.empty();
        const std::uint64_t* bits =
            tree ? &tree_bits[static_cast<std::size_t>(tree_row(row.request) + row.token)] : nullptr;
        return row.real && row_sees(total(row.request), tokens[row.request], row.token, mask, bits, position);
    }
    numbers held(std::size_t r, std::int64_t kv_rank) const {
        return positions_of(ranks, interleave, kv_rank, total(r));
    }
    // Where a rank caches a position, -1 where it does not.
    std::int64_t slot(std::size_t r, std::int64_t kv_rank, std::int64_t position) const {
        const numbers own = held(r, kv_rank);
        const auto found = std::find(own.begin(), own.end(), position);
        if (found == own.end()) return -1;
        const std::int64_t index = found - own.begin();
        const auto block = static_cast<std::size_t>(index / block_size);
        return blocks[static_cast<std::size_t>(kv_rank)][r * static_cast<std::size_t>(columns) + block] * block_size +
               index % block_size;
    }

private:
    static constexpr std::int64_t zero = 0;
    static std::ptrdiff_t at(std::size_t r) { return static_cast<std::ptrdiff_t>(r); }
};

inline ctxpar::mask_rule random_mask(std::mt19937_64& random) {
    ctxpar::mask_rule mask;
    if (at_most(random, 2) == 0) mask.window = 1 + at_most(random, 12);
    if (at_most(random, 3) == 0) mask.chunk = 1 + at_most(random, 9);
    if (at_most(random, 2) == 0) mask.prefix = at_most(random, 6);
    return mask;
}

inline ctxpar::prefill_path random_path(std::mt19937_64& random) {
    return static_cast<ctxpar::prefill_path>(at_most(random, 2));
}

// A few requests, some without new tokens, some without context, in any order.
inline prefills random_prefills(std::mt19937_64& random, std::int64_t pcp, std::int64_t ranks,
                                ctxpar::zigzag_split split) {
    prefills given;
    given.pcp = pcp;
    given.ranks = ranks;
    given.owners = std::min(pcp, ranks);
    given.interleave = 1 + at_most(random, 3);
    given.split = split;
    given.prefill_path = random_path(random);
    given.decode_path = random_path(random);
    given.query_bytes = 1 + at_most(random, 9);
    given.context_bytes = 1 + at_most(random, 9);
    given.units = 1 + at_most(random, 4);
    given.mask = random_mask(random);
    const std::int64_t requests = at_most(random, 5);
    std::int64_t decode_rows = 0;
    for (std::int64_t r = 0; r < requests; ++r) {
        given.kinds.push_back(at_most(random, 2) == 0 ? 1 : 0);
        given.computed.push_back(at_most(random, 3) == 0 ? 0 : at_most(random, 40));
        given.tokens.push_back(at_most(random, 4) == 0 ? 0 : at_most(random, given.kinds.back() == 1 ? 5 : 17));
        decode_rows += given.kinds.back() == 1 ? given.tokens.back() : 0;
        given.columns = std::max(given.columns, given.computed.back() + given.tokens.back());
    }
    const bool trees = at_most(random, 1) == 0;
    for (std::int64_t i = 0; trees && i < decode_rows; ++i) given.tree_bits.push_back(random() % 32);
    given.block_size = 1 + at_most(random, 4);
    for (std::int64_t rank = 0; rank < ranks; ++rank) { // every block of a pool belongs to one request
        given.blocks.emplace_back(static_cast<std::size_t>(requests * given.columns));
        std::iota(given.blocks.back().begin(), given.blocks.back().end(), std::int64_t{0});
        std::shuffle(given.blocks.back().begin(), given.blocks.back().end(), random);
    }
    return given;
}

// Every legal pair of W and N up to 4: one divides the other.
template <class Body>
void for_each_split(Body body) {
    using ctxpar::zigzag_split;
    for (std::int64_t pcp = 1; pcp <= 4; ++pcp)
        for (std::int64_t ranks = 1; ranks <= 4; ++ranks)
            for (const zigzag_split split : {zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil})
                if (pcp % ranks == 0 || ranks % pcp == 0) body(pcp, ranks, split);
}

} // namespace plain
