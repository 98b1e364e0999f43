// What ranks that are threads get to know when one of them fails: every rank, at once or in bounded time, by name.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ctxpar/comm/local.hpp>

#include "local_outcomes.hpp"

using namespace ctxpar_test;
using namespace std::chrono_literals;

TEST_CASE("a rank that throws releases its peers at once: before, between, inside collectives and while they wait") {
    for (const int num_before : {0, 1, 3})
        for (const bool peers_wait : {false, true})
            for (const bool inside : {false, true}) {
                const auto all = outcomes(3, {}, [&](local_communicator& comm) {
                    for (int i = 0; i < num_before; ++i) gather(comm, 100);
                    if (comm.rank() == 1) {
                        if (peers_wait) std::this_thread::sleep_for(20ms);
                        if (inside) comm.all_gather(nullptr, nullptr, 100, {});
                        throw std::runtime_error("out of luck");
                    }
                    if (!peers_wait) std::this_thread::sleep_for(20ms);
                    gather(comm, 100);
                });
                CHECK(codes(all) == strings{"left", inside ? "null" : "std", "left"});
                CHECK(prompt(all));
                CHECK(all[0].failure.peer == 1);
                CHECK(all[0].failure.rank == 0);
                CHECK(all[2].failure.rank == 2);
                CHECK(all[2].failure.operation == "all_gather of queries");
                CHECK(contains(all[2].message, "rank 2 in all_gather of queries: rank 1 left"));
                CHECK(all[0].failure.waited_ms <= all[0].ms);
            }
}

TEST_CASE("ranks that leave in order report nothing, whoever is first") {
    for (const int slow : {0, 1, 2}) {
        const auto all = outcomes(3, {}, [&](local_communicator& comm) {
            comm.publish("x", 1, {});
            comm.release({});
            gather(comm, 10);
            if (comm.rank() != slow) return;
            std::this_thread::sleep_for(20ms);
            comm.check();
            comm.wait({});
        });
        CHECK(codes(all) == strings{"", "", ""});
    }
}

TEST_CASE("a rank that leaves early is named by those that call one collective more") {
    for (const bool peers_wait : {false, true}) {
        const auto all = outcomes(5, {}, [&](local_communicator& comm) {
            gather(comm, 10);
            if (peers_wait == (comm.rank() == 3)) std::this_thread::sleep_for(20ms);
            if (comm.rank() != 3) exchange(comm, 512);
        });
        CHECK(codes(all) == strings{"left", "left", "left", "", "left"});
        CHECK(prompt(all));
        for (const std::size_t r : {0, 1, 2, 4}) {
            CHECK(all[r].failure.peer == 3);
            CHECK(contains(all[r].message, "rank 3 left"));
            CHECK(contains(all[r].message, "called all_to_all of partials (512 bytes, f32)"));
        }
    }
}

TEST_CASE("a wait ends at the timeout and names who is missing, the operation and the time") {
    const auto all = outcomes(4, {.timeout = 200ms}, [](local_communicator& comm) {
        gather(comm, 10);
        if (comm.rank() == 0 || comm.rank() == 2) exchange(comm, 512);
        std::this_thread::sleep_for(600ms);
        comm.check();
    });
    CHECK(codes(all) == strings(4, "timeout"));
    for (const std::size_t r : {0, 2}) {
        CHECK(all[r].ms >= 200 - 1);
        CHECK(all[r].ms < 5000);
        CHECK(all[r].failure.waited_ms < 5000);
        CHECK(all[r].failure.operation == "all_to_all of partials");
        CHECK(contains(all[r].message, "ranks 1, 3 had not arrived when rank "));
        CHECK(contains(all[r].message, "ranks 0, 2 called all_to_all of partials (512 bytes, f32)"));
        CHECK(all[r].failure.peer == 1);
    }
    CHECK((all[0].failure.waited_ms >= 200 || all[2].failure.waited_ms >= 200));
}

