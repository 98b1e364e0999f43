// mixed_batch: an engine's step loop in which some requests prefill while others decode, over ranks that share a
// sharded KV cache, compared with an unsharded run. The loop is in serve.hpp.
#include <cstdio>
#include <exception>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/core/error.hpp>

#include "common/launched.hpp"
#include "options.hpp"
#include "place.hpp"
#include "processes.hpp"
#include "run.hpp"
#include "serve.hpp"
#include "serve_cuda.hpp"

namespace {

using namespace demo;

int run_over_threads(const options& given) {
    const ctxpar::mesh ranks = given.ranks(); // refuses an illegal topology
    given.check();
    if (given.on_gpus()) check_cuda();
    return run(given, true, [&](const std::vector<unsharded_step>& right, watch& found) {
        ctxpar::run_local_ranks(static_cast<int>(ranks.world_size()), {}, [&](ctxpar::local_communicator& world) {
            watch own(given, right);
            watch& observer = world.rank() == 0 ? found : own;
            given.on_gpus() ? serve_on_gpu(world, given, observer)
                            : serve<host_place<ctxpar::local_communicator>>(world, given, observer);
        });
    });
}

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        const bool processes = given.comm == "mpi" || (given.comm == "nccl" && started_as_processes());
        return processes ? run_over_processes(given) : run_over_threads(given);
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "mixed_batch: {}\n", problem.what());
        return 2;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "mixed_batch: {}\n", problem.what());
        return 1;
    }
}
