#include "processes.hpp"

#include "engine_cuda.hpp"
#include "process_world.hpp"
#include "run.hpp"
#include "runs.hpp"
#include "step.hpp"

namespace demo {
namespace {

int work(processes& own, const options& given) {
    const problem all = make_problem(given);
    ctxpar::require(!all.on_gpus || all.through_nccl, "comm",
                    "--comm mpi is for --backend cpu; processes with GPUs talk through NCCL, --comm nccl");
    if (all.on_gpus) check_cuda(all);
    own.require_ranks(all.pcp);
    process_world world(own);
    return run(world, given, all, [&](const prompt_data& data, const std::vector<configuration>& runs) {
#if defined(DEMO_WITH_CUDA)
        if (all.on_gpus) return run_cuda_configurations(world, all, data, runs);
#endif
        return run_configurations<cpu_ranks>(world, all, data, runs);
    });
}

} // namespace

int run_over_processes(const options& given) {
    return run_processes("prefill_zigzag", [&](processes& own) { return work(own, given); });
}

} // namespace demo
