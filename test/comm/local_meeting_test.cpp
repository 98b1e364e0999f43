// The rules of the meeting itself, with calls made by hand: who may come, when a round takes place, when it fails.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <ctxpar/comm/local_meeting.hpp>

using namespace ctxpar;
using namespace std::chrono_literals;
using detail::local_call;
using detail::local_meeting;
using detail::local_operation;
using detail::local_reading;

namespace {

template <class Fn>
std::string code_of(Fn fn) {
    try {
        fn();
    } catch (const error& problem) {
        return problem.code();
    }
    return "";
}

local_call release_call() {
    return {local_operation::release};
}

} // namespace

TEST_CASE("a meeting has at least one rank and a timeout") {
    CHECK(code_of([] { local_meeting(0, 1s, check_level::off); }) == "ranks");
    CHECK(code_of([] { local_meeting(-3, 1s, check_level::off); }) == "ranks");
    CHECK(code_of([] { local_meeting(1, 0ms, check_level::off); }) == "timeout");
    CHECK(code_of([] { local_meeting(1, -1ms, check_level::off); }) == "timeout");
    CHECK(code_of([] { local_meeting(1, std::chrono::milliseconds::max(), check_level::off); }).empty());
}

TEST_CASE("each rank is taken once") {
    local_meeting meeting(2, 1s, check_level::off);
    CHECK(code_of([&] { meeting.take(1); }).empty());
    CHECK(code_of([&] { meeting.take(1); }) == "rank");
    CHECK(code_of([&] { meeting.take(2); }) == "rank");
    CHECK(code_of([&] { meeting.take(-1); }) == "rank");
    CHECK(code_of([&] { meeting.take(0); }).empty());
}

TEST_CASE("one rank meets itself, with the longest timeout there is") {
    local_meeting meeting(1, std::chrono::milliseconds::max(), check_level::collective);
    for (int i = 0; i < 3; ++i) meeting.meet(0, release_call());
    CHECK_FALSE(meeting.failed());
}

