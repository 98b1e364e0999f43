// The gather of context worked by hand.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/gather.hpp>

namespace {

using ctxpar::context_span;
using ctxpar::gather_law;
using ctxpar::ownership;
using ctxpar::planned_chunk;
using numbers = std::vector<std::int64_t>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

// All chunks: spans (request,start,length), R and the rows of every rank, and the index.
std::string text_of(const gather_law& gather, const numbers& contexts, bool with_index = true) {
    std::string text;
    for (const planned_chunk& chunk : ctxpar::plan_gather(gather, contexts)) {
        text += text.empty() ? "" : "; ";
        for (const context_span& span : chunk.spans)
            text += "(" + std::to_string(span.request) + "," + std::to_string(span.start) + "," +
                    std::to_string(span.length) + ")";
        text += " R" + std::to_string(chunk.rows_per_rank);
        if (!with_index) continue;
        text += ":";
        for (const std::int64_t row : ctxpar::gathered_index(gather, chunk)) text += " " + std::to_string(row);
    }
    return text;
}

} // namespace

TEST_CASE("gathers worked by hand") {
    struct example {
        std::int64_t ranks, interleave;
        numbers contexts;
        std::int64_t workspace;
        const char* text;
    };
    const std::vector<example> examples = {
        {2,
         1,
         {6, 3},
         4,
         "(0,0,4) R2: 0 2 1 3; "
         "(0,4,2)(1,0,2) R2: 0 2 1 3; "
         "(1,2,1) R1: 0"},
        {2,
         1,
         {6, 3},
         8,
         "(0,0,6)(1,0,2) R4: 0 4 1 5 2 6 3 7; "
         "(1,2,1) R1: 0"},
        {2,
         2,
         {10, 3},
         8,
         "(0,0,8) R4: 0 1 4 5 2 3 6 7; "
         "(0,8,2)(1,0,3) R4: 0 1 2 3 6"},
        {2, 2, {10, 3}, 16, "(0,0,10)(1,0,3) R8: 0 1 8 9 2 3 10 11 4 5 6 7 14"},
        {3,
         1,
         {7, 0, 5},
         6,
         "(0,0,6) R2: 0 2 4 1 3 5; "
         "(0,6,1)(2,0,3) R2: 0 1 3 5; "
         "(2,3,2) R1: 0 1"},
        {4,
         1,
         {9, 2, 5},
         8,
         "(0,0,8) R2: 0 2 4 6 1 3 5 7; "
         "(0,8,1)(1,0,2) R2: 0 1 3; "
         "(2,0,5) R2: 0 2 4 6 1"},
        {4, 1, {9, 2, 5}, 32, "(0,0,9)(1,0,2)(2,0,5) R6: 0 6 12 18 1 7 13 19 2 3 9 4 10 16 22 5"},
        {2,
         4,
         {9, 5},
         18,
         "(0,0,9) R8: 0 1 2 3 8 9 10 11 4; "
         "(1,0,5) R4: 0 1 2 3 4"},
        {4, 4, {25}, 32, "(0,0,25) R8: 0 1 2 3 8 9 10 11 16 17 18 19 24 25 26 27 4 5 6 7 12 13 14 15 20"}};
    for (const example& e : examples)
        CHECK(text_of(ctxpar::make_gather({e.ranks, e.interleave}, e.workspace), e.contexts) == e.text);
}

TEST_CASE("spans of longer contexts worked by hand") {
    const auto spans = [](const ownership& law, std::int64_t workspace, const numbers& contexts) {
        return text_of(ctxpar::make_gather(law, workspace), contexts, false);
    };
    CHECK(spans({4, 64}, 320, {1000}) == "(0,0,256) R64; (0,256,256) R64; (0,512,256) R64; (0,768,232) R64");
    CHECK(spans({2, 64}, 1024, {3000, 200, 200}) ==
          "(0,0,1024) R512; (0,1024,1024) R512; (0,2048,952) R512; (1,0,200)(2,0,200) R256");
    CHECK(spans({1, 16}, 1024, {37, 1000, 5}) == "(0,0,37)(1,0,976) R1024; (1,976,24)(2,0,5) R48");
    CHECK(spans({2, 1}, 8, {0, 0}) == "");
}

