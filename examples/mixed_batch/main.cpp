// mixed_batch: an engine's step loop in which some requests prefill while others decode, over ranks that share a
// sharded KV cache, compared with an unsharded run. The loop is in serve.cpp.
#include <cstdio>
#include <exception>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/core/error.hpp>

#include "options.hpp"
#include "serve.hpp"
#include "unsharded.hpp"
#include "watch.hpp"

namespace {

using namespace demo;

int run(const options& given) {
    const ctxpar::mesh ranks = given.ranks(); // refuses an illegal topology
    fmt::print("TP {} x PCP {}, DCP {}, interleave {}; GQA, {} query and {} KV heads of {}, {} layers, chunks of {}\n",
               given.sizes.tp, given.sizes.pcp, given.sizes.dcp, given.interleave, options::q_heads, given.kv_heads,
               options::head_dim, options::layers, given.chunk);
    const std::vector<unsharded_step> right = run_unsharded(given);
    watch found(given, right);
    ctxpar::run_local_ranks(static_cast<int>(ranks.world_size()), {}, [&](ctxpar::local_communicator& world) {
        watch own(given, right);
        serve(world, given, world.rank() == 0 ? found : own);
    });
    const bool pass = found.worst() <= watch::bound && found.as_expected();
    fmt::print("{}: the worst row is {:.1e} from the unsharded run, and may be {:.0e} (relative L2); {}\n",
               pass ? "pass" : "FAIL", found.worst(), watch::bound,
               found.as_expected() ? "the sampled tokens are the same" : "sampled tokens or bytes differ");
    return pass ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        return run(given);
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "mixed_batch: {}\n", problem.what());
        return 2;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "mixed_batch: {}\n", problem.what());
        return 1;
    }
}
