// Ranks that are MPI processes, seen from one of them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/processes.hpp"
#include "engine.hpp"

namespace demo {

// One rank of all: a World, as worlds.hpp has it.
class process_world {
public:
    using communicator = processes::communicator;

    explicit process_world(processes& all) : all_(all) {}

    bool speaks() const { return all_.speaks(); }
    double share() const { return static_cast<double>(all_.on_this_host()) / all_.size(); }
    std::int64_t own_ranks(std::int64_t) const { return 1; }
    bool owns(std::int64_t rank) const { return rank == all_.rank(); }
    template <class Fn>
    void first(const Fn& fn) {
        all_.first(fn);
    }
    template <class Fn>
    void run(std::int64_t, const Fn& fn) {
        all_.run(fn);
    }

    // Clocks of hosts differ: a step takes as long as it took the slowest rank.
    void gather(const problem&, record& to) {
        struct measured {
            double seconds;
            std::uint64_t sent;
        };
        const rank_record& own = to.ranks[static_cast<std::size_t>(all_.rank())];
        const auto found = all_.gathered(measured{own.end - own.begin, own.sent});
        for (int rank = 0; rank < all_.size(); ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            rank_record& each = to.ranks[at];
            all_.bring(each.outputs, rank);
            all_.bring(each.lses, rank);
            if (!speaks()) continue;
            each.begin = 0.0;
            each.end = found[at].seconds;
            each.sent = found[at].sent;
        }
    }

    void end() { all_.print_memory(); }

private:
    processes& all_;
};

// run_configurations() of runs.hpp with a GPU and NCCL for each process, where the program has CUDA.
std::vector<record> run_cuda_configurations(process_world& ranks, const problem& all, const prompt_data& data,
                                            const std::vector<configuration>& runs);

} // namespace demo
