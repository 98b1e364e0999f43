// Errors: their types, and the one function that throws them.
//
//   config_error   the caller asked for something illegal; thrown before the call writes or communicates anything
//   comm_error     a collective failed: a peer left, threw, timed out, or called something else; or the transport did
//
// Both carry a stable one-word code, so that a program can react without reading the sentence.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/core/config.hpp>

namespace ctxpar::inline v0_1 {

// The base of every error of the library.
class CTXPAR_VISIBLE error : public std::runtime_error {
public:
    error(std::string code, const std::string& message) : std::runtime_error(message), code_(std::move(code)) {}

    // A stable word, e.g. "dcp_shape"; what() is the sentence for a person.
    const std::string& code() const noexcept { return code_; }

private:
    std::string code_;
};

// The caller passed values that are not legal. what() names them and what would be legal.
class CTXPAR_VISIBLE config_error : public error {
public:
    config_error(std::string code, const std::string& message, std::vector<std::int64_t> legal = {})
        : error(std::move(code), message), legal_(std::move(legal)) {}

    // Values that would have been accepted in place of the refused one, ascending; empty where there is no short list.
    const std::vector<std::int64_t>& legal() const noexcept { return legal_; }

private:
    std::vector<std::int64_t> legal_;
};

// What is known of a failed collective. Unknown numbers are -1, unknown texts empty.
struct CTXPAR_VISIBLE comm_failure {
    std::string code;           // "timeout", "left", "peer_error", "mismatch", "digest", "dead", "nccl", "cuda"
    int rank = -1;              // the rank on which this error surfaces
    int peer = -1;              // the rank that caused it, where one did
    std::string operation;      // what this rank called, e.g. "all_gather of queries"
    std::string expected;       // what the other ranks called, or what was waited for
    std::string got;            // what came instead
    std::int64_t waited_ms = 0; // how long this rank had waited
};

// A collective failed. The communicator that threw it is dead: every later call throws at once.
class CTXPAR_VISIBLE comm_error : public error {
public:
    comm_error(comm_failure failure, const std::string& message)
        : error(failure.code, message), failure_(std::move(failure)) {}

    const comm_failure& failure() const noexcept { return failure_; }

private:
    comm_failure failure_;
};

// Every throw of the library goes through raise(). A build without exceptions prints the sentence and aborts.
#if defined(__cpp_exceptions)
inline namespace with_exceptions {
template <class Error>
[[noreturn]] void raise(const Error& problem) {
    throw problem;
}
} // namespace with_exceptions
#else
inline namespace without_exceptions {
template <class Error>
[[noreturn]] void raise(const Error& problem) {
    std::fprintf(stderr, "ctxpar: %s: %s\n", problem.code().c_str(), problem.what());
    std::abort();
}
} // namespace without_exceptions
#endif

namespace detail {

// A piece of a sentence: a text or a number. Erased, so that building a sentence is compiled once and not once for
// every combination of pieces; it refers to its text, which must outlive it.
class sentence_part {
public:
    sentence_part(const char* text) : text_(text) {}
    sentence_part(const std::string& text) : text_(text.c_str()) {}
    template <std::integral Number>
    sentence_part(Number number) : number_(static_cast<std::uint64_t>(number)) {
        if constexpr (std::signed_integral<Number>) negative_ = number < 0;
    }

    void append_to(std::string& whole) const {
        if (text_ != nullptr) {
            whole += text_;
        } else if (negative_) {
            whole += std::to_string(static_cast<std::int64_t>(number_));
        } else {
            whole += std::to_string(number_);
        }
    }

private:
    const char* text_ = nullptr;
    std::uint64_t number_ = 0;
    bool negative_ = false;
};

[[gnu::cold]] inline std::string join_parts(std::initializer_list<sentence_part> parts) {
    std::string whole;
    for (const sentence_part& part : parts) part.append_to(whole);
    return whole;
}

[[noreturn, gnu::cold]] inline void refuse(const char* code, std::initializer_list<sentence_part> parts) {
    raise(config_error(code, join_parts(parts)));
}

// "1, 2, 4" of {1, 2, 4}.
[[gnu::cold]] inline std::string join(const std::vector<std::int64_t>& values) {
    std::string text;
    for (const std::int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
    return text;
}

} // namespace detail

// One sentence from texts and whole numbers, without separators.
template <class... Parts>
std::string sentence(const Parts&... parts) {
    return detail::join_parts({detail::sentence_part(parts)...});
}

// Throws config_error with `code` and the sentence of `parts` unless `holds`; the sentence is built only on failure.
template <class... Parts>
void require(bool holds, const char* code, const Parts&... parts) {
    if (!holds) [[unlikely]]
        detail::refuse(code, {detail::sentence_part(parts)...});
}

} // namespace ctxpar::inline v0_1
