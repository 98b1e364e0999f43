// Ranks that are the processes of one MPI program: who prints, how results come to that process, and how all of them
// end. Waiting processes sleep, so that they leave the cores to those that work.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <ctxpar/comm/mpi.hpp>
#include <ctxpar/core/error.hpp>

namespace demo {

// The processes of MPI_COMM_WORLD, one rank each. All calls but those of the first group are made by all processes.
class processes {
public:
    using communicator = ctxpar::mpi_communicator;

    explicit processes(std::string program);

    int rank() const { return rank_; }
    int size() const { return size_; }
    bool speaks() const { return rank_ == 0; } // and compares, and prints
    const std::string& program() const { return program_; }

    // config_error "ranks" unless MPI has started as many processes as the run has ranks.
    void require_ranks(std::int64_t ranks) const;

    // Processes on this host.
    int on_this_host() const;

    // fn() on the process that speaks. Where that is refused by config_error, all processes throw it.
    template <class Fn>
    void first(const Fn& fn) {
        std::string code, text;
        if (speaks()) {
            try {
                fn();
            } catch (const ctxpar::config_error& refusal) {
                code = refusal.code();
                text = refusal.what();
            }
        }
        if (!tell(code, text)) ctxpar::raise(ctxpar::config_error(code, text));
    }

    // fn(communicator) on every process. A rank may wait long for its peers.
    template <class Fn>
    void run(const Fn& fn) {
        if (!world_) world_.emplace(MPI_COMM_WORLD, ctxpar::mpi_options{std::chrono::minutes(30)});
        fn(*world_);
    }

    // Numbers of the process that speaks, on all.
    template <class T>
    void spread(T& value) const {
        static_assert(std::is_trivially_copyable_v<T>);
        spread_bytes(&value, sizeof(T));
    }
    // own of every process, in the process that speaks; elsewhere nothing of use.
    template <class T>
    std::vector<T> gathered(const T& own) const {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<T> all(static_cast<std::size_t>(size_));
        gather_bytes(&own, all.data(), sizeof(T));
        return all;
    }
    // What process `from` has, in the process that speaks, whatever was there.
    template <class T>
    void bring(std::vector<T>& values, int from) const {
        static_assert(std::is_trivially_copyable_v<T>);
        std::size_t size = values.size();
        if (from == 0 || (rank_ != 0 && rank_ != from)) return;
        pass_bytes(&size, sizeof(size), from);
        if (speaks()) values.resize(size);
        pass_bytes(values.data(), size * sizeof(T), from);
    }

    // The process that speaks prints the peak resident memory of each.
    void print_memory() const;

    bool has_communicated() const { return world_.has_value(); }
    // Whether all processes came here in that time. MPI is not left in order otherwise.
    bool meet(std::chrono::milliseconds timeout) const;

private:
    bool tell(std::string& code, std::string& text) const;
    void spread_bytes(void* value, std::size_t bytes) const;
    void gather_bytes(const void* own, void* all, std::size_t bytes) const;
    void pass_bytes(void* bytes, std::size_t count, int from) const;

    std::string program_;
    int rank_ = 0;
    int size_ = 1;
    std::optional<ctxpar::mpi_communicator> world_;
};

// Everything a program does with --comm mpi, on every process: starts MPI, calls work, which returns the exit status of
// the process that speaks, and ends MPI. Returns that status, on all processes. Where ranks refuse (2) or fail (1)
// after they began to communicate it does not return, since MPI_Finalize could wait for ever: the process ends by
// MPI_Abort.
int run_processes(const std::string& program, const std::function<int(processes&)>& work);

} // namespace demo
