#include "processes.hpp"

#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <fmt/format.h>

#include <ctxpar/comm/mpi.hpp>

#include "common/text.hpp"
#include "engine_processes.hpp"
#include "run.hpp"

namespace demo {
namespace {

constexpr int speaker = 0;

// One rank of all.
class process {
public:
    using communicator = ctxpar::mpi_communicator;

    process() {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
    }

    bool speaks() const { return rank_ == speaker; }
    double share() const {
        MPI_Comm host = MPI_COMM_NULL;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
        int here = 1;
        MPI_Comm_size(host, &here);
        MPI_Comm_free(&host);
        return static_cast<double>(here) / size_;
    }
    std::int64_t own_ranks(const problem&) const { return 1; }

    void agree(problem& all) { MPI_Bcast(&all.tokens, 1, MPI_INT64_T, speaker, MPI_COMM_WORLD); }
    auto make_engine(const problem& all, const kv_data& data) { return make_process_engine(all, data); }

    template <class Fn>
    void run(const problem&, const Fn& fn) {
        if (!world_) world_.emplace(MPI_COMM_WORLD, ctxpar::mpi_options{std::chrono::minutes(30)});
        fn(*world_);
    }

    void gather(facts& known) {
        std::uint64_t bytes = known.pool_bytes;
        MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        known.pool_bytes = bytes;
        MPI_Allreduce(MPI_IN_PLACE, &known.ceiling, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &known.reading_threads, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    }

    // Clocks of hosts differ: a step takes as long as it took the slowest rank.
    void gather(const problem& all, record& steps) {
        for (std::int64_t step = 0; step < all.steps; ++step) {
            const auto first = static_cast<std::size_t>(step * size_);
            const double seconds = steps.end[first + at()] - steps.begin[first + at()];
            std::fill_n(steps.begin.begin() + static_cast<std::ptrdiff_t>(first), size_, 0.0);
            MPI_Gather(&seconds, 1, MPI_DOUBLE, &steps.end[first], 1, MPI_DOUBLE, speaker, MPI_COMM_WORLD);
            for (std::int64_t layer = 0; layer < all.layers; ++layer)
                for (int rank = 0; rank < size_; ++rank) bring(steps.output(all, step, layer, rank), rank);
        }
        const std::uint64_t sent = steps.sent[at()];
        MPI_Gather(&sent, 1, MPI_UINT64_T, steps.sent.data(), 1, MPI_UINT64_T, speaker, MPI_COMM_WORLD);
    }

    int conclude(int status) {
        print_memory();
        MPI_Bcast(&status, 1, MPI_INT, speaker, MPI_COMM_WORLD);
        world_.reset();
        return status;
    }

private:
    std::size_t at() const { return static_cast<std::size_t>(rank_); }

    // To the speaker, from the process of a rank.
    void bring(std::vector<float>& values, int rank) {
        if (rank == speaker) return;
        if (rank_ == rank)
            MPI_Send(values.data(), static_cast<int>(values.size()), MPI_FLOAT, speaker, 0, MPI_COMM_WORLD);
        if (!speaks()) return;
        MPI_Status incoming;
        int count = 0;
        MPI_Probe(rank, 0, MPI_COMM_WORLD, &incoming);
        MPI_Get_count(&incoming, MPI_FLOAT, &count);
        values.resize(static_cast<std::size_t>(count));
        MPI_Recv(values.data(), count, MPI_FLOAT, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }

    void print_memory() const {
        rusage own{};
        getrusage(RUSAGE_SELF, &own);
        const std::int64_t bytes = own.ru_maxrss * std::int64_t{1024};
        std::vector<std::int64_t> peaks(static_cast<std::size_t>(size_));
        MPI_Gather(&bytes, 1, MPI_INT64_T, peaks.data(), 1, MPI_INT64_T, speaker, MPI_COMM_WORLD);
        if (!speaks()) return;
        fmt::print("  peak resident memory of each process, MiB:");
        for (const std::int64_t peak : peaks) fmt::print(" {}", peak >> 20);
        fmt::print("\n");
        std::fflush(stdout);
    }

    int rank_ = 0;
    int size_ = 1;
    std::optional<ctxpar::mpi_communicator> world_;
};

// All ranks are refused alike, and one says so.
int say_refusal(const process& own, const char* sentence) {
    if (own.speaks()) fmt::print(stderr, "decode_1m: {}\n", sentence);
    return refused;
}

// The ranks may not be where the others are: MPI can not be left in order.
[[noreturn]] void give_up(const char* sentence) {
    fmt::print(stderr, "decode_1m: {}\n", sentence);
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, wrong);
    std::_Exit(wrong);
}

int decode_here(process& own, const options& given) {
    const problem asked = make_problem(given);
    int processes = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    const std::int64_t needed = asked.ranks().world_size();
    ctxpar::require(!asked.on_gpus, "comm", "--comm mpi is for --backend cpu");
    ctxpar::require(needed == processes, "ranks", "this run has ", needed, " ranks, and MPI started ", processes,
                    processes == 1 ? " process; start it with mpirun -n " : " processes; start it with mpirun -n ",
                    needed);
    return run(own, given);
}

} // namespace

int run_over_processes(const options& given) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    int status = refused;
    {
        process own;
        try {
            status = decode_here(own, given);
        } catch (const ctxpar::config_error& problem) {
            status = say_refusal(own, problem.what());
        } catch (const std::exception& problem) {
            give_up(problem.what());
        }
    }
    MPI_Finalize();
    return status;
}

} // namespace demo
