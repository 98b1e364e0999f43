// What mixed_batch does, over ranks of any kind.
#pragma once

#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "options.hpp"
#include "unsharded.hpp"
#include "watch.hpp"

namespace demo {

// The exit status. Where `speaks` it prints; serve_all(right, found) lets every rank serve, and `found` watch one of
// them: each learns what all have found.
template <class Fn>
int run(const options& given, bool speaks, const Fn& serve_all) {
    if (speaks)
        fmt::print(
            "TP {} x PCP {}, DCP {}, interleave {}; GQA, {} query and {} KV heads of {}, {} layers, chunks of {}\n",
            given.sizes.tp, given.sizes.pcp, given.sizes.dcp, given.interleave, options::q_heads, given.kv_heads,
            options::head_dim, options::layers, given.chunk);
    const std::vector<unsharded_step> right = run_unsharded(given);
    watch found(given, right);
    serve_all(right, found);
    const bool pass = found.worst() <= watch::bound && found.as_expected();
    if (speaks)
        fmt::print("{}: the worst row is {:.1e} from the unsharded run, and may be {:.0e} (relative L2); {}\n",
                   pass ? "pass" : "FAIL", found.worst(), watch::bound,
                   found.as_expected() ? "the sampled tokens are the same" : "sampled tokens or bytes differ");
    std::fflush(stdout);
    return pass ? 0 : 1;
}

} // namespace demo
