// What ranks that share a process get to know when one of them fails, on its host or on its device: every rank, at once
// in bounded time, by name.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ctxpar/backend/cuda/launch.cuh>

#include "local_cuda_ranks.hpp"

using namespace local_cuda;
using namespace std::chrono_literals;
using ctxpar_test::code_of;

namespace {

// Work of a stream that is not done before `done` is set.
void give_slow_work(cudaStream_t stream, const std::atomic<bool>& done) {
    simt::enqueue(stream, "slow work", [&done] { return done.load(); }, {});
}

void faulty_kernel() {
    simt::raise_fault("the kernel found 42");
}

const local_options checked{.checks = check_level::collective};

} // namespace

TEST_CASE("a rank that throws releases its peers at once: before, between, inside collectives and while they wait") {
    for (const int num_before : {0, 3})
        for (const bool peers_wait : {false, true})
            for (const bool inside : {false, true}) {
                arena memory;
                const simt::device device;
                const auto all = outcomes(3, {}, [&](place& here) {
                    for (int i = 0; i < num_before; ++i) gather(memory, here, 100);
                    if (here.rank() == 1) {
                        if (peers_wait) std::this_thread::sleep_for(20ms);
                        if (inside) here.comm.all_gather(nullptr, nullptr, 100, here.stream);
                        throw std::runtime_error("out of luck");
                    }
                    if (!peers_wait) std::this_thread::sleep_for(20ms);
                    gather(memory, here, 100);
                });
                CHECK(codes(all) == strings{"left", inside ? "null" : "std", "left"});
                CHECK(prompt(all));
                CHECK(all[0].failure.peer == 1);
                CHECK(all[0].failure.rank == 0);
                CHECK(all[2].failure.rank == 2);
                CHECK(all[2].failure.operation == "all_gather of queries");
                CHECK(contains(all[2].message, "rank 2 in all_gather of queries: rank 1 left"));
            }
}

TEST_CASE("ranks that leave in order report nothing, whoever is first, and their work is done") {
    for (const int slow : {0, 1, 2}) {
        arena memory;
        const simt::device device;
        const auto all = outcomes(3, {}, [&](place& here) {
            std::uint8_t* const at = memory.of(here);
            at[0] = static_cast<std::uint8_t>(here.rank() + 1);
            here.comm.publish(at, 1, here.stream);
            here.comm.release(here.stream);
            gather(memory, here, 1);
            if (here.rank() != slow) return;
            std::this_thread::sleep_for(20ms);
            here.comm.check();
            here.comm.wait(here.stream);
            CHECK((at[8000] == 1 && at[8001] == 2 && at[8002] == 3));
        });
        CHECK(codes(all) == strings{"", "", ""});
    }
}

TEST_CASE("calls that differ in operation, bytes, type or digest are refused on every rank, naming both") {
    struct difference {
        const char* code;
        std::string text; // all of it stands in the messages
        void (*call)(arena&, place&);
    };
    const std::vector<difference> differences{
        {"mismatch",
         "ranks 0, 2 called all_gather of queries (64 bytes, bf16), rank 1 called all_to_all of partials (64 bytes, "
         "f32)",
         [](arena& m, place& here) { here.rank() == 1 ? exchange(m, here, 64) : gather(m, here, 64); }},
        {"mismatch",
         "ranks 0, 2 called all_gather of queries (64 bytes, bf16), rank 1 called all_gather of queries (65 bytes, "
         "bf16)",
         [](arena& m, place& here) { gather(m, here, here.rank() == 1 ? 65 : 64); }},
        {"mismatch", "rank 0 called release, ranks 1, 2 called all_to_all of partials (8 bytes, f32)",
         [](arena& m, place& here) {
             here.comm.publish(m.of(here), 1, here.stream);
             here.rank() == 0 ? here.comm.release(here.stream) : exchange(m, here, 8);
         }},
        {"mismatch",
         "ranks 0, 2 called all_to_all of partials (8 bytes, f16), rank 1 called all_to_all of partials (8 bytes, f32)",
         [](arena& m, place& here) {
             exchange(m, here, 8, {"partials", here.rank() == 1 ? scalar_type::f32 : scalar_type::f16});
         }},
        {"mismatch", "all_to_all with sizes of data: rank 1 sends 3 bytes to rank 2, which expects 4 bytes from it",
         [](arena& m, place& here) {
             const std::array<std::size_t, 3> sends{1, 2, 3},
                 from_all{std::size_t(here.rank()) + 1, here.rank() == 2 ? 4U : std::size_t(here.rank()) + 1,
                          std::size_t(here.rank()) + 1};
             here.comm.all_to_all(m.of(here), sends, m.of(here) + 100, from_all, here.stream);
         }},
        {"digest", "rank 1 called agree on plan (value 9)",
         [](arena&, place& here) { here.comm.agree(here.rank() == 1 ? 9 : 7, "plan", here.stream); }},
        {"digest", "digest 0x9",
         [](arena& m, place& here) {
             gather(m, here, 8, {"queries", scalar_type::bf16, here.rank() == 1 ? 9U : 7U});
         }},
    };
    for (const difference& each : differences) {
        arena memory;
        const simt::device device;
        const auto all = outcomes(3, checked, [&](place& here) { each.call(memory, here); });
        CHECK(codes(all) == strings(3, each.code));
        CHECK(prompt(all));
        for (const outcome& one : all) {
            INFO(one.message);
            CHECK(contains(one.message, each.text));
        }
    }
}

