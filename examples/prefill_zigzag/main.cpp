// prefill_zigzag: the last rows of a long prompt prefilled over PCP ranks, with the cache replicated and sharded, both
// ways in which rows meet the keys of other ranks, checked against an unsharded reference.
#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

#include "common/launched.hpp"
#include "engine_cuda.hpp"
#include "processes.hpp"
#include "run.hpp"
#include "runs.hpp"
#include "step.hpp"
#include "worlds.hpp"

namespace {

using namespace demo;

int run_over_threads(const options& given) {
    const problem all = make_problem(given);
    if (all.on_gpus) check_cuda(all);
    threads world;
    return run(world, given, all, [&](const prompt_data& data, const std::vector<configuration>& runs) {
        return all.on_gpus ? run_cuda_configurations(world, all, data, runs)
                           : run_configurations<cpu_ranks>(world, all, data, runs);
    });
}

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        const bool processes = given.comm == "mpi" || (given.comm == "nccl" && started_as_processes());
        return processes ? run_over_processes(given) : run_over_threads(given);
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "prefill_zigzag: {}\n", problem.what());
        return refused;
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "prefill_zigzag: there is too little memory\n");
        return refused;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "prefill_zigzag: {}\n", problem.what());
        return wrong;
    }
}
