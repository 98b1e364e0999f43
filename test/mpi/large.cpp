// One call that moves more than 2^31 bytes from one MPI process to another, in messages of the usual size and in the
// largest that MPI can count.
//
// For two ranks. Rank 0 sends the bytes and gets a few: with the buffers of the communicators that is 9 GiB in all.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <ctxpar/comm/mpi.hpp>

using namespace ctxpar;

namespace {

constexpr std::size_t large = (std::size_t(1) << 31) + (std::size_t(1) << 27) + 5;
constexpr std::size_t small = 77;
constexpr double needed_gib = 11;

double available_gib() {
    std::ifstream file("/proc/meminfo");
    double kib = 0;
    for (std::string name, rest; file >> name >> kib && name != "MemAvailable:";) std::getline(file, rest);
    return kib / (1 << 20);
}
double peak_gib() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_maxrss) / (1 << 20);
}

// Bytes of a sender: every eight are a number that is found nowhere else.
std::uint64_t number_at(std::size_t i, int sender) {
    return (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(sender);
}
std::vector<std::byte> sent_bytes(std::size_t count, int sender) {
    std::vector<std::byte> bytes(count);
    for (std::size_t at = 0; at < count; at += 8) {
        const std::uint64_t number = number_at(at / 8, sender);
        std::memcpy(bytes.data() + at, &number, std::min<std::size_t>(8, count - at));
    }
    return bytes;
}
bool is_sent(const std::vector<std::byte>& bytes, int sender) {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
        const std::uint64_t number = number_at(at / 8, sender);
        if (std::memcmp(bytes.data() + at, &number, std::min<std::size_t>(8, bytes.size() - at)) != 0) return false;
    }
    return true;
}

bool run(std::size_t message_bytes) {
    mpi_communicator comm(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(120), .message_bytes = message_bytes});
    const int rank = comm.rank(), other = 1 - rank;
    const std::vector<std::byte> sent = sent_bytes(rank == 0 ? large : small, rank);
    std::vector<std::byte> received(rank == 0 ? small : large);
    std::size_t send_bytes[2] = {}, recv_bytes[2] = {};
    send_bytes[other] = sent.size();
    recv_bytes[other] = received.size();
    comm.agree(1, "that the bytes are made", {});
    const auto start = std::chrono::steady_clock::now();
    comm.all_to_all(sent.data(), send_bytes, received.data(), recv_bytes, {});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const bool is_right = is_sent(received, other) && comm.bytes_sent() == sent.size();
    std::printf(
        "rank %d: sent %zu bytes and received %zu, in messages of up to %zu, in %.1f s, %s; peak memory %.2f GiB\n",
        rank, sent.size(), received.size(), message_bytes, took.count(), is_right ? "right" : "WRONG", peak_gib());
    comm.agree(is_right ? 1 : 2, "that the bytes are right", {});
    return is_right;
}

} // namespace

int main(int argc, char** argv) {
    int provided = 0, size = 0, rank = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (size != 2) std::_Exit(2);
    double gib = available_gib();
    MPI_Bcast(&gib, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD); // one opinion
    bool is_right = true;
    if (gib < needed_gib) {
        if (rank == 0) std::printf("skipped: %.1f GiB of memory are free, %.1f are needed\n", gib, needed_gib);
    } else {
        try {
            is_right = run(mpi_options{}.message_bytes) && run(std::numeric_limits<int>::max());
        } catch (const std::exception& problem) {
            std::fprintf(stderr, "%s\n", problem.what());
            std::_Exit(1);
        }
    }
    MPI_Finalize();
    return is_right ? 0 : 1;
}
