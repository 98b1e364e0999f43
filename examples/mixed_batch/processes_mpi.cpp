#include "processes.hpp"

#include "common/processes.hpp"
#include "run.hpp"
#include "serve.hpp"

int demo::run_over_processes(const options& given) {
    return run_processes("mixed_batch", [&](processes& own) {
        own.require_ranks(given.ranks().world_size());
        return run(given, own.speaks(), [&](const std::vector<unsharded_step>&, watch& found) {
            own.run([&](ctxpar::mpi_communicator& world) { serve(world, given, found); });
        });
    });
}