TEST_CASE("a rank that comes too late is told of the timeout at once") {
    const auto all = outcomes(2, {.timeout = 50ms}, [](local_communicator& comm) {
        if (comm.rank() == 1) std::this_thread::sleep_for(300ms);
        gather(comm, 10);
        CHECK(false); // not reached
    });
    CHECK(codes(all) == strings{"timeout", "timeout"});
    CHECK(all[0].ms < 5000);
    CHECK(all[1].failure.waited_ms < 50);
}

TEST_CASE("after a failure every call throws at once: first what happened, then that the communicator is dead") {
    const auto all = outcomes(3, {}, [](local_communicator& comm) {
        char memory[24] = {};
        const std::array<std::size_t, 3> sizes{1, 1, 1};
        if (comm.rank() == 0) comm.fail("no more memory");
        if (comm.rank() != 0) CHECK(code_of([&] { gather(comm, 4); }) == "peer_error");
        for (int i = 0; i < 2; ++i) {
            CHECK(code_of([&] { comm.check(); }) == "peer_error");
            CHECK(code_of([&] { gather(comm, 4); }) == "dead");
            CHECK(code_of([&] { exchange(comm, 4); }) == "dead");
            CHECK(code_of([&] { comm.all_to_all(memory, sizes, memory + 8, sizes, {}); }) == "dead");
            CHECK(code_of([&] { comm.agree(1, "plan", {}); }) == "dead");
            CHECK(code_of([&] { comm.publish(memory, 1, {}); }) == "dead");
            CHECK(code_of([&] { comm.split(0, 0); }) == "dead");
            CHECK(code_of([&] { comm.wait({}); }) == "dead");
        }
        comm.fail("a second failure, which changes nothing");
        CHECK(comm.bytes_sent() == 0);
        gather(comm, 4);
    });
    CHECK(codes(all) == strings(3, "dead"));
    CHECK(prompt(all));
    for (const outcome& one : all) {
        CHECK(contains(one.message, "dead since the failure \"peer_error\": rank 0 failed: no more memory"));
        CHECK(one.failure.peer == 0);
        CHECK(one.failure.got == "no more memory");
    }
    const auto off = outcomes(2, {.checks = check_level::off}, [](local_communicator& comm) {
        if (comm.rank() == 0) comm.fail("x");
        if (comm.rank() == 1) CHECK(code_of([&] { gather(comm, 4); }) == "peer_error");
        comm.agree(1, "plan", {});
    });
    CHECK(codes(off) == strings{"dead", "dead"});
}

TEST_CASE("a failure that a rank reports reaches peers that wait") {
    const auto all = outcomes(3, {}, [](local_communicator& comm) {
        if (comm.rank() == 1) {
            std::this_thread::sleep_for(20ms);
            comm.fail("disk on fire");
            std::this_thread::sleep_for(200ms); // it has not left
            return;
        }
        gather(comm, 10);
    });
    CHECK(codes(all) == strings{"peer_error", "", "peer_error"});
    CHECK(contains(all[0].message, "rank 1 failed: disk on fire"));
    CHECK(prompt(all));
}

TEST_CASE("destroying a communicator never blocks: while others wait, after failures, with memory published") {
    const auto all = outcomes(3, {}, [](local_communicator& comm) {
        comm.publish("x", 1, {});
        if (comm.rank() == 0) {
            std::this_thread::sleep_for(20ms); // the others wait in release
            const clock::time_point start = clock::now();
            local_communicator(std::move(comm));
            CHECK(ms_since(start) < 5000);
            return;
        }
        comm.release({});
    });
    CHECK(codes(all) == strings{"", "left", "left"});
    CHECK(contains(all[1].message, "rank 0 left"));
    CHECK(prompt(all));

    const auto idle = outcomes(3, {}, [](local_communicator& comm) { // nobody waits when rank 0 leaves
        comm.publish("x", 1, {});
        if (comm.rank() == 0) return;
        std::this_thread::sleep_for(50ms);
        comm.check();
    });
    CHECK(codes(idle) == strings{"", "left", "left"});
    CHECK(contains(idle[1].message, "rank 0 left without a release"));
}