TEST_CASE("no rank passes a round before all have come") {
    constexpr int num_ranks = 5, num_rounds = 300;
    for (const std::size_t bytes : {std::size_t(8), local_meeting::small_round_bytes}) { // copied by one, by all
        local_meeting meeting(num_ranks, 30s, check_level::basic);
        std::atomic<int> num_posted = 0, num_early = 0, num_wrong = 0;
        std::vector<std::thread> threads;
        const int rounds = bytes == 8 ? num_rounds : 10;
        for (int rank = 0; rank < num_ranks; ++rank)
            threads.emplace_back([&, rank] {
                std::vector<char> send(bytes), recv(bytes * num_ranks);
                for (int round = 1; round <= rounds; ++round) {
                    send.front() = send.back() = static_cast<char>(round + rank);
                    ++num_posted;
                    meeting.meet(rank, {local_operation::all_gather, send.data(), recv.data(), bytes});
                    if (num_posted < round * num_ranks) ++num_early;
                    for (int peer = 0; peer < num_ranks; ++peer) {
                        const std::size_t part = static_cast<std::size_t>(peer) * bytes;
                        const char right = static_cast<char>(round + peer);
                        if (recv[part] != right || recv[part + bytes - 1] != right) ++num_wrong;
                    }
                }
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(num_early == 0);
        CHECK(num_wrong == 0);
    }
}

TEST_CASE("what ranks have posted is read until they arrive at the next round but one, and is not copied for streams") {
    constexpr detail::local_meeting_kind of_streams{"communicator of streams", "group of streams", false};
    local_meeting meeting(2, 30s, check_level::basic, of_streams);
    std::array<char, 2> from{1, 2};
    std::array<std::array<char, 2>, 2> to{};
    const auto call = [&](std::size_t rank, int round) {
        local_call made{local_operation::all_gather, &from[rank], to[rank].data(), 1};
        made.key = 10 * round + static_cast<int>(rank);
        return made;
    };
    std::thread other([&] {
        for (int round = 0; round < 4; ++round) meeting.meet(1, call(1, round));
    });
    int wrong = 0;
    for (int round = 0; round < 4; ++round) {
        const auto all = meeting.meet(0, call(0, round));
        std::this_thread::sleep_for(20ms); // the other one arrives at the next round
        for (const std::size_t rank : {0U, 1U}) wrong += all[rank].key == call(rank, round).key ? 0 : 1;
    }
    other.join();
    CHECK(wrong == 0);
    CHECK(to == std::array<std::array<char, 2>, 2>{});
}

TEST_CASE("a rank that throws waits until the readings that its peers have begun are ended, and no longer") {
    for (const int readings : {1, 2}) {
        local_meeting meeting(2, 30s, check_level::basic);
        std::atomic<bool> is_read = true;
        bool was_read = false;
        std::thread other([&] {
            for (int i = 0; i < readings; ++i) meeting.meet(1, {local_operation::publish}, local_reading::begins);
            std::this_thread::sleep_for(50ms);
            is_read = false;
            meeting.leave(1);
        });
        for (int i = 0; i < readings; ++i) meeting.meet(0, {local_operation::publish}, local_reading::begins);
        meeting.fail(1, "gone");
        const auto start = local_meeting::clock::now();
        const std::string code = code_of([&] { meeting.meet(0, {local_operation::release}, local_reading::ends); });
        was_read = is_read;
        other.join();
        CHECK(code == "peer_error");
        CHECK_FALSE(was_read);
        CHECK(local_meeting::clock::now() - start < 10s);
    }
}

TEST_CASE("a failure that a rank dies of is that of all, unless there was one before") {
    local_meeting meeting(2, 30s, check_level::basic);
    const auto die = [&](int rank, const char* code) {
        return code_of([&] { meeting.die(rank, {code, "a text", "", "", rank}, {}, local_meeting::clock::now()); });
    };
    CHECK(die(0, "cuda") == "cuda");
    CHECK(die(1, "timeout") == "cuda");
    CHECK(die(1, "timeout") == "dead");
    CHECK(code_of([&] { meeting.check(0); }) == "cuda");
}

TEST_CASE("errors name the kind of ranks that meet") {
    constexpr detail::local_meeting_kind kind{"communicator of streams", "group of streams", false};
    const auto text_of = [](auto&& call) -> std::string {
        try {
            call();
        } catch (const config_error& problem) {
            return problem.what();
        }
        return "";
    };
    local_meeting meeting(2, 30s, check_level::basic, kind);
    meeting.take(1);
    CHECK(text_of([&] { meeting.take(1); }).find("rank 1 of the group of streams was taken before") == 0);
    CHECK(text_of([&] { meeting.take(2); }).find("rank 2 of a group of streams of 2 was asked for") == 0);
    CHECK(text_of([&] { local_meeting(0, 1s, check_level::off, kind); }).find("a group of streams of 0") == 0);
    CHECK(text_of([&] { local_meeting(1, 0ms, check_level::off, kind); }).find("the timeout of a communicator of") ==
          0);
    CHECK(text_of([&] { local_meeting(0, 1s, check_level::off); }).find("a local world of 0 ranks was asked for") == 0);
}

TEST_CASE("no round takes place after a failure, and it is the first failure that is told") {
    local_meeting meeting(2, 30s, check_level::basic);
    meeting.fail(0, "first");
    meeting.fail(1, "second");
    meeting.leave(0);
    std::string message;
    for (const char* code : {"peer_error", "peer_error"}) {
        CHECK(code_of([&] { meeting.check(1); }) == code);
        try {
            meeting.check(1);
        } catch (const comm_error& problem) {
            message = problem.what();
        }
        CHECK(message == "rank 1 in check: rank 0 failed: first");
    }
    CHECK(code_of([&] { meeting.meet(1, release_call()); }) == "dead");
}

TEST_CASE("leaving is a failure for those who come, and for nobody else") {
    local_meeting meeting(3, 30s, check_level::basic);
    meeting.leave(2);
    CHECK_FALSE(meeting.failed());
    CHECK(code_of([&] { meeting.check(0); }).empty());
    CHECK(code_of([&] { meeting.meet(0, release_call()); }) == "left");
    CHECK(code_of([&] { meeting.meet(1, release_call()); }) == "left");
    CHECK(code_of([&] { meeting.meet(1, release_call()); }) == "dead");
}

TEST_CASE("ranks that were never taken count as left once nobody can take them") {
    local_meeting meeting(3, 30s, check_level::basic);
    meeting.take(1);
    meeting.leave_untaken();
    try {
        meeting.meet(1, release_call());
        CHECK(false);
    } catch (const comm_error& problem) {
        CHECK(std::string(problem.what()) == "rank 1 in release: ranks 0, 2 left, but rank 1 called release");
    }
}
