// Ranks that call different things are told so, all of them, and told who called what.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/comm/local.hpp>

#include "local_outcomes.hpp"

using namespace ctxpar_test;

TEST_CASE("different operations are told to every rank") {
    const auto all = outcomes(2, {}, [](local_communicator& comm) {
        if (comm.rank() == 0) gather(comm, 4096);
        if (comm.rank() == 1) exchange(comm, 512);
    });
    CHECK(codes(all) == strings{"mismatch", "mismatch"});
    const std::string calls = "rank 0 called all_gather of queries (4096 bytes, bf16), rank 1 called all_to_all of "
                              "partials (512 bytes, f32)";
    CHECK(all[0].message == "rank 0 in all_gather of queries: " + calls);
    CHECK(all[1].message == "rank 1 in all_to_all of partials: " + calls);
    CHECK(all[1].failure.operation == "all_to_all of partials");
    CHECK(all[1].failure.got == calls);
    CHECK(prompt(all));
}

TEST_CASE("each pair of different calls is a mismatch, at every check level") {
    const auto call = [](local_communicator& comm, int kind) {
        const std::size_t num_ranks = static_cast<std::size_t>(comm.size());
        const std::vector<std::size_t> sizes(num_ranks, 8);
        std::vector<char> send(8 * num_ranks), recv(8 * num_ranks);
        if (kind == 0) gather(comm, 8);
        if (kind == 1) gather(comm, 9);
        if (kind == 2) exchange(comm, 8);
        if (kind == 3) exchange(comm, 7);
        if (kind == 4) comm.all_to_all(send.data(), sizes, recv.data(), sizes, {});
        if (kind == 5) comm.split(0, 0);
        if (kind == 6) comm.publish(send.data(), 8, {});
        if (kind == 7) comm.agree(1, "plan", {});
    };
    for (const check_level level : {check_level::off, check_level::basic, check_level::collective})
        for (int one = 0; one < 8; ++one)
            for (int other = 0; other < 8; ++other) {
                if (one == other || (level == check_level::off && (one == 7 || other == 7))) continue;
                const auto all = outcomes(3, {.checks = level}, [&](local_communicator& comm) {
                    call(comm, comm.rank() == 2 ? other : one);
                });
                CAPTURE(one);
                CAPTURE(other);
                CHECK(codes(all) == strings{"mismatch", "mismatch", "mismatch"});
                CHECK(contains(all[0].message, "ranks 0, 1 called "));
                CHECK(contains(all[0].message, ", rank 2 called "));
            }
}

TEST_CASE("releasing is a call that the others must make too") {
    const auto all = outcomes(2, {}, [](local_communicator& comm) {
        comm.publish("x", 1, {});
        if (comm.rank() == 0) comm.release({});
        if (comm.rank() == 1) gather(comm, 2);
    });
    CHECK(codes(all) == strings{"mismatch", "mismatch"});
    CHECK(contains(all[0].message, "rank 0 called release, rank 1 called all_gather of queries (2 bytes, bf16)"));
    CHECK(prompt(all));
}

TEST_CASE("what one rank sends and the other expects is compared for each pair, at every check level") {
    for (const check_level level : {check_level::off, check_level::basic, check_level::collective}) {
        const auto all = outcomes(4, {.checks = level}, [](local_communicator& comm) {
            std::vector<char> send(409600 * 4), recv(409600 * 4);
            std::vector<std::size_t> sends(4, 409600), receives(4, 409600);
            if (comm.rank() == 3) receives[1] = 409598;
            comm.all_to_all(send.data(), sends, recv.data(), receives, {}, {"tokens"});
        });
        CHECK(codes(all) == strings(4, "mismatch"));
        for (const outcome& one : all) {
            CHECK(contains(one.message, "rank 1 sends 409600 bytes to rank 3, which expects 409598 bytes from it"));
            CHECK(one.failure.expected == "409598 bytes from rank 1 on rank 3");
            CHECK(one.failure.got == "409600 bytes");
        }
        CHECK(prompt(all));
    }
}

TEST_CASE("element types and digests of every call are compared at level collective only") {
    const auto make_call = [](local_communicator& comm, int kind, collective_note note) {
        const std::size_t num_ranks = static_cast<std::size_t>(comm.size());
        const std::vector<std::size_t> sizes(num_ranks, 4);
        std::vector<char> send(4 * num_ranks), recv(4 * num_ranks);
        if (kind == 0) gather(comm, 4, note);
        if (kind == 1) exchange(comm, 4, note);
        if (kind == 2) comm.all_to_all(send.data(), sizes, recv.data(), sizes, {}, note);
        if (kind == 3) comm.publish(send.data(), 4, {}, note);
        if (kind == 3) comm.release({});
    };
    for (const check_level level : {check_level::off, check_level::basic, check_level::collective})
        for (int kind = 0; kind < 4; ++kind)
            for (const bool types : {false, true}) {
                const auto all = outcomes(3, {.checks = level}, [&](local_communicator& comm) {
                    const bool odd = comm.rank() == 1;
                    make_call(
                        comm, kind,
                        {"keys", odd && types ? scalar_type::f16 : scalar_type::bf16, odd && !types ? 0xabcu : 0xdefu});
                });
                const char* code = level != check_level::collective ? "" : types ? "mismatch" : "digest";
                CHECK(codes(all) == strings(3, code));
                if (level != check_level::collective) continue;
                CHECK(contains(all[2].message, "ranks 0, 2 called "));
                CHECK(contains(all[2].message, types ? "f16" : "0xabc"));
                CHECK(contains(all[2].message, types ? "bf16" : "0xdef"));
            }
}

TEST_CASE("agreeing finds different digests at levels basic and collective, and meets nobody at off") {
    for (const check_level level : {check_level::basic, check_level::collective}) {
        const auto all = outcomes(4, {.checks = level}, [](local_communicator& comm) {
            comm.agree(42, "plan", {});
            comm.agree(comm.rank() == 2 ? 42 : 43, "schedule", {});
        });
        CHECK(codes(all) == strings(4, "digest"));
        CHECK(contains(all[0].message, "ranks 0, 1, 3 called agree on schedule (value 43), rank 2 called agree on "
                                       "schedule (value 42)"));
    }
    const auto all = outcomes(2, {.checks = check_level::off}, [](local_communicator& comm) {
        if (comm.rank() == 0) comm.agree(1, "plan", {}); // alone
        comm.agree(static_cast<std::uint64_t>(comm.rank()), "plan", {});
        gather(comm, 10);
    });
    CHECK(codes(all) == strings{"", ""});
}