TEST_CASE("a meeting ends at the timeout and names who is missing, the operation and the time") {
    arena memory;
    const simt::device device;
    const auto all = outcomes(4, {.timeout = 200ms}, [&](place& here) {
        gather(memory, here, 10);
        if (here.rank() == 0 || here.rank() == 2) exchange(memory, here, 512);
        std::this_thread::sleep_for(600ms);
        here.comm.check();
    });
    CHECK(codes(all) == strings(4, "timeout"));
    for (const std::size_t r : {0, 2}) {
        CHECK(all[r].ms >= 200 - 1);
        CHECK(all[r].ms < 5000);
        CHECK(all[r].failure.operation == "all_to_all of partials");
        CHECK(contains(all[r].message, "ranks 1, 3 had not arrived when rank "));
        CHECK(contains(all[r].message, "ranks 0, 2 called all_to_all of partials (512 bytes, f32)"));
        CHECK(all[r].failure.peer == 1);
    }
    CHECK((all[0].failure.waited_ms >= 200 || all[2].failure.waited_ms >= 200));
}

TEST_CASE("after a failure every call throws at once: first what happened, then that the communicator is dead") {
    arena memory;
    const simt::device device;
    const auto all = outcomes(3, {}, [&](place& here) {
        local_cuda_communicator& comm = here.comm;
        std::uint8_t* const at = memory.of(here);
        const std::array<std::size_t, 3> sizes{1, 1, 1};
        if (here.rank() == 0) comm.fail("no more memory");
        if (here.rank() != 0) CHECK(code_of([&] { gather(memory, here, 4); }) == "peer_error");
        for (int i = 0; i < 2; ++i) {
            CHECK(code_of([&] { comm.check(); }) == "peer_error");
            CHECK(code_of([&] { gather(memory, here, 4); }) == "dead");
            CHECK(code_of([&] { exchange(memory, here, 4); }) == "dead");
            CHECK(code_of([&] { comm.all_to_all(at, sizes, at + 8, sizes, here.stream); }) == "dead");
            CHECK(code_of([&] { comm.agree(1, "plan", here.stream); }) == "dead");
            CHECK(code_of([&] { comm.publish(at, 1, here.stream); }) == "dead");
            CHECK(code_of([&] { comm.split(0, 0); }) == "dead");
            CHECK(code_of([&] { comm.wait(here.stream); }) == "dead");
        }
        comm.fail("a second failure, which changes nothing");
        CHECK(comm.bytes_sent() == 0);
        gather(memory, here, 4);
    });
    CHECK(codes(all) == strings(3, "dead"));
    CHECK(prompt(all));
    for (const outcome& one : all) {
        CHECK(contains(one.message, "dead since the failure \"peer_error\": rank 0 failed: no more memory"));
        CHECK(one.failure.peer == 0);
        CHECK(one.failure.got == "no more memory");
    }
    const auto off = outcomes(2, {.checks = check_level::off}, [&](place& here) {
        if (here.rank() == 0) here.comm.fail("x");
        if (here.rank() == 1) CHECK(code_of([&] { gather(memory, here, 4); }) == "peer_error");
        here.comm.agree(1, "plan", here.stream);
    });
    CHECK(codes(off) == strings{"dead", "dead"});
}

