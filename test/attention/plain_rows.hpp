// What query rows may see, position by position, and which positions lie on which rank, by dealing tokens out one after
// another. Shares nothing with the library but the names of a mask's sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ctxpar/attention/rows.hpp>

namespace plain {

// Row i of the last `rows` tokens of a sequence: does it see the token at `position`?
inline bool row_sees(std::int64_t length, std::int64_t rows, std::int64_t i, const ctxpar::mask_rule& rule,
                     const std::uint64_t* tree_bits, std::int64_t position) {
    const std::int64_t own = length - rows + i; // the row's own position
    if (own < 0 || position < 0 || position >= length) return false;
    const std::int64_t node = position - (length - rows);
    if (tree_bits != nullptr && node >= 0) return (*tree_bits >> node & 1U) != 0;
    if (position > own) return false;
    const bool in_window = rule.window == 0 || position > own - rule.window;
    const bool in_chunk = rule.chunk == 0 || position / rule.chunk == own / rule.chunk;
    return (in_window && in_chunk) || position < rule.prefix;
}

// The positions in [0, length) that a rank holds, in order.
inline std::vector<std::int64_t> positions_of(std::int64_t ranks, std::int64_t interleave, std::int64_t rank,
                                              std::int64_t length) {
    std::vector<std::int64_t> held;
    std::int64_t turn = 0;
    std::int64_t dealt = 0;
    for (std::int64_t position = 0; position < length; ++position) {
        if (dealt == interleave) {
            dealt = 0;
            turn = turn + 1 == ranks ? 0 : turn + 1;
        }
        ++dealt;
        if (turn == rank) held.push_back(position);
    }
    return held;
}

} // namespace plain
