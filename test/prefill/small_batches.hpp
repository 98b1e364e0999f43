// Batches of any kind over any legal shape of ranks, for small_world.hpp: ranks with no rows, no context or nothing at
// all are among them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "small_world.hpp"

namespace small_world {

using generator = std::mt19937_64;

inline std::int64_t any(generator& random, std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(random);
}

struct shape_of_ranks {
    std::int64_t tp, pcp, dcp, kv_heads;
};

// One of each kind: no DCP, part of PCP, PCP, TP x PCP, inside TP, sizes that are no powers of two.
inline constexpr shape_of_ranks shapes[] = {{1, 1, 1, 2}, {1, 2, 1, 2}, {1, 2, 2, 2}, {1, 3, 3, 1},
                                            {1, 4, 2, 2}, {2, 2, 2, 4}, {2, 2, 4, 1}, {2, 1, 2, 1},
                                            {4, 1, 2, 2}, {3, 2, 6, 1}, {2, 3, 3, 2}, {1, 4, 4, 1}};

inline setting any_setting(generator& random) {
    setting s;
    const shape_of_ranks& ranks = shapes[any(random, 0, std::ssize(shapes) - 1)];
    s.sizes.tp = ranks.tp;
    s.sizes.pcp = ranks.pcp;
    s.sizes.dcp = ranks.dcp;
    s.kv_heads = ranks.kv_heads;
    s.q_heads = 12;
    if (ranks.kv_heads == 2 && ranks.tp > 2) s.q_heads = 8;
    s.interleave = std::vector<std::int64_t>{1, 2, 3, 4, 16}[static_cast<std::size_t>(any(random, 0, 4))];
    s.block_size = any(random, 1, 9);
    s.context_rows = s.sizes.dcp * s.interleave * any(random, 1, 6) + any(random, 0, 2);
    s.merge = static_cast<merge_kind>(any(random, 0, 2));
    s.split = static_cast<zigzag_split>(any(random, 0, 2));
    s.prefill_rows = static_cast<prefill_path>(any(random, 0, 2));
    s.decode_rows = static_cast<prefill_path>(any(random, 0, 2));
    if (any(random, 0, 3) == 0) s.mask.window = any(random, 1, 30);
    if (any(random, 0, 5) == 0) s.mask.chunk = any(random, 1, 30);
    if (any(random, 0, 5) == 0) s.mask.prefix = any(random, 1, 8);
    const std::int64_t requests = any(random, 0, 5);
    for (std::int64_t r = 0; r < requests; ++r) {
        request each;
        each.decodes = any(random, 0, 2) == 0;
        each.tokens =
            each.decodes ? any(random, 0, 3) : (any(random, 0, 2) == 0 ? any(random, 0, 3) : any(random, 0, 40));
        each.computed = any(random, 0, 1) == 0 ? 0 : any(random, 0, 70);
        s.requests.push_back(each);
    }
    return s;
}

inline std::string describe(const setting& s) {
    std::string text =
        sentence("tp ", s.sizes.tp, " pcp ", s.sizes.pcp, " dcp ", s.sizes.dcp, " interleave ", s.interleave, " block ",
                 s.block_size, " merge ", static_cast<int>(s.merge), " split ", static_cast<int>(s.split), " paths ",
                 static_cast<int>(s.prefill_rows), ",", static_cast<int>(s.decode_rows), " context rows ",
                 s.context_rows, " window ", s.mask.window, " chunk ", s.mask.chunk, " prefix ", s.mask.prefix, ":");
    for (const request& each : s.requests)
        text += sentence(" ", each.tokens, "@", each.computed, each.decodes ? ":decode" : ":prefill");
    return text;
}

} // namespace small_world
