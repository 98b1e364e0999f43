// Ranks that are MPI processes and compute on their CPUs: the kind of ranks (test/support/local_ranks.hpp) over which
// the exactness suites run across processes. Each process runs the suite, a rank of each deployment, and all checks:
// after a run the processes give each other what their ranks returned.
//
// A deployment is run by as many processes as it has ranks, and once more over threads of each process, from the same
// compiled code, for the bits of the two to be compared.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <ctxpar/comm/mpi.hpp>
#include <ctxpar/ctxpar.hpp>

#include "../support/deployment.hpp"

namespace ctxpar_test {

// Threads of one process, or processes. Without what threads can do besides, so that both go the same way.
class process_communicator {
public:
    using stream_type = host_stream;
    explicit process_communicator(local_communicator of) : of_(std::move(of)) {}
    explicit process_communicator(mpi_communicator of) : of_(std::move(of)) {}

    int rank() const {
        return std::visit([](const auto& c) { return c.rank(); }, of_);
    }
    int size() const {
        return std::visit([](const auto& c) { return c.size(); }, of_);
    }
    void all_gather(const void* send, void* recv, std::size_t bytes, host_stream s, collective_note note = {}) {
        std::visit([&](auto& c) { c.all_gather(send, recv, bytes, s, note); }, of_);
    }
    void all_to_all(const void* send, void* recv, std::size_t bytes, host_stream s, collective_note note = {}) {
        std::visit([&](auto& c) { c.all_to_all(send, recv, bytes, s, note); }, of_);
    }
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, host_stream s, collective_note note = {}) {
        std::visit([&](auto& c) { c.all_to_all(send, send_bytes, recv, recv_bytes, s, note); }, of_);
    }
    void agree(std::uint64_t digest, const char* what, host_stream s) {
        std::visit([&](auto& c) { c.agree(digest, what, s); }, of_);
    }
    void check() {
        std::visit([](auto& c) { c.check(); }, of_);
    }
    void wait(host_stream s) {
        std::visit([&](auto& c) { c.wait(s); }, of_);
    }
    std::uint64_t bytes_sent() const {
        return std::visit([](const auto& c) { return c.bytes_sent(); }, of_);
    }
    check_level checks() const {
        return std::visit([](const auto& c) { return c.checks(); }, of_);
    }
    std::optional<process_communicator> split(int color, int key) {
        return std::visit(
            [&](auto& c) -> std::optional<process_communicator> {
                auto part = c.split(color, key);
                if (!part) return std::nullopt;
                return process_communicator(std::move(*part));
            },
            of_);
    }

private:
    std::variant<local_communicator, mpi_communicator> of_;
};

static_assert(communicator<process_communicator>);

// How often the suites ran over processes; said at the end by main().
struct process_runs {
    std::uint64_t deployments = 0;
    std::uint64_t values = 0; // of outputs and LSEs, of all ranks
};
inline process_runs& runs_over_processes() {
    static process_runs runs;
    return runs;
}

struct mpi_ranks {
    using backend = cpu_backend;
    using communicator = process_communicator;
    using stream_type = host_stream;
    static constexpr std::uint64_t share = 1;
    static constexpr std::uint64_t prefill_share = 4; // many processes on few cores

    struct stream {
        host_stream get() const { return {}; }
    };

    static int processes() {
        int count = 0;
        MPI_Comm_size(MPI_COMM_WORLD, &count);
        return count;
    }
    static int own_process() {
        int rank = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return rank;
    }

    // Of the deployments of a suite, those that have as many ranks as there are processes.
    static bool takes(std::int64_t ranks) { return ranks == processes(); }

    static auto backends(const deployment& d) {
        return [&d](int) { return cpu_backend({d.threads, d.instructions}); };
    }

    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        if (is_in_one_process()) {
            local_options options;
            options.checks = d.checks;
            run_local_ranks(static_cast<int>(d.world()), options, [&](local_communicator& world) {
                process_communicator mine(std::move(world));
                fn(mine);
            });
            return;
        }
        require(takes(d.world()), "ranks", "a deployment of ", d.world(), " ranks was given to ", processes(),
                " processes");
        mpi_options options;
        options.checks = d.checks;
        process_communicator mine{mpi_communicator(MPI_COMM_WORLD, options)};
        fn(mine);
    }

    // Runs `runs` over processes, then over threads, and says whether same(first, second).
    template <class Runs, class Same>
    static auto twice(const Runs& runs, const Same& same) {
        auto over_processes = runs();
        is_in_one_process() = true;
        const auto over_threads = runs();
        is_in_one_process() = false;
        const bool are_same = same(over_processes, over_threads);
        return std::pair{std::move(over_processes), are_same};
    }

    static std::optional<process_communicator> split(process_communicator& world, int color, int key) {
        return world.split(color, key);
    }

    static void finish(host_stream) {}

    // Gives every process what the process of each rank has in per_rank[rank].
    template <class T, class Visit>
    static void exchange_results(std::vector<T>& per_rank, const Visit& visit) {
        if (is_in_one_process()) return;
        for (int rank = 0; rank < static_cast<int>(per_rank.size()); ++rank)
            visit(per_rank[static_cast<std::size_t>(rank)], [rank](auto& value) { send_from(rank, value); });
    }
    static void count_run(std::uint64_t values) {
        if (is_in_one_process()) return;
        ++runs_over_processes().deployments;
        runs_over_processes().values += values;
    }

private:
    static bool& is_in_one_process() {
        static bool is = false;
        return is;
    }

    static void send_from(int rank, std::vector<float>& values) {
        std::uint64_t count = values.size();
        send_from(rank, count);
        values.resize(count);
        broadcast(rank, values.data(), count * sizeof(float));
    }
    static void send_from(int rank, std::string& text) {
        std::uint64_t count = text.size();
        send_from(rank, count);
        text.resize(count);
        broadcast(rank, text.data(), count);
    }
    // Numbers alone: text that a value points to is another process's.
    template <class T>
    static void send_from(int rank, T& value) requires std::is_arithmetic_v<T> {
        broadcast(rank, &value, sizeof value);
    }
    // Processes may outnumber cores, and not every MPI yields where it waits itself.
    static void broadcast(int rank, void* from, std::size_t bytes) {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Ibcast(from, static_cast<int>(bytes), MPI_BYTE, rank, MPI_COMM_WORLD, &request);
        for (int is_done = 0; is_done == 0; MPI_Test(&request, &is_done, MPI_STATUS_IGNORE)) std::this_thread::yield();
    }
};

} // namespace ctxpar_test
