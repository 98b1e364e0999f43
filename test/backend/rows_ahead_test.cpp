// Asking for rows ahead: which lines, in which order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <ctxpar/backend/cpu/rows_ahead.hpp>
#include <ctxpar/core/numeric.hpp>

using namespace ctxpar;

TEST_CASE("Every line of what is ahead is asked for once, in all places at a time") {
    constexpr std::int64_t places = cpu::stream_ahead::places;
    for (const auto& [of_keys, of_values, bytes] :
         {std::tuple{8, 8, 128}, {12, 4, 256}, {4, 0, 64}, {0, 4, 192}, {0, 0, 64}}) {
        const int keys = of_keys;
        const int values = of_values;
        CAPTURE(keys);
        CAPTURE(values);
        std::vector<char> memory(static_cast<std::size_t>((keys + values) * bytes));
        std::vector<const char*> pieces;
        for (int i = 0; i < keys + values; ++i) pieces.push_back(memory.data() + i * bytes);
        cpu::stream_ahead ahead({pieces.data(), keys / places, bytes}, {pieces.data() + keys, values / places, bytes});
        std::map<std::ptrdiff_t, int> asked;
        std::vector<std::ptrdiff_t> lines;
        const auto note = [&](const char* at) { lines.push_back(at - memory.data()); };
        for (std::int64_t round = 0; ahead.go_on(1, note); ++round) {
            REQUIRE(lines.size() == static_cast<std::size_t>(places));
            for (const std::ptrdiff_t at : lines) {
                ++asked[at];
                // Keys and values take turns as long as there are both.
                if (keys == values) CHECK((at < keys * bytes) == (round / cpu::stream_ahead::lines % 2 == 0));
            }
            if (keys >= places) CHECK(std::is_sorted(lines.begin(), lines.end()));
            lines.clear();
        }
        CHECK(asked.size() == memory.size() / 64);
        for (const auto& [at, times] : asked) {
            CHECK(at % 64 == 0);
            CHECK(times == 1);
        }
    }
}

TEST_CASE("Many rounds at once ask for what single ones ask for") {
    constexpr std::int64_t places = cpu::stream_ahead::places;
    constexpr std::int64_t bytes = 320;
    constexpr std::int64_t each = 3;
    std::vector<char> memory(2 * places * each * bytes);
    std::vector<const char*> pieces;
    for (std::int64_t i = 0; i < 2 * places * each; ++i) pieces.push_back(memory.data() + i * bytes);
    for (const std::int64_t rounds : {1, 3, 4, 7, 100}) {
        CAPTURE(rounds);
        cpu::stream_ahead ahead({pieces.data(), each, bytes}, {pieces.data() + places * each, each, bytes});
        std::vector<std::ptrdiff_t> lines;
        while (ahead.go_on(rounds, [&](const char* at) { lines.push_back(at - memory.data()); })) {
        }
        std::vector<std::ptrdiff_t> expected;
        cpu::stream_ahead alone({pieces.data(), each, bytes}, {pieces.data() + places * each, each, bytes});
        while (alone.go_on(1, [&](const char* at) { expected.push_back(at - memory.data()); })) {
        }
        CHECK(lines == expected);
        CHECK(lines.size() == memory.size() / cpu::stream_ahead::line);
    }
}

TEST_CASE("The rows of all heads are listed once, as they lie in memory") {
    struct plane {
        std::int64_t token_stride;
        std::int64_t head_stride;
    };
    constexpr std::int64_t width = 64;
    constexpr std::int64_t heads = 3;
    constexpr std::int64_t tokens = 5;
    // Heads of a token touch; they lie apart; the tokens of a head touch.
    for (const plane& layout : {plane{heads * width, width}, {heads * 2 * width, 2 * width}, {width, tokens * width}}) {
        CAPTURE(layout.head_stride);
        std::vector<bf16> memory(2 * heads * tokens * width);
        std::vector<const bf16*> rows;
        std::set<const char*> expected;
        for (std::int64_t t = 0; t < tokens; ++t) {
            rows.push_back(memory.data() + t * layout.token_stride);
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t line = 0; line < width; line += 32)
                    expected.insert(reinterpret_cast<const char*>(rows.back() + h * layout.head_stride + line));
        }
        const char* list[heads * tokens + cpu::stream_ahead::places];
        const auto pieces = cpu::rows_ahead(layout, rows.data(), tokens, heads, width, list);
        std::set<const char*> listed;
        for (std::int64_t i = 0; i < pieces.each * cpu::stream_ahead::places; ++i) {
            if (i > 0) CHECK(list[i - 1] <= list[i]); // the last may be repeated
            for (std::int64_t at = 0; at < pieces.bytes; at += 64) listed.insert(list[i] + at);
        }
        CHECK(listed == expected);
    }
    const char* none[cpu::stream_ahead::places];
    const auto pieces =
        cpu::rows_ahead(plane{width, width}, static_cast<const bf16* const*>(nullptr), 0, 1, width, none);
    CHECK(pieces.each == 0);
}
