// What came of each rank of a world whose ranks are threads, for tests of faults.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <ctxpar/comm/local.hpp>

namespace ctxpar_test {

using namespace ctxpar;

using strings = std::vector<std::string>;
using clock = std::chrono::steady_clock;

inline std::int64_t ms_since(clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - start).count();
}

// What came of one rank's work; `code` is empty where nothing was thrown, "std" for exceptions of others.
struct outcome {
    std::string code;
    std::string message;
    comm_failure failure;
    std::int64_t ms = 0; // until its communicator was destroyed
};

// Runs fn(comm) on each rank; a rank that throws unwinds and so leaves.
template <class Fn>
std::vector<outcome> outcomes(int num_ranks, const local_options& options, Fn fn) {
    local_world world(num_ranks, options);
    std::vector<outcome> all(static_cast<std::size_t>(num_ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < num_ranks; ++r)
        threads.emplace_back([&, r] {
            outcome& own = all[static_cast<std::size_t>(r)];
            const clock::time_point start = clock::now();
            try {
                local_communicator comm = world.rank(r);
                fn(comm);
            } catch (const comm_error& problem) {
                own = {problem.code(), problem.what(), problem.failure()};
            } catch (const error& problem) {
                own = {problem.code(), problem.what(), {}};
            } catch (const std::exception& problem) {
                own = {"std", problem.what(), {}};
            }
            own.ms = ms_since(start);
        });
    for (std::thread& thread : threads) thread.join();
    return all;
}

inline strings codes(const std::vector<outcome>& all) {
    strings list;
    for (const outcome& one : all) list.push_back(one.code);
    return list;
}

// Far below the default timeout of 30 s: nobody waited for it.
inline bool prompt(const std::vector<outcome>& all) {
    for (const outcome& one : all)
        if (one.ms >= 10'000) return false;
    return true;
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

inline void gather(local_communicator& comm, std::size_t bytes, collective_note note = {"queries", scalar_type::bf16}) {
    std::vector<char> send(bytes), recv(bytes * static_cast<std::size_t>(comm.size()));
    comm.all_gather(send.data(), recv.data(), bytes, {}, note);
}

inline void exchange(local_communicator& comm, std::size_t bytes,
                     collective_note note = {"partials", scalar_type::f32}) {
    const std::size_t total = bytes * static_cast<std::size_t>(comm.size());
    std::vector<char> send(total), recv(total);
    comm.all_to_all(send.data(), recv.data(), bytes, {}, note);
}

template <class Fn>
std::string code_of(Fn fn) {
    try {
        fn();
    } catch (const error& problem) {
        return problem.code();
    }
    return "";
}

} // namespace ctxpar_test