TEST_CASE("each chunk has its own local lengths") {
    CHECK(text_of(ctxpar::make_gather({2, 1}, 4), {11}) ==
          "(0,0,4) R2: 0 2 1 3; (0,4,4) R2: 0 2 1 3; (0,8,3) R2: 0 2 1");
    const ownership law{2, 1};
    for (const std::int64_t rank : {0, 1}) {
        numbers local;
        for (const planned_chunk& chunk : ctxpar::plan_gather(ctxpar::make_gather(law, 4), numbers{11}))
            for (const context_span& span : chunk.spans)
                local.push_back(law.local_len(span.start + span.length, rank) - law.local_len(span.start, rank));
        CHECK(local == (rank == 0 ? numbers{2, 2, 2} : numbers{2, 2, 1}));
    }
}

TEST_CASE("a pad between two requests is never named") {
    CHECK(text_of(ctxpar::make_gather({2, 1}, 8), {5, 2}) == "(0,0,5)(1,0,2) R4: 0 4 1 5 2 3 7");
    CHECK(text_of(ctxpar::make_gather({4, 2}, 8), {3}) == "(0,0,3) R2: 0 1 2");
}

TEST_CASE("a workspace that the ranks do not divide is rounded down") {
    const std::vector<std::pair<std::int64_t, std::int64_t>> due = {
        {21'845, 2730}, {13'107, 1638}, {10'922, 1365}, {9362, 1170}};
    for (const auto& [workspace, rows] : due) {
        const gather_law gather = ctxpar::make_gather({8, 1}, workspace);
        const std::vector<planned_chunk> chunks = ctxpar::plan_gather(gather, numbers{30'000});
        CHECK(chunks[0].rows_per_rank == rows);
        CHECK(chunks[0].spans[0].length == 8 * rows);
        CHECK(chunks[1].spans[0].start == 8 * rows);
        CHECK(gather.workspace_rows() == 8 * rows);
    }
}

TEST_CASE("no context, however long, needs more than the workspace") {
    const gather_law gather = ctxpar::make_gather({3, 2}, 65'536);
    CHECK(gather.workspace_rows() == 65'532);
    constexpr std::int64_t row_bytes = 576 * 2;
    for (const numbers& contexts : {numbers{10'000'000}, numbers{65'533, 65'531}, numbers{1, 1'000'000, 1}})
        for (const planned_chunk& chunk : ctxpar::plan_gather(gather, contexts))
            CHECK(3 * chunk.rows_per_rank * row_bytes <= 75'497'472);
}

TEST_CASE("contexts and workspaces past 32 bits") {
    const std::int64_t context = (std::int64_t{1} << 40) + 3;
    const gather_law gather = ctxpar::make_gather({8, 64}, std::int64_t{1} << 39);
    const std::vector<planned_chunk> chunks = ctxpar::plan_gather(gather, numbers{context});
    REQUIRE(chunks.size() == 3);
    CHECK(chunks[1].spans[0].start == std::int64_t{1} << 39);
    CHECK(chunks[1].rows_per_rank == std::int64_t{1} << 36);
    CHECK(gather.gathered_row(chunks[1].spans[0], (std::int64_t{1} << 39) - 1, chunks[1].rows_per_rank) ==
          (std::int64_t{1} << 39) - 1);
    CHECK(chunks[2].spans[0].length == 3);
    CHECK(chunks[2].rows_per_rank == 64);

    const gather_law widest = ctxpar::make_gather({1, 1}, largest);
    CHECK(widest.workspace_rows() == largest);
    CHECK(text_of(widest, {largest, largest}, false) ==
          "(0,0,9223372036854775807) R9223372036854775807; (1,0,9223372036854775807) R9223372036854775807");
    const gather_law one_round = ctxpar::make_gather({2, largest / 2}, largest);
    CHECK(one_round.workspace_rows() == largest - 1);
    CHECK(text_of(one_round, {largest}, false) ==
          "(0,0,9223372036854775806) R4611686018427387903; (0,9223372036854775806,1) R4611686018427387903");
}
