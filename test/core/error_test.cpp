// Errors: stable codes, sentences that name the values, and one base to catch.
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/error.hpp>

namespace {

template <class Caught, class Body>
bool is_caught_as(Body body) {
    try {
        body();
    } catch (const Caught&) {
        return true;
    }
    return false;
}

void refuse() {
    ctxpar::raise(ctxpar::config_error("dcp_shape", "3 ranks do not divide 4; legal are 1, 2, 4", {1, 2, 4}));
}

void fail() {
    ctxpar::comm_failure failure;
    failure.code = "timeout";
    failure.rank = 2;
    failure.peer = 5;
    failure.operation = "all_gather of queries";
    failure.expected = "640 bytes";
    failure.got = "nothing";
    failure.waited_ms = 1500;
    ctxpar::raise(ctxpar::comm_error(failure, "rank 2 waited 1500 ms for rank 5"));
}

} // namespace

TEST_CASE("a refusal carries its code, its sentence and what would be legal") {
    try {
        refuse();
        FAIL("nothing was thrown");
    } catch (const ctxpar::config_error& problem) {
        CHECK(problem.code() == "dcp_shape");
        CHECK(std::string(problem.what()) == "3 ranks do not divide 4; legal are 1, 2, 4");
        CHECK(problem.legal() == std::vector<std::int64_t>{1, 2, 4});
    }
    CHECK(ctxpar::config_error("size", "text").legal().empty());
}

TEST_CASE("a failed collective carries everything that is known of it") {
    try {
        fail();
        FAIL("nothing was thrown");
    } catch (const ctxpar::comm_error& problem) {
        CHECK(problem.code() == "timeout");
        CHECK(std::string(problem.what()) == "rank 2 waited 1500 ms for rank 5");
        CHECK(problem.failure().code == "timeout");
        CHECK(problem.failure().rank == 2);
        CHECK(problem.failure().peer == 5);
        CHECK(problem.failure().operation == "all_gather of queries");
        CHECK(problem.failure().expected == "640 bytes");
        CHECK(problem.failure().got == "nothing");
        CHECK(problem.failure().waited_ms == 1500);
    }
    const ctxpar::comm_failure unknown;
    CHECK(unknown.rank == -1);
    CHECK(unknown.peer == -1);
}

TEST_CASE("every error is caught by its own type and by each of its bases, and by no other") {
    CHECK(is_caught_as<ctxpar::config_error>(refuse));
    CHECK(is_caught_as<ctxpar::error>(refuse));
    CHECK(is_caught_as<std::runtime_error>(refuse));
    CHECK(is_caught_as<std::exception>(refuse));
    CHECK(is_caught_as<ctxpar::comm_error>(fail));
    CHECK(is_caught_as<ctxpar::error>(fail));
    CHECK(is_caught_as<std::runtime_error>(fail));
    static_assert(!std::is_base_of_v<ctxpar::config_error, ctxpar::comm_error>);
    static_assert(!std::is_base_of_v<ctxpar::comm_error, ctxpar::config_error>);
    try {
        refuse();
    } catch (const ctxpar::error& problem) { // the code is there without knowing the kind
        CHECK(problem.code() == "dcp_shape");
    }
}

TEST_CASE("an error survives being copied and rethrown") {
    std::exception_ptr kept;
    try {
        refuse();
    } catch (...) {
        kept = std::current_exception();
    }
    try {
        std::rethrow_exception(kept);
    } catch (const ctxpar::config_error& problem) {
        const ctxpar::config_error copy = problem;
        CHECK(copy.code() == "dcp_shape");
        CHECK(copy.legal().size() == 3);
        CHECK(std::string(copy.what()) == problem.what());
    }
}

TEST_CASE("require throws only where its condition fails, with its parts joined") {
    CHECK_NOTHROW(ctxpar::require(true, "size", "never seen"));
    try {
        ctxpar::require(2 > 3, "size", "the ", std::string("head"), " count is ", -7, " of ", std::int64_t{1} << 40);
        FAIL("nothing was thrown");
    } catch (const ctxpar::config_error& problem) {
        CHECK(problem.code() == "size");
        CHECK(std::string(problem.what()) == "the head count is -7 of 1099511627776");
        CHECK(problem.legal().empty());
    }
}

TEST_CASE("a sentence joins texts and numbers without separators") {
    CHECK(ctxpar::sentence() == "");
    CHECK(ctxpar::sentence("a", 1, std::string("b"), -2, "c") == "a1b-2c");
    CHECK(ctxpar::sentence(std::uint64_t{18'446'744'073'709'551'615u}) == "18446744073709551615");
    CHECK(ctxpar::detail::join({}) == "");
    CHECK(ctxpar::detail::join({4}) == "4");
    CHECK(ctxpar::detail::join({1, -2, 4}) == "1, -2, 4");
}
