// Ranks that are threads of this process and compute on its CPU: the plainest kind of ranks.
//
// A kind of ranks is what a harness needs to know of them, a class with
//   backend, communicator        of the decoders and prefillers; the communicator can be moved
//   stream_type                  of both
//   stream                       owns the stream of one rank: get()
//   backends(d)                  make, where make(rank number) is the plain backend of a rank
//   run(d, fn)                   fn(world) on a thread for each rank of the deployment, with its end of a communicator
//                                of all of them; returns when all have ended, and throws what they threw
//   split(world, color, key)     the communicator of the ranks that pass the same color, in the order of their keys;
//                                called by all ranks
//   share, prefill_share         of the deployments of a suite, one in so many is run (drawn.hpp)
//   takes(ranks)                 where it has that: whether deployments of so many ranks can be run
//   exchange_results(all, visit) where it has that: gives all processes what each has of all[rank]
//   twice(runs, same)            where it has that: runs what a suite runs over two kinds of ranks, to compare bits
//   finish(stream)               returns when the work that was given to the stream is done; for what stands between
//   two
//                                operations and looks at memory. A rank that is done with a step waits for its stream
//                                through its communicator, as an engine does.
#pragma once

#include <cstdint>
#include <optional>

#include "deployment.hpp"

namespace ctxpar_test {

struct local_ranks {
    using backend = cpu_backend;
    using communicator = local_communicator;
    using stream_type = host_stream;
    static constexpr std::uint64_t share = 1;
    static constexpr std::uint64_t prefill_share = 1;

    struct stream {
        host_stream get() const { return {}; }
    };

    static auto backends(const deployment& d) {
        return [&d](int) { return cpu_backend({d.threads, d.instructions}); };
    }

    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        local_options options;
        options.checks = d.checks;
        run_local_ranks(static_cast<int>(d.world()), options, fn);
    }

    static std::optional<local_communicator> split(local_communicator& world, int color, int key) {
        return world.split(color, key);
    }

    static void finish(host_stream) {}
};

} // namespace ctxpar_test
