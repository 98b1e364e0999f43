// decode_1m: decode over a million tokens of KV cache that no rank holds alone, checked against an unsharded reference.
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>

#include <fmt/format.h>

#include <ctxpar/comm/local.hpp>

#include "common/launched.hpp"
#include "processes.hpp"
#include "run.hpp"

namespace {

using namespace demo;

// All ranks are threads of this process. They outnumber cores, so that a rank may wait long for its peers.
struct threads {
    using communicator = ctxpar::local_communicator;

    bool speaks() const { return true; }
    double share() const { return 1.0; }
    std::int64_t own_ranks(const problem& all) const { return all.ranks().world_size(); }
    template <class Fn>
    void first(const Fn& fn) {
        fn();
    }
    void agree(problem&) {}
    auto make_engine(const problem& all, const kv_data& data) { return demo::make_engine(all, data); }
    template <class Fn>
    void run(const problem& all, const Fn& fn) {
        ctxpar::run_local_ranks(static_cast<int>(own_ranks(all)), {std::chrono::minutes(30)}, fn);
    }
    std::int64_t reading_threads(const problem&, const engine& ranks) const { return ranks.reading_threads(); }
    void gather(facts&) {}
    void gather(const problem&, record&) {}
    void end() {}
};

} // namespace

int main(int argc, char** argv) {
    const options given = parse_options(argc, argv);
    try {
        threads world;
        const bool processes = given.comm == "mpi" || (given.comm == "nccl" && started_as_processes());
        return processes ? run_over_processes(given) : run(world, given);
    } catch (const ctxpar::config_error& problem) {
        fmt::print(stderr, "decode_1m: {}\n", problem.what());
        return refused;
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "decode_1m: there is too little memory\n");
        return refused;
    } catch (const std::exception& problem) {
        fmt::print(stderr, "decode_1m: {}\n", problem.what());
        return wrong;
    }
}