TEST_CASE("a wait ends when the stream is done, at the timeout, or when a peer has failed") {
    std::atomic<bool> done = false;
    const simt::device device;
    const auto all = outcomes(2, {.timeout = 100ms}, [&](place& here) {
        here.comm.wait(here.stream);
        if (here.rank() != 0) return std::this_thread::sleep_for(500ms);
        give_slow_work(here.stream, done);
        here.comm.wait(here.stream);
    });
    CHECK(codes(all) == strings{"timeout", ""});
    CHECK(contains(all[0].message, "rank 0 in wait: the stream of rank 0 was not done when it had waited 1"));
    CHECK(all[0].failure.operation == "wait");
    CHECK(all[0].failure.waited_ms >= 100);
    CHECK(all[0].ms < 5000);

    const auto told = outcomes(2, {}, [&](place& here) {
        give_slow_work(here.stream, done);
        if (here.rank() == 1) {
            std::this_thread::sleep_for(20ms);
            return here.comm.fail("disk on fire");
        }
        here.comm.wait(here.stream);
    });
    CHECK(codes(told) == strings{"peer_error", ""});
    CHECK(prompt(told));
    done = true;
}

TEST_CASE("destroying a communicator never blocks: while others wait, and with slow work in its stream") {
    std::atomic<bool> done = false;
    arena memory;
    const simt::device device;
    const auto all = outcomes(3, {}, [&](place& here) {
        give_slow_work(here.stream, done);
        here.comm.publish(memory.of(here), 1, here.stream);
        if (here.rank() == 0) {
            std::this_thread::sleep_for(20ms); // the others wait in release
            const clock::time_point start = clock::now();
            local_cuda_communicator(std::move(here.comm));
            CHECK(ms_since(start) < 5000);
            return;
        }
        here.comm.release(here.stream);
    });
    done = true;
    CHECK(codes(all) == strings{"", "left", "left"});
    CHECK(contains(all[1].message, "rank 0 left"));
    CHECK(prompt(all));
}

TEST_CASE("a rank that fails while its memory is published is kept until no peer can read it any more") {
    for (const bool unwinds : {false, true}) {
        arena memory;
        const simt::device device;
        std::atomic<bool> others_read = true;
        const auto all = outcomes(3, {}, [&](place& here) {
            here.comm.publish(memory.of(here), 1, here.stream);
            if (here.rank() == 0) {
                CHECK(code_of([&] { exchange(memory, here, 4); }) == "peer_error"); // rank 1 has told of its failure
                CHECK_FALSE(others_read);
                return;
            }
            if (here.rank() == 1) return here.comm.fail("no luck");
            std::this_thread::sleep_for(50ms);
            others_read = false;
            if (unwinds) throw std::runtime_error("no luck either");
            CHECK(code_of([&] { here.comm.release(here.stream); }) == "peer_error");
        });
        CHECK(codes(all) == strings{"", "", unwinds ? "std" : ""});
        CHECK(prompt(all));
    }
}

TEST_CASE("an error of the runtime on one rank reaches all, and says where it was") {
    arena memory;
    const simt::device device;
    const auto all = outcomes(3, {}, [&](place& here) {
        gather(memory, here, 10);
        if (here.rank() == 1) cudaStreamDestroy(here.stream);
        gather(memory, here, 10);
    });
    CHECK(codes(all) == strings(3, "cuda"));
    CHECK(prompt(all));
    for (const outcome& one : all) {
        CHECK(contains(one.message, "CUDA reports cudaErrorInvalidResourceHandle on rank 1 in all_gather of queries"));
        CHECK(one.failure.peer == 1);
        CHECK(one.failure.got == "cudaErrorInvalidResourceHandle");
    }
}

TEST_CASE("a kernel that fails on the device ends the waits of all ranks") {
    std::atomic<bool> done = false;
    const simt::device device;
    const auto all = outcomes(2, {}, [&](place& here) {
        here.rank() == 0 ? cuda::launch({1, 1, 32}, here.stream, faulty_kernel) : give_slow_work(here.stream, done);
        here.comm.agree(1, "plan", here.stream);
        here.comm.wait(here.stream);
    });
    CHECK(codes(all) == strings{"cuda", "cuda"});
    CHECK(contains(all[0].message, "the kernel found 42"));
}

TEST_CASE("groups that were split fail each on its own") {
    arena memory;
    const simt::device device;
    const auto all = outcomes(4, {}, [&](place& here) {
        std::optional<local_cuda_communicator> pair = here.comm.split(here.rank() / 2, 0);
        place there{*pair, here.stream};
        if (here.rank() == 3) pair->fail("no luck");
        if (here.rank() == 2) CHECK(code_of([&] { gather(memory, there, 4); }) == "peer_error");
        if (here.rank() < 2) {
            std::uint8_t* const at = memory.of(here.rank());
            pair->all_gather(at, at + 100, 4, here.stream);
        }
        gather(memory, here, 4);
        here.comm.wait(here.stream);
    });
    CHECK(codes(all) == strings(4, ""));
}
