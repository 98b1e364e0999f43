// Collectives among ranks that are MPI processes. All processes make the same calls, so that the number of iterations
// is fixed; process 0 reports.
//
//   mpirun -n 4 mpi_bench [--smoke] [options of Google Benchmark]
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <mpi.h>

#include <ctxpar/comm/mpi.hpp>

#include "exchange.hpp"

namespace bench {
namespace {

bool wrong = false;

struct silent_reporter : benchmark::BenchmarkReporter {
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>&) override {}
};

void measure(benchmark::State& state, ctxpar::mpi_communicator& comm, collective which, std::size_t bytes) {
    exchange_buffers own(which, comm.rank(), comm.size(), bytes);
    own.run(comm);
    if (!own.right()) {
        wrong = true; // and the others see the same, or go on: this process leaves, and MPI ends them
        std::fprintf(stderr, "WRONG: rank %d did not receive what was sent to it\n", comm.rank());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (auto _ : state) {
        const auto begin = std::chrono::steady_clock::now();
        own.run(comm);
        state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    const auto ranks = static_cast<double>(comm.size());
    const double all =
        2.0 * ranks * (ranks - 1.0) * static_cast<double>(bytes) * static_cast<double>(state.iterations());
    state.counters["copy_GB_per_s"] = benchmark::Counter(all / 1e9, benchmark::Counter::kIsRate);
}

void add_all(ctxpar::mpi_communicator& comm, bool smoke) {
    std::vector<std::size_t> sizes{1U << 10, 1U << 12};
    if (!smoke) sizes = {1U << 10, 1U << 16, 1U << 22};
    for (const collective which : {collective::all_gather, collective::all_to_all, collective::all_to_all_sizes})
        for (const std::size_t bytes : sizes) {
            const int iterations = smoke ? 2 : (bytes < (std::size_t{1} << 20) ? 300 : 30);
            benchmark::RegisterBenchmark(
                name_of_exchange("mpi", which, comm.size(), bytes).c_str(),
                [&comm, which, bytes](benchmark::State& state) { measure(state, comm, which, bytes); })
                ->UseManualTime()
                ->Iterations(iterations)
                ->Unit(benchmark::kMicrosecond);
        }
}

} // namespace
} // namespace bench

int main(int count, char** arguments) {
    MPI_Init(&count, &arguments);
    bool smoke = false;
    int rank = 0, kept = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < count; ++i) {
        const std::string text = arguments[i];
        if (text == "--smoke") {
            smoke = true;
        } else if (rank == 0 || text.rfind("--benchmark_out=", 0) != 0) { // one process writes the file
            arguments[kept++] = arguments[i];
        }
    }
    benchmark::Initialize(&kept, arguments);
    if (benchmark::ReportUnrecognizedArguments(kept, arguments)) MPI_Abort(MPI_COMM_WORLD, 2);
    try {
        ctxpar::mpi_communicator comm(MPI_COMM_WORLD);
        bench::add_all(comm, smoke);
        if (comm.rank() == 0) {
            benchmark::RunSpecifiedBenchmarks();
        } else {
            bench::silent_reporter silent;
            benchmark::RunSpecifiedBenchmarks(&silent);
        }
    } catch (const std::exception& thrown) {
        std::fprintf(stderr, "%s\n", thrown.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
