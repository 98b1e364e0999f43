#include "processes.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>

namespace demo {
namespace {

constexpr int speaker = 0;
constexpr int wrong = 1;
constexpr int refused = 2;

void await(MPI_Request request) {
    for (int done = 0;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done != 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void say(const processes& own, const char* sentence) {
    fmt::print(stderr, "{}: {}\n", own.program(), sentence);
    std::fflush(nullptr);
}

[[noreturn]] void end_all(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::_Exit(status);
}

// Ranks are refused alike, as a rule, and then one says so. Where one is refused alone, it says so itself, and its
// peers learn that it left.
int after_refusal(const processes& own, const char* sentence) {
    const bool all_here = own.meet(own.has_communicated() ? std::chrono::seconds(2) : std::chrono::seconds(30));
    if (own.speaks() || !all_here) say(own, sentence);
    if (all_here && !own.has_communicated()) return refused;
    (void)own.meet(std::chrono::seconds(2)); // by then it is printed
    end_all(refused);
}

[[noreturn]] void after_failure(const processes& own, const char* sentence) {
    say(own, sentence);
    std::this_thread::sleep_for(std::chrono::seconds(1)); // others have something to say too
    end_all(wrong);
}

} // namespace

processes::processes(std::string program) : program_(std::move(program)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

void processes::require_ranks(std::int64_t ranks) const {
    ctxpar::require(ranks == size_, "ranks", "this run has ", ranks, ranks == 1 ? " rank" : " ranks",
                    ", and MPI started ", size_, size_ == 1 ? " process" : " processes", "; start it with mpirun -n ",
                    ranks);
}

int processes::on_this_host() const {
    MPI_Comm host = MPI_COMM_NULL;
    int here = 1;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &here);
    MPI_Comm_free(&host);
    return here;
}

// Whether there is nothing to tell.
bool processes::tell(std::string& code, std::string& text) const {
    std::array<std::size_t, 2> sizes{code.size(), text.size()};
    spread(sizes);
    code.resize(sizes[0]);
    text.resize(sizes[1]);
    spread_bytes(code.data(), sizes[0]);
    spread_bytes(text.data(), sizes[1]);
    return code.empty();
}

void processes::spread_bytes(void* value, std::size_t bytes) const {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(value, static_cast<int>(bytes), MPI_BYTE, speaker, MPI_COMM_WORLD, &request);
    await(request);
}

void processes::gather_bytes(const void* own, void* all, std::size_t bytes) const {
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = static_cast<int>(bytes);
    MPI_Igather(own, count, MPI_BYTE, all, count, MPI_BYTE, speaker, MPI_COMM_WORLD, &request);
    await(request);
}

// From that process to the one that speaks.
void processes::pass_bytes(void* bytes, std::size_t count, int from) const {
    constexpr std::size_t most = std::size_t{1} << 30; // MPI counts by int
    auto* at = static_cast<std::byte*>(bytes);
    for (std::size_t left = count; left > 0;) {
        const std::size_t piece = std::min(left, most);
        MPI_Request request = MPI_REQUEST_NULL;
        if (rank_ == from) {
            MPI_Isend(at, static_cast<int>(piece), MPI_BYTE, speaker, 0, MPI_COMM_WORLD, &request);
        } else {
            MPI_Irecv(at, static_cast<int>(piece), MPI_BYTE, from, 0, MPI_COMM_WORLD, &request);
        }
        await(request);
        at += piece;
        left -= piece;
    }
}

void processes::print_memory() const {
    rusage own{};
    getrusage(RUSAGE_SELF, &own);
    const std::vector<std::int64_t> peaks = gathered(std::int64_t{own.ru_maxrss} / 1024);
    if (!speaks()) return;
    fmt::print("  peak resident memory of each process, MiB:");
    for (const std::int64_t peak : peaks) fmt::print(" {}", peak);
    fmt::print("\n");
    std::fflush(stdout);
}

bool processes::meet(std::chrono::milliseconds timeout) const {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    const auto start = std::chrono::steady_clock::now();
    for (int done = 0; done == 0;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done != 0) break;
        if (std::chrono::steady_clock::now() - start >= timeout) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

int run_processes(const std::string& program, const std::function<int(processes&)>& work) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    int status = refused;
    {
        processes own(program);
        try {
            status = work(own);
            own.spread(status);
        } catch (const ctxpar::config_error& problem) {
            status = after_refusal(own, problem.what());
        } catch (const std::bad_alloc&) {
            after_failure(own, "there is too little memory");
        } catch (const std::exception& problem) {
            after_failure(own, problem.what());
        }
    }
    MPI_Finalize();
    return status;
}

} // namespace demo
