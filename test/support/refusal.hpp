// What a call is refused with, for tests of errors.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include <ctxpar/core/error.hpp>

namespace ctxpar_test {

template <class Operation>
std::string refusal_of(const Operation& operation) {
    try {
        operation();
    } catch (const ctxpar::config_error& problem) {
        return problem.code() + ": " + problem.what();
    }
    return "none";
}

// Whether a refusal has this code and names these words.
inline bool says(const std::string& refusal, const std::string& code, std::initializer_list<const char*> words) {
    bool found = refusal.rfind(code + ": ", 0) == 0;
    for (const char* word : words) found = found && refusal.find(word) != std::string::npos;
    if (!found) MESSAGE("refused as: ", refusal);
    return found;
}

} // namespace ctxpar_test
