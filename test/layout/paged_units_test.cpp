// Blocks in their other units: per rank, virtual blocks, prefixes that can be shared, kernel blocks, strict mode.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/paged.hpp>

namespace {

using ctxpar::block_table;
using ctxpar::ownership;
using numbers = std::vector<std::int64_t>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

// The config_error that `body` throws; its code is "" without one.
template <class Body>
ctxpar::config_error refusal(Body body) {
    try {
        body();
    } catch (const ctxpar::config_error& problem) {
        return problem;
    }
    return ctxpar::config_error("", "");
}

bool names(const ctxpar::config_error& problem, const std::string& text) {
    return std::string(problem.what()).find(text) != std::string::npos;
}

} // namespace

TEST_CASE("blocks of every rank and the width they need") {
    struct example {
        std::int64_t block_size;
        ownership law;
        std::int64_t length;
        numbers blocks;
    };
    const std::vector<example> examples = {
        {16, {4, 4}, 0, {0, 0, 0, 0}},    {16, {4, 4}, 7, {1, 1, 0, 0}},
        {16, {4, 4}, 25, {1, 1, 1, 1}},   {16, {4, 4}, 100, {2, 2, 2, 2}},
        {16, {2, 5}, 32, {2, 1}},         {16, {2, 5}, 33, {2, 1}},
        {16, {2, 5}, 64, {3, 2}},         {16, {2, 5}, 96, {4, 3}},
        {16, {2, 5}, 100, {4, 4}},        {16, {2, 32}, 32, {2, 0}},
        {16, {4, 1}, 16, {1, 1, 1, 1}},   {16, {4, 16}, 16, {1, 0, 0, 0}},
        {16, {4, 16}, 40, {1, 1, 1, 0}},  {16, {4, 16}, 1000, {16, 16, 16, 15}},
        {64, {4, 64}, 256, {1, 1, 1, 1}}, {64, {4, 64}, 257, {2, 1, 1, 1}},
        {16, {2, 1}, 64, {2, 2}},         {16, {2, 1}, 65, {3, 2}},
        {4, {4, 1}, 17, {2, 1, 1, 1}},
    };
    for (const example& e : examples) {
        CAPTURE(e.block_size);
        CAPTURE(e.law.ranks);
        CAPTURE(e.law.interleave);
        CAPTURE(e.length);
        CHECK(ctxpar::blocks_per_rank(e.law, e.block_size, e.length) == e.blocks);
        CHECK(ctxpar::table_width(e.law, e.block_size, e.length) ==
              *std::max_element(e.blocks.begin(), e.blocks.end()));
    }
    CHECK(refusal([] { ctxpar::blocks_per_rank({2, 1}, 0, 5); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::blocks_per_rank({2, 1}, 4, -5); }).code() == "length");
    CHECK(refusal([] { ctxpar::table_width({2, 1}, -4, 5); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::table_width({2, 1}, 4, -1); }).code() == "length");
}

TEST_CASE("the width holds every rank, and equals the virtual blocks where the interleave divides the block") {
    for (const std::int64_t block_size : {1, 4, 6, 16})
        for (const std::int64_t interleave : {1, 2, 3, 4, 5, 16, 64})
            for (const std::int64_t ranks : {1, 2, 3, 8})
                for (std::int64_t length = 0; length <= 300; ++length) {
                    const ownership law{ranks, interleave};
                    const numbers blocks = ctxpar::blocks_per_rank(law, block_size, length);
                    for (std::int64_t rank = 0; rank < ranks; ++rank) { // count blocks by filling them
                        std::int64_t opened = 0;
                        std::int64_t room = 0;
                        for (std::int64_t position = 0; position < length; ++position) {
                            if (law.owner(position) != rank) continue;
                            if (room == 0) {
                                ++opened;
                                room = block_size;
                            }
                            --room;
                        }
                        REQUIRE(blocks[static_cast<std::size_t>(rank)] == opened);
                    }
                    const std::int64_t width = ctxpar::table_width(law, block_size, length);
                    REQUIRE(width == *std::max_element(blocks.begin(), blocks.end()));
                    if (block_size % interleave == 0)
                        REQUIRE(width == ctxpar::blocks_for(length, ctxpar::virtual_block_size(law, block_size)));
                }
}

TEST_CASE("prefix units and hits worked by hand") {
    const auto hits = [](const ownership& law, std::int64_t block_size, const numbers& prefixes) {
        numbers result;
        for (const std::int64_t prefix : prefixes) result.push_back(ctxpar::prefix_hit(law, block_size, prefix));
        return result;
    };
    CHECK(ctxpar::prefix_unit({4, 1}, 16) == 64);
    CHECK(hits({4, 1}, 16, {63, 64, 100, 127, 128, 200, 1000}) == numbers{0, 64, 64, 64, 128, 192, 960});
    CHECK(ctxpar::prefix_unit({2, 5}, 16) == 160);
    CHECK(hits({2, 5}, 16, {128, 160, 200, 1000}) == numbers{0, 160, 160, 960});
    CHECK(ctxpar::prefix_unit({2, 32}, 16) == 64);
    CHECK(hits({2, 32}, 16, {63, 64, 200}) == numbers{0, 64, 192});
    CHECK(ctxpar::prefix_unit({4, 128}, 128) == 512);
    CHECK(hits({4, 128}, 128, {200, 1000}) == numbers{0, 512});
    CHECK(ctxpar::prefix_hit({2, 1}, 16, 150) == 128);
    CHECK(ctxpar::prefix_hit({2, 16}, 16, 150) == 128);
    CHECK(ctxpar::prefix_unit({2, 3}, 16) == 96);
    CHECK(ctxpar::prefix_hit({2, 3}, 16, 150) == 96);
    CHECK(ctxpar::virtual_block_size({4, 64}, 64) == 256);
    CHECK(ctxpar::virtual_block_size({2, 1}, 16) == 32);
    static_assert(ctxpar::prefix_unit({2, 5}, 16) == 160 && ctxpar::virtual_block_size({4, 1}, 16) == 64);
    static_assert(ctxpar::prefix_hit({2, 5}, 16, 1000) == 960 && ctxpar::blocks_for(17, 16) == 2);
}

