#include "processes.hpp"

#include "common/processes.hpp"
#include "place.hpp"
#include "run.hpp"
#include "serve.hpp"
#include "serve_cuda.hpp"
#include "serve_processes.hpp"

int demo::run_over_processes(const options& given) {
    return run_processes("mixed_batch", [&](processes& own) {
        require(!given.on_gpus() || given.comm == "nccl", "comm",
                "--comm mpi is for --backend cpu; processes with GPUs talk through NCCL, --comm nccl");
        given.check();
        if (given.on_gpus()) check_cuda();
        own.require_ranks(given.ranks().world_size());
        return run(given, own.speaks(), [&](const std::vector<unsharded_step>&, watch& found) {
            own.run([&](mpi_communicator& world) {
#if defined(DEMO_WITH_CUDA)
                if (given.on_gpus()) return serve_on_gpu(world, given, found);
#endif
                serve<host_place<mpi_communicator>>(world, given, found);
            });
        });
    });
}