TEST_CASE("a rank whose call throws keeps its published memory until nobody reads it") {
    for (const bool in_release : {false, true}) {
        std::atomic<bool> published = false, reading = false, read_all = false, too_early = false;
        const auto all = outcomes(3, {}, [&](local_communicator& comm) {
            auto shown = std::make_unique<std::vector<char>>(1000, static_cast<char>(comm.rank() + 1));
            const std::span<const void* const> pointers = comm.publish(shown->data(), 1000, {});
            if (comm.rank() == 0) { // the owner
                published = true;
                try {
                    if (in_release) comm.release({});
                    if (!in_release) gather(comm, 10);
                } catch (const comm_error&) {
                    too_early = !read_all;
                    shown.reset();
                    throw;
                }
            }
            if (comm.rank() == 1) { // the reader
                reading = true;
                std::this_thread::sleep_for(100ms);
                CHECK(static_cast<const char*>(pointers[0])[999] == 1);
                read_all = true;
                comm.release({});
            }
            if (comm.rank() == 2) { // fails while the owner waits and the reader reads
                while (!published || !reading) std::this_thread::sleep_for(1ms);
                std::this_thread::sleep_for(10ms);
                comm.fail("gone");
            }
        });
        CHECK(codes(all) == strings{"peer_error", "peer_error", ""});
        CHECK(read_all);
        CHECK_FALSE(too_early);
        CHECK(prompt(all));
    }
}

TEST_CASE("a rank does not wait for a reader beyond the timeout") {
    std::atomic<bool> done = false;
    const auto all = outcomes(2, {.timeout = 200ms}, [&](local_communicator& comm) {
        static const char forever[] = "static";
        comm.publish(forever, 1, {});
        if (comm.rank() == 1) { // reads for a long time
            while (!done) std::this_thread::sleep_for(1ms);
            return;
        }
        const clock::time_point start = clock::now();
        CHECK(code_of([&] { comm.release({}); }) == "timeout");
        CHECK(ms_since(start) >= 199);
        CHECK(code_of([&] { gather(comm, 1); }) == "dead");
        CHECK(ms_since(start) < 5000);
        done = true;
    });
    CHECK(codes(all) == strings{"", ""});
}

TEST_CASE("a rank that unwinds leaves its groups too: peers that wait in any of them are released") {
    const auto all = outcomes(4, {}, [](local_communicator& comm) {
        std::optional<local_communicator> group = comm.split(comm.rank() < 2 ? 0 : 1, 0);
        if (comm.rank() == 1) throw std::runtime_error("gone");
        if (comm.rank() == 0) gather(*group, 10);
        if (comm.rank() != 0) gather(*group, 10);
        gather(comm, 10);
    });
    CHECK(codes(all) == strings{"left", "std", "left", "left"});
    CHECK(all[0].failure.rank == 0); // in the group of two
    CHECK(all[0].failure.peer == 1);
    CHECK(contains(all[2].message, "left"));
    CHECK(prompt(all));
}

TEST_CASE("a failed group leaves the others alone") {
    const auto all = outcomes(4, {}, [](local_communicator& comm) {
        std::optional<local_communicator> group = comm.split(comm.rank() % 2, 0);
        if (comm.rank() % 2 == 0) CHECK(code_of([&] { gather(*group, comm.rank() == 0 ? 1 : 2); }) == "mismatch");
        if (comm.rank() % 2 == 1) gather(*group, 10);
        gather(comm, 10);
    });
    CHECK(codes(all) == strings(4, ""));
}

