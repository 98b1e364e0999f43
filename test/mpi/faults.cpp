// One fault in one rank of a group of MPI processes: what the others learn, and when. Run by faults.py.
//
//   faults SCENARIO TIMEOUT_MS FOLDER
//
// Each rank that survives writes "CODE MILLISECONDS TEXT" to FOLDER/report.RANK, and its process number to FOLDER/
// process.RANK before. It ends without MPI_Finalize, as a program must after an error. A rank that learns nothing
// writes the code "none".
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ctxpar/comm/mpi.hpp>
#include <ctxpar/ctxpar.hpp>

using namespace ctxpar;

namespace {

using clock_type = std::chrono::steady_clock;

constexpr int victim = 1;
int own_rank = 0;
std::chrono::milliseconds timeout{500};

std::string folder;

// Whole, or not at all: a reader does not see half of it.
void write_file(const char* name, const std::string& text) {
    const std::string path = folder + "/" + name + "." + std::to_string(own_rank);
    std::ofstream(path + ".part") << text;
    std::rename((path + ".part").c_str(), path.c_str());
}

[[noreturn]] void report(const char* code, const std::string& text, clock_type::time_point start) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(clock_type::now() - start).count();
    write_file("report", code + (" " + std::to_string(waited)) + " " + text);
    std::_Exit(0);
}

// What the rank learns from these calls.
template <class Fn>
void learn(const Fn& fn) {
    const clock_type::time_point start = clock_type::now();
    try {
        fn();
    } catch (const comm_error& problem) {
        report(problem.code().c_str(), problem.what(), start);
    } catch (const config_error& problem) {
        report(problem.code().c_str(), problem.what(), start);
    }
}

[[noreturn]] void die() {
    std::raise(SIGKILL);
    std::abort();
}
void die_in(std::chrono::microseconds delay) {
    std::thread([delay] {
        std::this_thread::sleep_for(delay);
        die();
    }).detach();
}

void gather(mpi_communicator& comm, std::size_t bytes, collective_note note = {"queries", scalar_type::bf16, 1}) {
    std::vector<std::byte> send(bytes), recv(bytes * static_cast<std::size_t>(comm.size()));
    comm.all_gather(send.data(), recv.data(), bytes, {}, note);
}

void steps(mpi_communicator& comm, int count, std::size_t bytes = 1000) {
    for (int i = 0; i < count; ++i) gather(comm, bytes);
}

// The part of rank 0 to the others has `first` bytes.
void exchange(mpi_communicator& comm, std::size_t first) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(comm.size()), 20'000'000);
    sizes[0] = first;
    std::vector<std::byte> send(20'000'001 * sizes.size()), recv(send.size());
    comm.all_to_all(send.data(), sizes, recv.data(), sizes, {});
}

// Steps of a decoder, on ranks that may not be made alike; one request of up to 100 tokens.
template <std::int64_t Interleave, class Merge>
void decode_steps(mpi_communicator& comm, std::int64_t heads_of_rank = 4, std::int64_t refused_step = -1) {
    const std::int64_t n = comm.size();
    decode_shape shape{.sizes = {.tp = n, .dcp = n}, .q_heads = heads_of_rank * n, .kv_heads = 1};
    shape.longest = 128;
    decoder<policy<gqa<bf16, 64>, interleave<Interleave>, Merge>, cpu_backend, mpi_communicator> decoder{{&comm},
                                                                                                         shape};
    const host_workspace memory{decoder.workspace_bytes()};
    std::vector<bf16> pool(2 * 8 * 16 * 64), new_kv(2 * 64);
    std::vector<bf16> q(static_cast<std::size_t>(heads_of_rank) * 64), out(q.size());
    const std::vector<std::int32_t> block_ids{0, 1, 2, 3, 4, 5, 6, 7};
    const auto cache = stacked_kv(pool.data(), 8, 16, 1, 64, 64);
    for (std::int64_t length = 1; length <= 100; ++length) {
        decode_batch batch{.requests = 1, .lengths = index_of(&length), .table = table_2d(block_ids.data(), 1, 8, 16)};
        const decode_step step = decoder.plan(batch, memory, {});
        decoder.append(step, dense_view<const bf16>(new_kv.data(), 1, 1, 64),
                       dense_view<const bf16>(new_kv.data() + 64, 1, 1, 64), cache, {});
        const std::int64_t rows = length == refused_step ? 2 : 1;
        decoder.decode(step, dense_view<const bf16>(q.data(), rows, heads_of_rank, 64), cache,
                       dense_view(out.data(), 1, heads_of_rank, 64), {}, {});
    }
}

