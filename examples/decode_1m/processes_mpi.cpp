#include "processes.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/processes.hpp"
#include "engine_processes.hpp"
#include "run.hpp"

namespace demo {
namespace {

// One rank of all: a World, as run.hpp has it.
class process_world {
public:
    using communicator = processes::communicator;

    // Of all processes.
    explicit process_world(processes& all) : all_(all), share_(static_cast<double>(all.on_this_host()) / all.size()) {}

    bool speaks() const { return all_.speaks(); }
    double share() const { return share_; }
    std::int64_t own_ranks(const problem&) const { return 1; }
    template <class Fn>
    void first(const Fn& fn) {
        all_.first(fn);
    }
    void agree(problem& all) { all_.spread(all.tokens); }
    auto make_engine(const problem& all, const kv_data& data) { return make_process_engine(all, data); }
    template <class Fn>
    void run(const problem&, const Fn& fn) {
        all_.run(fn);
    }

    // As many as the ranks of this host keep busy; the speaker learns it when all have filled their caches.
    std::int64_t reading_threads(const problem& all, const process_engine&) const {
        (void)all_.gathered(share_);
        const auto cores = static_cast<double>(std::max(1U, std::thread::hardware_concurrency()));
        const double ranks = share() * static_cast<double>(all.ranks().world_size());
        return static_cast<std::int64_t>(std::min(cores, ranks * static_cast<double>(all.threads_per_rank)));
    }
    void gather(facts& known) {
        const std::vector<facts> found = all_.gathered(known);
        if (!speaks()) return;
        known.pool_bytes = 0;
        for (const facts& each : found) known.pool_bytes += each.pool_bytes;
        known.ceiling /= share(); // of all hosts, where they are alike
    }

    // Clocks of hosts differ: a step takes as long as it took the slowest rank.
    void gather(const problem& all, record& steps) {
        const auto own = static_cast<std::size_t>(all_.rank());
        const auto size = static_cast<std::size_t>(all_.size());
        for (std::int64_t step = 0; step < all.steps; ++step) {
            const std::size_t first = static_cast<std::size_t>(step) * size;
            const std::vector<double> seconds = all_.gathered(steps.end[first + own] - steps.begin[first + own]);
            for (std::size_t rank = 0; rank < size; ++rank) {
                steps.begin[first + rank] = 0.0;
                steps.end[first + rank] = seconds[rank];
            }
            for (std::int64_t layer = 0; layer < all.layers; ++layer)
                for (int rank = 0; rank < all_.size(); ++rank) all_.bring(steps.output(all, step, layer, rank), rank);
        }
        steps.sent = all_.gathered(steps.sent[own]);
    }

    void end() { all_.print_memory(); }

private:
    processes& all_;
    double share_;
};

} // namespace

int run_over_processes(const options& given) {
    return run_processes("decode_1m", [&](processes& own) {
        const problem asked = make_problem(given);
        ctxpar::require(!asked.on_gpus || asked.through_nccl, "comm",
                        "--comm mpi is for --backend cpu; processes with GPUs talk through NCCL, --comm nccl");
        own.require_ranks(asked.ranks().world_size());
        process_world world(own);
        return run(world, given);
    });
}

} // namespace demo