TEST_CASE("a collective takes place on every rank or on none, and no rank reads memory that was freed") {
    struct rank_fault {};
    constexpr int num_ranks = 4;
    for (unsigned seed = 0; seed < 150; ++seed) {
        std::array<int, num_ranks> num_done{};
        std::atomic<int> num_wrong = 0;
        const unsigned culprit = seed % num_ranks, kind = seed / num_ranks % 5;
        const auto all = outcomes(num_ranks, {.timeout = 3ms}, [&](local_communicator& comm) {
            std::mt19937 shared(seed), own(seed * 8 + static_cast<unsigned>(comm.rank()));
            for (int i = 0; i < 40; ++i) {
                const std::size_t bytes = shared() % 2 == 0 ? shared() % 200 : 30000 + shared() % 20000;
                const unsigned fault_at = shared() % 20;
                if (own() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(2500 + own() % 1000));
                if (static_cast<unsigned>(comm.rank()) == culprit && fault_at == 0) {
                    if (kind == 0) throw std::runtime_error("thrown");
                    if (kind == 1) return;
                    if (kind == 2) comm.fail("told");
                    if (kind == 3) exchange(comm, bytes);
                }
                const char mark = static_cast<char>(i + comm.rank());
                const auto send = std::make_unique<std::vector<char>>(bytes + 1, mark);
                std::vector<char> recv(bytes * num_ranks + num_ranks);
                comm.all_gather(send->data(), recv.data(), bytes + 1, {});
                ++num_done[static_cast<std::size_t>(comm.rank())];
                for (std::size_t at = 0; at < recv.size(); ++at)
                    if (recv[at] != static_cast<char>(i + static_cast<int>(at / (bytes + 1)))) ++num_wrong;
            }
        });
        CAPTURE(seed);
        CHECK(num_wrong == 0);
        for (const int count : num_done) CHECK(count == num_done[0]);
        CHECK(prompt(all));
    }
}

TEST_CASE("running ranks throws the first exception that has a cause of its own") {
    std::array<std::string, 3> seen;
    const auto run = [&](auto fault) {
        run_local_ranks(3, {}, [&](local_communicator& comm) {
            gather(comm, 10);
            if (comm.rank() == 1) fault(comm);
            try {
                gather(comm, 10);
            } catch (const comm_error& problem) {
                seen[static_cast<std::size_t>(comm.rank())] = problem.what();
                throw;
            }
        });
    };
    CHECK_THROWS_WITH_AS(run([](local_communicator&) { throw std::logic_error("bad idea"); }), "bad idea",
                         std::logic_error);
    CHECK(contains(seen[0], "rank 1 failed: bad idea"));
    CHECK(contains(seen[2], "rank 1 failed: bad idea"));
    CHECK_THROWS_AS(run([](local_communicator&) { throw 42; }), int);
    CHECK(contains(seen[0], "rank 1 failed: an exception that is no std::exception"));
    CHECK_THROWS_AS(run([](local_communicator& comm) { comm.all_gather(nullptr, nullptr, 1, {}); }), config_error);
    CHECK_THROWS_WITH_AS(run([](local_communicator& comm) { gather(comm, 11); }),
                         doctest::Contains("ranks 0, 2 called all_gather of queries (10 bytes, bf16), rank 1 called "
                                           "all_gather of queries (11 bytes, bf16)"),
                         comm_error);
    CHECK_THROWS_WITH_AS(run([](local_communicator& comm) { local_communicator gone(std::move(comm)); }),
                         doctest::Contains("moved"), config_error);
}

TEST_CASE("an exception with a cause of its own goes before earlier consequences") {
    std::atomic<bool> other_ended = false;
    const auto work = [&](local_communicator& comm) {
        if (comm.rank() == 0) {
            CHECK(code_of([&] { gather(comm, 10); }) == "peer_error");
            other_ended = true;
            gather(comm, 10);
        }
        comm.fail("told before it is thrown");
        while (!other_ended) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(50ms);
        throw std::logic_error("the cause");
    };
    CHECK_THROWS_WITH_AS(run_local_ranks(2, {}, work), "the cause", std::logic_error);
}
