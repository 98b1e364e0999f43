// Asynchronous copies are seen when their group was waited for, and not before.
#include "late_copies.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace simt;

namespace {

constexpr std::uint8_t unknown = 0xff;

} // namespace

TEST_CASE("a copy's place is unknown until its group was waited for, and the last groups may be left") {
    std::vector<std::uint8_t> from(64), to(64, 0);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i);
    late_copies copies;
    for (std::size_t group = 0; group < 4; ++group) {
        copies.add(&to[16 * group], &from[16 * group], 8);
        copies.add(&to[16 * group + 8], &from[16 * group + 8], 8);
        copies.commit();
    }
    CHECK(to == std::vector<std::uint8_t>(64, unknown));
    for (std::size_t done = 1; done <= 4; ++done) {
        copies.wait(4 - done);
        for (std::size_t i = 0; i < 64; ++i) CHECK(to[i] == (i < 16 * done ? from[i] : unknown));
    }
}

TEST_CASE("what was not committed is not waited for, and an empty group counts") {
    std::uint8_t from = 7, first = 0, second = 0;
    late_copies copies;
    copies.add(&first, &from, 1);
    copies.wait(0);
    CHECK(first == unknown);
    copies.commit();
    copies.commit();
    copies.wait(2);
    CHECK(first == unknown);
    copies.wait(1);
    CHECK(first == 7);
    copies.add(&second, &from, 1);
    copies.wait(0);
    CHECK(second == unknown);
    from = 8;
    copies.commit();
    copies.wait(0);
    CHECK(second == 8); // as it is when it is waited for
}

TEST_CASE("a pipeline of any length brings every element") {
    constexpr std::size_t elements = 1000, stages = 3;
    std::vector<std::uint16_t> from(elements);
    for (std::size_t i = 0; i < elements; ++i) from[i] = static_cast<std::uint16_t>(i);
    std::vector<std::uint16_t> ring(stages + 1, 0);
    late_copies copies;
    for (std::size_t i = 0; i < elements + stages; ++i) {
        if (i < elements) copies.add(&ring[i % (stages + 1)], &from[i], sizeof(from[i]));
        copies.commit();
        copies.wait(stages);
        if (i >= stages) CHECK(ring[(i - stages) % (stages + 1)] == from[i - stages]);
    }
}

TEST_CASE("copies that were forgotten are never done") {
    std::uint8_t from = 7, to = 0;
    late_copies copies;
    copies.add(&to, &from, 1);
    copies.commit();
    copies.clear();
    copies.wait(0);
    CHECK(to == unknown);
}
