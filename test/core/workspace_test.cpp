// Workspaces: the carve that counts and the carve that points are one function and agree.
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/workspace.hpp>

namespace {

using ctxpar::workspace_alignment;

// A user's carve: three buffers of different types, one of which may be empty.
struct buffers {
    float* partials = nullptr;
    std::uint8_t* flags = nullptr;
    std::int64_t* lengths = nullptr;
    std::size_t bytes = 0;
};

buffers carve(void* base, std::int64_t rows) {
    ctxpar::carver carver(base);
    buffers result;
    result.partials = carver.take<float>(rows * 3);
    result.flags = carver.take<std::uint8_t>(rows);
    result.lengths = carver.take<std::int64_t>(rows);
    result.bytes = carver.bytes();
    return result;
}

std::size_t place_of(const void* pointer, const std::byte* base) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - base);
}

template <class Body>
std::pair<std::string, std::string> refusal(Body body) {
    try {
        body();
    } catch (const ctxpar::config_error& problem) {
        return {problem.code(), problem.what()};
    }
    return {};
}

alignas(workspace_alignment) std::byte memory[1 << 16];

} // namespace

TEST_CASE("counting and pointing take the same bytes, and counting yields no pointers") {
    for (const std::int64_t rows : {0, 1, 21, 22, 64, 256, 257, 1000}) {
        const buffers counted = carve(nullptr, rows);
        const buffers placed = carve(memory, rows);
        CHECK(counted.bytes == placed.bytes);
        CHECK(counted.partials == nullptr);
        CHECK(counted.flags == nullptr);
        CHECK(counted.lengths == nullptr);
    }
}

TEST_CASE("buffers are aligned, in order, inside the workspace and do not overlap") {
    for (const std::int64_t rows : {1, 21, 22, 64, 255, 256, 257, 1000}) {
        const buffers placed = carve(memory, rows);
        const auto count = static_cast<std::size_t>(rows);
        const std::size_t first = place_of(placed.partials, memory);
        const std::size_t second = place_of(placed.flags, memory);
        const std::size_t third = place_of(placed.lengths, memory);
        CHECK(first == 0);
        CHECK(second % workspace_alignment == 0);
        CHECK(third % workspace_alignment == 0);
        CHECK(second >= first + count * 12);
        CHECK(third >= second + count);
        CHECK(placed.bytes >= third + count * 8);
        CHECK(placed.bytes < count * 21 + 3 * workspace_alignment); // nothing is taken but the rounding up
    }
}

TEST_CASE("an empty buffer takes nothing") {
    ctxpar::carver carver(memory);
    CHECK(carver.take<double>(0) == static_cast<void*>(memory));
    CHECK(carver.bytes() == 0);
    CHECK(carver.take<double>(1) == static_cast<void*>(memory));
    CHECK(carver.bytes() == workspace_alignment);
}

TEST_CASE("sizes are 64-bit") {
    ctxpar::carver carver(nullptr);
    carver.take<float>(std::int64_t{3} << 30);
    CHECK(carver.bytes() == std::size_t{3} << 32);
}

TEST_CASE("a negative count is refused and names itself") {
    const auto [code, text] = refusal([] { ctxpar::carver(nullptr).take<float>(-5); });
    CHECK(code == "workspace");
    CHECK(text.find("-5") != std::string::npos);
}

TEST_CASE("a workspace that does not serve is refused with both sizes") {
    const auto check = [](void* data, std::size_t bytes, std::size_t needed) {
        return refusal([&] { ctxpar::check_workspace({data, bytes}, needed, "the decoder"); });
    };
    CHECK(check(memory, 512, 512).first == "");
    CHECK(check(memory, 513, 512).first == "");
    CHECK(check(nullptr, 0, 0).first == ""); // nothing needed, nothing lent

    const auto null = check(nullptr, 1000, 512);
    CHECK(null.first == "workspace");
    CHECK(null.second.find("null") != std::string::npos);

    const auto small = check(memory, 511, 512);
    CHECK(small.first == "workspace");
    CHECK(small.second.find("the decoder") != std::string::npos);
    CHECK(small.second.find("512") != std::string::npos);
    CHECK(small.second.find("511") != std::string::npos);

    for (const std::size_t shift : {1, 16, 128, 255}) {
        const auto crooked = check(memory + shift, 1024, 512);
        CHECK(crooked.first == "workspace");
        CHECK(crooked.second.find("256") != std::string::npos);
    }
    CHECK(check(memory + 256, 1024, 512).first == "");
}