TEST_CASE("the prefix unit is the first length at which every rank has whole blocks and whole groups") {
    for (const std::int64_t block_size : {1, 2, 4, 6, 16})
        for (const std::int64_t interleave : {1, 2, 3, 4, 5, 16})
            for (const std::int64_t ranks : {1, 2, 3, 4}) {
                const ownership law{ranks, interleave};
                std::int64_t length = 1;
                const auto shareable = [&] {
                    for (std::int64_t rank = 0; rank < ranks; ++rank) {
                        std::int64_t held = 0;
                        for (std::int64_t position = 0; position < length; ++position)
                            held += law.owner(position) == rank;
                        if (held % block_size != 0 || held % interleave != 0 || held * ranks != length) return false;
                    }
                    return true;
                };
                while (!shareable()) ++length;
                CAPTURE(block_size);
                CAPTURE(interleave);
                CHECK(ctxpar::prefix_unit(law, block_size) == length);
            }
}

TEST_CASE("units that do not fit 63 bits are refused") {
    CHECK(ctxpar::virtual_block_size({2, 1}, largest / 2) == largest - 1);
    CHECK(refusal([] { ctxpar::virtual_block_size({2, 1}, largest / 2 + 1); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::virtual_block_size({2, 1}, 0); }).code() == "block_size");
    CHECK(ctxpar::prefix_unit({1, largest}, 1) == largest);
    CHECK(ctxpar::prefix_unit({1, largest}, largest) == largest);
    CHECK(refusal([] { ctxpar::prefix_unit({1, largest}, 2); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::prefix_unit({4, 1}, largest / 4 + 1); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::prefix_unit({4, 1}, -1); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::prefix_hit({4, 1}, 16, -1); }).code() == "length");
}

TEST_CASE("kernel blocks split a block into consecutive ids and leave the slots alone") {
    CHECK(ctxpar::kernel_table(numbers{5, 9}, 32, 16) == numbers{10, 11, 18, 19});
    CHECK(ctxpar::kernel_table(numbers{3}, 4, 2) == numbers{6, 7});
    CHECK(ctxpar::kernel_table(numbers{3}, 4, 4) == numbers{3});
    CHECK(ctxpar::kernel_table(numbers{}, 4, 2).empty());
    const numbers ids = {5, 9, 0};
    const block_table manager = ctxpar::table_2d(ids.data(), 1, 3, 12);
    for (const std::int64_t kernel : {1, 2, 3, 4, 6, 12}) {
        const numbers split = ctxpar::kernel_table(ids, 12, kernel);
        const block_table small = ctxpar::table_2d(split.data(), 1, static_cast<std::int64_t>(split.size()), kernel);
        for (std::int64_t index = 0; index < 36; ++index) CHECK(small.slot(0, index) == manager.slot(0, index));
    }
    const auto uneven = refusal([] { ctxpar::kernel_table(numbers{5}, 12, 5); });
    CHECK(uneven.code() == "kernel_block");
    CHECK(uneven.legal() == numbers{1, 2, 3, 4, 6, 12});
    CHECK(names(uneven, "1, 2, 3, 4, 6, 12"));
    CHECK(refusal([] { ctxpar::kernel_table(numbers{5}, 16, 0); }).code() == "kernel_block");
    CHECK(refusal([] { ctxpar::kernel_table(numbers{5}, 16, 32); }).code() == "kernel_block");
    CHECK(refusal([] { ctxpar::kernel_table(numbers{5}, 0, 1); }).code() == "block_size");
    CHECK(refusal([] { ctxpar::kernel_table(numbers{5, -1}, 16, 8); }).code() == "table");
    CHECK(ctxpar::kernel_table(numbers{largest / 2}, 2, 1) == numbers{largest - 1, largest});
    CHECK(refusal([] { ctxpar::kernel_table(numbers{largest / 2 + 1}, 2, 1); }).code() == "table");
}

TEST_CASE("strict mode takes interleaves that divide the block and names them") {
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 2}, 4); }).code() == "");
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 4}, 4); }).code() == "");
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 8}, 4); }).code() == "interleave_divides_block");
    const auto problem = refusal([] { ctxpar::check_interleave_divides_block({2, 3}, 16); });
    CHECK(problem.code() == "interleave_divides_block");
    CHECK(problem.legal() == numbers{1, 2, 4, 8, 16});
    for (const std::int64_t legal : problem.legal())
        CHECK(refusal([&] { ctxpar::check_interleave_divides_block({2, legal}, 16); }).code() == "");
    // Sizes with no short list of divisors are still refused, without one.
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 3}, largest - 1); }).legal().empty());
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 17}, 735'134'400); }).code() == "");
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 19}, 735'134'400); }).legal().empty());
    CHECK(refusal([] { ctxpar::check_interleave_divides_block({2, 3}, 0); }).code() == "block_size");
}
