// Two objects that were compiled with different settings, linked into one program, behave as one: what is checked is
// a value of the world, whichever object made it and whichever object uses it.
#include <cstdio>
#include <string>

#include "part.hpp"

int main() {
    int failures = 0;
    const auto expect = [&failures](const char* what, const std::string& got, const std::string& expected) {
        std::printf("%s: %s, expected %s\n", what, got.c_str(), expected.c_str());
        if (got != expected) ++failures;
    };
    expect("types in both objects", part_a::layout(), part_b::layout());
    for (const auto checks : {ctxpar::check_level::off, ctxpar::check_level::basic, ctxpar::check_level::collective}) {
        const std::string expected = checks == ctxpar::check_level::collective ? "digest digest" : "xy xy";
        expect("made in a, used in a", part_a::outcome(*part_a::make_world(checks)), expected);
        expect("made in a, used in b", part_b::outcome(*part_a::make_world(checks)), expected);
        expect("made in b, used in a", part_a::outcome(*part_b::make_world(checks)), expected);
        expect("made in b, used in b", part_b::outcome(*part_b::make_world(checks)), expected);
    }
    return failures == 0 ? 0 : 1;
}
