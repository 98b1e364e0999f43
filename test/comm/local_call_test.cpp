// Calls of ranks as values: what is refused, what fits together, what is said, and what is copied; no threads.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <ctxpar/comm/local_call.hpp>

using namespace ctxpar;
using namespace ctxpar::detail;

namespace {

constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();

template <class Fn>
std::string code_of(Fn fn) {
    try {
        fn();
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "";
}

local_call gather_of(std::size_t bytes, scalar_type type = scalar_type::bf16, std::uint64_t digest = 0) {
    static std::array<std::byte, 64> memory;
    local_call call{local_operation::all_gather, memory.data(), memory.data(), bytes};
    call.note = {"queries", type, digest};
    return call;
}

} // namespace

TEST_CASE("a gather takes its own part in place and no other overlap") {
    std::array<char, 100> memory{};
    char* recv = memory.data();
    const auto gather = [&](int rank, const char* send, std::size_t bytes) {
        return code_of([&] { all_gather_call(rank, 3, send, recv, bytes, {}); });
    };
    CHECK(gather(0, recv, 10).empty());
    CHECK(gather(2, recv + 20, 10).empty());
    CHECK(gather(0, recv + 30, 10).empty()); // just behind
    CHECK(gather(0, recv + 20, 10) == "aliasing");
    CHECK(gather(1, recv + 11, 10) == "aliasing");
    CHECK(gather(1, recv + 29, 10) == "aliasing");
    recv = memory.data() + 10;
    CHECK(gather(0, recv - 10, 10).empty()); // just before
    CHECK(gather(0, recv - 9, 10) == "aliasing");
    CHECK(gather(0, recv + 3, 0).empty());
}

TEST_CASE("an exchange is never in place") {
    std::array<char, 100> memory{};
    char* at = memory.data();
    const std::array<std::size_t, 2> sends{10, 5}, receives{0, 20};
    CHECK(code_of([&] { all_to_all_call(2, at, at + 20, 10, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, at, at + 19, 10, {}); }) == "aliasing");
    CHECK(code_of([&] { all_to_all_call(2, at, at, 10, {}); }) == "aliasing");
    CHECK(code_of([&] { all_to_all_call(2, at, at, 0, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, at, sends, at + 15, receives, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, at, sends, at + 14, receives, {}); }) == "aliasing");
    CHECK(code_of([&] { all_to_all_call(2, at + 20, sends, at, receives, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, at + 19, sends, at, receives, {}); }) == "aliasing");
}

TEST_CASE("null memory is legal for zero bytes only") {
    char memory[8] = {};
    const std::array<std::size_t, 2> none{0, 0}, some{0, 1};
    CHECK(code_of([&] { all_gather_call(0, 2, nullptr, nullptr, 0, {}); }).empty());
    CHECK(code_of([&] { all_gather_call(0, 2, nullptr, memory, 1, {}); }) == "null");
    CHECK(code_of([&] { all_gather_call(0, 2, memory, nullptr, 1, {}); }) == "null");
    CHECK(code_of([&] { all_to_all_call(2, nullptr, nullptr, 0, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, nullptr, memory, 1, {}); }) == "null");
    CHECK(code_of([&] { all_to_all_call(2, memory, nullptr, 1, {}); }) == "null");
    CHECK(code_of([&] { all_to_all_call(2, nullptr, none, nullptr, none, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, nullptr, none, memory, some, {}); }).empty());
    CHECK(code_of([&] { all_to_all_call(2, nullptr, some, memory, none, {}); }) == "null");
    CHECK(code_of([&] { all_to_all_call(2, memory, none, nullptr, some, {}); }) == "null");
}

TEST_CASE("sizes are one a rank and can be added") {
    char memory[8] = {};
    const std::array<std::size_t, 2> two{0, 0}, overflowing{huge, 1};
    const std::array<std::size_t, 3> three{0, 0, 0};
    CHECK(code_of([&] { all_to_all_call(2, memory, three, memory, two, {}); }) == "sizes");
    CHECK(code_of([&] { all_to_all_call(2, memory, two, memory, three, {}); }) == "sizes");
    CHECK(code_of([&] { all_to_all_call(2, memory, {}, memory, {}, {}); }) == "sizes");
    CHECK(code_of([&] { all_to_all_call(2, memory, overflowing, memory, two, {}); }) == "sizes");
    CHECK(code_of([&] { all_to_all_call(2, memory, memory, huge / 2 + 1, {}); }) == "sizes");
    CHECK(code_of([&] { all_gather_call(0, 2, memory, memory, huge / 2 + 1, {}); }) == "sizes");
}

TEST_CASE("lists of ranks are short and name every rank") {
    CHECK(ranks_text({4}) == "rank 4");
    CHECK(ranks_text({0, 1}) == "ranks 0, 1");
    CHECK(ranks_text({0, 1, 2}) == "ranks 0-2");
    CHECK(ranks_text({0, 2, 3, 4, 7, 8, 11}) == "ranks 0, 2-4, 7, 8, 11");
}

TEST_CASE("equal calls are told once") {
    std::vector<local_call> calls(5, gather_of(4096));
    calls[3].note.what = "partials";
    calls[3].operation = local_operation::all_to_all;
    calls[3].bytes = 512;
    calls[3].note.type = scalar_type::f32;
    CHECK(calls_text(calls, {0, 1, 2, 3, 4}, false) ==
          "ranks 0-2, 4 called all_gather of queries (4096 bytes, bf16), rank 3 called all_to_all of partials (512 "
          "bytes, f32)");
    CHECK(calls_text(calls, {3}, false) == "rank 3 called all_to_all of partials (512 bytes, f32)");
    calls[1].note.digest = 255;
    CHECK(calls_text(calls, {0, 1}, true) ==
          "rank 0 called all_gather of queries (4096 bytes, bf16, digest 0x0), rank 1 called all_gather of queries "
          "(4096 bytes, bf16, digest 0xff)");
    calls[0].note.what = nullptr;
    CHECK(operation_text(calls[0]) == "all_gather of data");
}

TEST_CASE("operations and bytes are compared at every level, types and digests at level collective") {
    for (const check_level level : {check_level::off, check_level::basic, check_level::collective}) {
        const bool deep = level == check_level::collective;
        const auto code = [&](const local_call& odd) {
            std::string found;
            for (std::size_t rank = 0; rank < 3; ++rank) { // whichever rank is the odd one
                std::vector<local_call> calls(3, gather_of(16));
                calls[rank] = odd;
                const std::string now = find_mismatch(calls, level).code;
                if (rank > 0) CHECK(now == found);
                found = now;
            }
            return found;
        };
        CHECK(code(gather_of(16)).empty());
        CHECK(code(gather_of(15)) == "mismatch");
        CHECK(code({local_operation::release}) == "mismatch");
        CHECK(code(gather_of(16, scalar_type::f16)) == (deep ? "mismatch" : ""));
        CHECK(code(gather_of(16, scalar_type::bf16, 1)) == (deep ? "digest" : ""));
    }
}

TEST_CASE("what one rank sends is what the other expects") {
    const std::array<std::size_t, 2> r0_sends{1, 2}, r1_sends{3, 4}, r0_gets{1, 3}, r1_gets{2, 4}, r1_gets_less{1, 4};
    local_call r0{local_operation::all_to_all_spans, nullptr, nullptr, 3, r0_sends.data(), r0_gets.data()};
    local_call r1{local_operation::all_to_all_spans, nullptr, nullptr, 7, r1_sends.data(), r1_gets.data()};
    CHECK(find_mismatch(std::array{r0, r1}, check_level::off).code.empty());
    r1.recv_bytes = r1_gets_less.data();
    const local_failure failure = find_mismatch(std::array{r0, r1}, check_level::off);
    CHECK(failure.code == "mismatch");
    CHECK(failure.text ==
          "all_to_all with sizes of data: rank 0 sends 2 bytes to rank 1, which expects 1 bytes from it");
    CHECK(failure.expected == "1 bytes from rank 0 on rank 1");
    CHECK(failure.got == "2 bytes");
}

TEST_CASE("parts without gaps are found by the sizes before them") {
    const std::string send0 = "aBBccc", send1 = "ddddEf"; // to ranks 0, 1, 2
    const std::string send2 = "GGh";
    const std::array<std::size_t, 3> sizes0{1, 2, 3}, sizes1{4, 1, 1}, sizes2{0, 2, 1};
    const std::array<std::size_t, 3> gets0{1, 4, 0}, gets1{2, 1, 2}, gets2{3, 1, 1};
    std::string recv0(5, '-'), recv1(5, '-'), recv2(5, '-');
    const std::array calls{
        local_call{local_operation::all_to_all_spans, send0.data(), recv0.data(), 6, sizes0.data(), gets0.data()},
        local_call{local_operation::all_to_all_spans, send1.data(), recv1.data(), 6, sizes1.data(), gets1.data()},
        local_call{local_operation::all_to_all_spans, send2.data(), recv2.data(), 3, sizes2.data(), gets2.data()}};
    REQUIRE(find_mismatch(calls, check_level::off).code.empty());
    CHECK(copied_bytes(calls) == 15);
    for (std::size_t rank = 0; rank < 3; ++rank) copy_to(calls, rank);
    CHECK(recv0 == "adddd");
    CHECK(recv1 == "BBEGG");
    CHECK(recv2 == "cccfh");
}