// Until a call fails, or for a minute.
template <class Fn>
void go_on_with(const Fn& fn) {
    const clock_type::time_point end = clock_type::now() + std::chrono::minutes(1);
    learn([&] {
        while (clock_type::now() < end) fn();
    });
}

struct scenario {
    std::function<void(mpi_communicator&)> of_victim;
    std::function<void(mpi_communicator&)> of_others;
    check_level checks = check_level::basic;
};

// What ranks do while two_hosts.py loses the link between them.
const std::map<std::string, scenario>& scenarios_of_hosts() {
    static const auto decodes = [](mpi_communicator& comm) { go_on_with([&] { decode_steps<16, merge::a2a>(comm); }); };
    static const auto gathers = [](mpi_communicator& comm) { go_on_with([&] { gather(comm, 5'000'000); }); };
    static const std::map<std::string, scenario> all = {{"link_is_lost_in_decode", {decodes, decodes}},
                                                        {"link_is_lost_in_large_calls", {gathers, gathers}}};
    return all;
}

const std::map<std::string, scenario>& scenarios() {
    static const auto go_on = [](mpi_communicator& comm) { learn([&] { steps(comm, 1000); }); };
    static const auto go_on_large = [](mpi_communicator& comm) { learn([&] { steps(comm, 1000, 20'000'000); }); };
    static const auto late = [](mpi_communicator& comm) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        learn([&] { steps(comm, 1000); });
    };
    static const auto decodes = [](mpi_communicator& comm) { learn([&] { decode_steps<16, merge::a2a>(comm); }); };
    static const auto makes_another = [](mpi_communicator& comm) {
        steps(comm, 20);
        learn([] { const mpi_communicator second(MPI_COMM_WORLD, {.timeout = timeout}); });
    };
    static const std::map<std::string, scenario> all = {
        {"killed_before_any", {[](mpi_communicator&) { die(); }, go_on}},
        {"killed_between",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              die();
          },
          go_on}},
        {"killed_inside",
         {[](mpi_communicator& comm) {
              die_in(std::chrono::milliseconds(50)); // while it waits for those who are late
              gather(comm, 1000);
          },
          late}},
        {"killed_while_it_sends",
         {[](mpi_communicator& comm) {
              die_in(std::chrono::milliseconds(30));
              steps(comm, 1000, 20'000'000);
          },
          go_on_large}},
        {"stopped",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              std::raise(SIGSTOP);
          },
          go_on}},
        {"exits",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              std::_Exit(0);
          },
          go_on}},
        {"throws",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              throw std::runtime_error("a fault of the engine");
          },
          go_on}},
        {"refused",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              comm.all_gather(nullptr, nullptr, 1000, {});
          },
          go_on}},
        {"calls_another_operation",
         {[](mpi_communicator& comm) {
              learn([&] {
                  std::vector<std::byte> send(4000), recv(4000);
                  comm.all_to_all(send.data(), recv.data(), 1000, {});
              });
          },
          go_on}},
        {"calls_with_more_bytes", {[](mpi_communicator& comm) { learn([&] { gather(comm, 100'000); }); }, go_on}},
        {"calls_with_fewer_bytes", {[](mpi_communicator& comm) { learn([&] { gather(comm, 1000); }); }, go_on_large}},
        {"calls_with_another_type",
         {[](mpi_communicator& comm) { learn([&] {
                                           gather(comm, 1000, {"queries", scalar_type::f16, 1});
                                       }); }, go_on,
          check_level::collective}},
        {"calls_for_another_plan",
         {[](mpi_communicator& comm) { learn([&] {
                                           gather(comm, 1000, {"queries", scalar_type::bf16, 2});
                                       }); }, go_on,
          check_level::collective}},
        {"sends_other_sizes",
         {[](mpi_communicator& comm) {
              learn([&] {
                  std::vector<std::size_t> sizes(static_cast<std::size_t>(comm.size()), 10);
                  sizes[0] = 11;
                  std::vector<std::byte> send(1000), recv(1000);
                  comm.all_to_all(send.data(), sizes, recv.data(), sizes, {});
                  steps(comm, 1);
              });
          },
          [](mpi_communicator& comm) {
              learn([&] {
                  const std::vector<std::size_t> sizes(static_cast<std::size_t>(comm.size()), 10);
                  std::vector<std::byte> send(1000), recv(1000);
                  comm.all_to_all(send.data(), sizes, recv.data(), sizes, {});
                  steps(comm, 1);
              });
          }}},
        {"sends_other_sizes_of_large_data",
         {[](mpi_communicator& comm) { learn([&] { exchange(comm, 20'000'001); }); },
          [](mpi_communicator& comm) { learn([&] { exchange(comm, 20'000'000); }); }}},
        {"comes_when_others_have_left",
         {[](mpi_communicator& comm) {
              std::this_thread::sleep_for(2 * timeout);
              go_on_large(comm);
          },
          go_on_large}},
        {"leaves_early",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              { const mpi_communicator gone = std::move(comm); }
              std::this_thread::sleep_for(2 * timeout);
              std::_Exit(0);
          },
          go_on}},
        {"decodes_with_another_interleave",
         {[](mpi_communicator& comm) { learn([&] { decode_steps<4, merge::a2a>(comm); }); }, decodes}},
        {"decodes_with_another_merge",
         {[](mpi_communicator& comm) { learn([&] { decode_steps<16, merge::ag_rs>(comm); }); }, decodes}},
        {"decodes_with_other_heads",
         {[](mpi_communicator& comm) { learn([&] { decode_steps<16, merge::a2a>(comm, 8); }); }, decodes}},
        {"decode_is_refused", {[](mpi_communicator& comm) { decode_steps<16, merge::a2a>(comm, 4, 30); }, decodes}},
        {"never_comes",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              std::this_thread::sleep_for(3 * timeout);
              std::_Exit(0);
          },
          makes_another}},
        {"killed_before_construction",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              die();
          },
          makes_another}},
        {"constructs_when_others_have_left",
         {[](mpi_communicator& comm) {
              steps(comm, 20);
              std::this_thread::sleep_for(timeout + timeout / 2);
              learn([] { const mpi_communicator second(MPI_COMM_WORLD, {.timeout = timeout}); });
          },
          makes_another}},
    };
    return all;
}

} // namespace

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "list") == 0) {
        for (const auto& [name, what] : scenarios()) std::printf("%s\n", name.c_str());
        return 0;
    }
    if (argc != 4) return 2;
    const auto& all = scenarios_of_hosts().count(argv[1]) > 0 ? scenarios_of_hosts() : scenarios();
    if (all.count(argv[1]) == 0) return 2;
    const scenario& chosen = all.at(argv[1]);
    timeout = std::chrono::milliseconds(std::atoi(argv[2]));
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    folder = argv[3];
    write_file("process", std::to_string(getpid()));
    const clock_type::time_point start = clock_type::now();
    try {
        mpi_communicator comm(MPI_COMM_WORLD, {.timeout = timeout, .checks = chosen.checks});
        comm.agree(1, "that all are there", {});
        own_rank == victim ? chosen.of_victim(comm) : chosen.of_others(comm);
    } catch (const std::exception& problem) {
        report("thrown", problem.what(), start);
    }
    report("none", "nothing went wrong", start);
}
