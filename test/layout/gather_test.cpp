// The gather of context against ranks that hold dealt tokens: what they send, and where each token then lies.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/gather.hpp>

namespace {

using ctxpar::context_range;
using ctxpar::context_span;
using ctxpar::gather_law;
using ctxpar::ownership;
using ctxpar::planned_chunk;
using numbers = std::vector<std::int64_t>;
using ranges = std::vector<context_range>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

// A span without its row: request, start, length.
struct piece {
    std::int64_t request, start, length;
    friend bool operator==(const piece&, const piece&) = default;
};
using pieces = std::vector<piece>;

pieces pieces_of(const std::vector<context_span>& spans) {
    pieces result;
    for (const context_span& span : spans) result.push_back({span.request, span.start, span.length});
    return result;
}

ranges from_zero(const numbers& lengths) {
    ranges result;
    for (const std::int64_t length : lengths) result.push_back({0, length});
    return result;
}

// The chunks as rounds of U tokens taken one after another, as many a chunk as the workspace has room for.
std::vector<pieces> plain_chunks(std::int64_t unit, std::int64_t workspace, const ranges& contexts) {
    std::vector<pieces> chunks;
    std::int64_t room = 0;
    for (std::size_t r = 0; r < contexts.size(); ++r) {
        for (std::int64_t start = contexts[r].begin; start < contexts[r].end; start += unit) {
            if (room < unit) {
                chunks.emplace_back();
                room = workspace;
            }
            room -= unit;
            const std::int64_t length = std::min(unit, contexts[r].end - start);
            pieces& chunk = chunks.back();
            if (!chunk.empty() && chunk.back().request == static_cast<std::int64_t>(r)) {
                chunk.back().length += length;
            } else {
                chunk.push_back({static_cast<std::int64_t>(r), start, length});
            }
        }
    }
    return chunks;
}

// All chunks of a gather, one after another from their cursors.
std::vector<planned_chunk> walk(const gather_law& gather, const ranges& contexts) {
    std::vector<planned_chunk> all;
    const auto requests = static_cast<std::int64_t>(contexts.size());
    ctxpar::gather_cursor at;
    for (;;) {
        planned_chunk planned;
        const ctxpar::gather_chunk found = gather.chunk(
            at, requests, [&](std::int64_t r) { return contexts[static_cast<std::size_t>(r)]; },
            [&](const context_span& span) { planned.spans.push_back(span); });
        REQUIRE((found.rows_per_rank == 0) == planned.spans.empty());
        if (planned.spans.empty()) return all;
        REQUIRE(found.first_request == planned.spans.front().request);
        REQUIRE(found.last_request == planned.spans.back().request);
        planned.rows_per_rank = found.rows_per_rank;
        all.push_back(std::move(planned));
        at = found.next;
    }
}

// A token of a request; the request -1 is a pad.
using token_id = std::pair<std::int64_t, std::int64_t>;

// What rank `rank` sends for one chunk: of each span the tokens that were dealt to it, then pads up to a multiple of I
// that suffices for every rank.
std::vector<token_id> rows_to_send(const ownership& law, std::int64_t rank, const pieces& spans) {
    std::vector<token_id> rows;
    for (const piece& span : spans) {
        numbers held(static_cast<std::size_t>(law.ranks), 0);
        std::int64_t turn = 0, given = 0;
        const std::size_t before = rows.size();
        for (std::int64_t position = 0; position < span.start + span.length; ++position) {
            if (given == law.interleave) {
                given = 0;
                turn = turn + 1 == law.ranks ? 0 : turn + 1;
            }
            ++given;
            if (position < span.start) continue;
            ++held[static_cast<std::size_t>(turn)];
            if (turn == rank) rows.emplace_back(span.request, position);
        }
        std::int64_t needed = *std::max_element(held.begin(), held.end());
        while (needed % law.interleave != 0) ++needed;
        rows.resize(before + static_cast<std::size_t>(needed), {-1, -1});
    }
    return rows;
}

// Counts where a chunk, sent by every rank and gathered, differs from its tokens in order.
int faults_of(const gather_law& gather, const planned_chunk& chunk) {
    const pieces spans = pieces_of(chunk.spans);
    std::vector<token_id> gathered;
    int wrong = 0;
    for (std::int64_t rank = 0; rank < gather.law.ranks; ++rank) {
        const std::vector<token_id> rows = rows_to_send(gather.law, rank, spans);
        wrong += static_cast<std::int64_t>(rows.size()) != chunk.rows_per_rank;
        gathered.insert(gathered.end(), rows.begin(), rows.end());
    }
    wrong += static_cast<std::int64_t>(gathered.size()) > gather.workspace_rows();

    const numbers index = ctxpar::gathered_index(gather, chunk);
    std::size_t at = 0, real = 0;
    for (const context_span& span : chunk.spans) {
        for (std::int64_t t = 0; t < span.length; ++t, ++at) {
            if (at >= index.size() || index[at] < 0 || index[at] >= static_cast<std::int64_t>(gathered.size()))
                return 1000;
            const std::int64_t row = gather.gathered_row(span, t, chunk.rows_per_rank);
            const std::int64_t interleave = gather.law.interleave;
            const std::int64_t page = gather.gathered_page(span, t / interleave, chunk.rows_per_rank);
            wrong += row != index[at];
            wrong += page * interleave + t % interleave != row;
            wrong += gathered[static_cast<std::size_t>(row)] != token_id{span.request, span.start + t};
        }
    }
    // Tokens are told apart, so an index that finds each in its place names no row twice; what is left are pads.
    for (const token_id& token : gathered) real += token.first >= 0;
    wrong += at != index.size() || real != index.size();
    return wrong;
}

template <class Body>
void for_each_gather(Body body) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
        for (const std::int64_t interleave : {1, 2, 4, 5, 16}) {
            const ownership law{ranks, interleave};
            const std::int64_t unit = ranks * interleave;
            for (const std::int64_t workspace :
                 {unit, unit + unit / 2, 2 * unit, 3 * unit + 1, 7 * unit, 1000 * unit}) {
                CAPTURE(ranks);
                CAPTURE(interleave);
                CAPTURE(workspace);
                body(ctxpar::make_gather(law, workspace), workspace);
            }
        }
    }
}

const std::vector<numbers>& ragged_contexts() {
    static const std::vector<numbers> all = {{},
                                             {0},
                                             {1},
                                             {7, 0, 5},
                                             {0, 0, 3, 0},
                                             {129, 1, 1},
                                             {25, 64, 40},
                                             {11, 300},
                                             {1, 2, 3, 4, 5, 6, 7},
                                             {0, 200, 0, 0, 31}};
    return all;
}

// The config_error that `body` throws; its code is "" without one.
template <class Body>
ctxpar::config_error refusal(Body body) {
    try {
        body();
    } catch (const ctxpar::config_error& problem) {
        return problem;
    }
    return {"", ""};
}

bool says(const ctxpar::config_error& problem, const std::string& text) {
    return std::string(problem.what()).find(text) != std::string::npos;
}

} // namespace

TEST_CASE("chunks are rounds of ownership taken in order, as many as the workspace holds") {
    for_each_gather([](const gather_law& gather, std::int64_t workspace) {
        for (const numbers& contexts : ragged_contexts()) {
            std::vector<pieces> planned;
            for (const planned_chunk& chunk : ctxpar::plan_gather(gather, contexts))
                planned.push_back(pieces_of(chunk.spans));
            CHECK(planned == plain_chunks(gather.law.unit(), workspace, from_zero(contexts)));
        }
    });
}

TEST_CASE("spans cover every context once in order, from multiples of a round") {
    for_each_gather([](const gather_law& gather, std::int64_t workspace) {
        for (const numbers& contexts : ragged_contexts()) {
            numbers reached(contexts.size(), 0);
            std::int64_t latest = 0;
            for (const planned_chunk& chunk : ctxpar::plan_gather(gather, contexts)) {
                REQUIRE(chunk.rows_per_rank > 0);
                REQUIRE(chunk.rows_per_rank * gather.law.ranks <= workspace);
                std::int64_t row = 0;
                for (const context_span& span : chunk.spans) {
                    const auto r = static_cast<std::size_t>(span.request);
                    REQUIRE(span.request >= latest);
                    REQUIRE(span.start == reached[r]);
                    REQUIRE(span.start % gather.law.unit() == 0);
                    REQUIRE(span.length > 0);
                    REQUIRE(span.row == row);
                    row += gather.rows_for(span.length);
                    reached[r] += span.length;
                    latest = span.request;
                }
                REQUIRE(row == chunk.rows_per_rank);
            }
            CHECK(reached == contexts);
        }
    });
}

TEST_CASE("gathered rows of every rank come out in token order, and pads are never named") {
    for_each_gather([](const gather_law& gather, std::int64_t) {
        for (const numbers& contexts : ragged_contexts()) {
            int wrong = 0;
            for (const planned_chunk& chunk : ctxpar::plan_gather(gather, contexts)) wrong += faults_of(gather, chunk);
            CHECK(wrong == 0);
        }
    });
}

TEST_CASE("ranges that begin at a later round are gathered from there") {
    for_each_gather([](const gather_law& gather, std::int64_t workspace) {
        const std::int64_t unit = gather.law.unit();
        const ranges contexts = {{unit, 3 * unit + 1},     {0, 5},        {2 * unit, 2 * unit},
                                 {4 * unit, 4 * unit + 1}, {3 * unit, 2}, {unit, 6 * unit}};
        std::vector<pieces> planned;
        int wrong = 0;
        for (const planned_chunk& chunk : walk(gather, contexts)) {
            planned.push_back(pieces_of(chunk.spans));
            wrong += faults_of(gather, chunk);
        }
        CHECK(planned == plain_chunks(unit, workspace, contexts));
        CHECK(wrong == 0);
    });
}

TEST_CASE("a cursor finds the chunks of the whole plan") {
    for_each_gather([](const gather_law& gather, std::int64_t) {
        for (const numbers& contexts : ragged_contexts()) {
            const std::vector<planned_chunk> plan = ctxpar::plan_gather(gather, contexts);
            const std::vector<planned_chunk> walked = walk(gather, from_zero(contexts));
            REQUIRE(plan.size() == walked.size());
            for (std::size_t i = 0; i < plan.size(); ++i) {
                REQUIRE(pieces_of(plan[i].spans) == pieces_of(walked[i].spans));
                REQUIRE(plan[i].rows_per_rank == walked[i].rows_per_rank);
                REQUIRE(ctxpar::gathered_index(gather, plan[i]) == ctxpar::gathered_index(gather, walked[i]));
            }
        }
    });
}

TEST_CASE("a cursor at the end stays there") {
    const gather_law gather = ctxpar::make_gather({2, 1}, 4);
    const auto range_of = [](std::int64_t) { return context_range{0, 4}; };
    const auto found = gather.chunk({2, 0}, 2, range_of, [](const context_span&) { FAIL("there is no span"); });
    CHECK(found.rows_per_rank == 0);
    CHECK(found.next.request == 2);
    CHECK(found.next.taken == 0);
}

// The law is usable in constant expressions: the sum of the rows of all chunks.
constexpr std::int64_t rows_in_all(const gather_law& gather) {
    const std::int64_t contexts[] = {6, 0, 3};
    std::int64_t rows = 0;
    for (ctxpar::gather_cursor at;;) {
        const ctxpar::gather_chunk found = gather.chunk(
            at, 3,
            [&](std::int64_t r) {
                return context_range{0, contexts[r]};
            },
            [](const context_span&) {});
        if (found.rows_per_rank == 0) return rows;
        rows += found.rows_per_rank;
        at = found.next;
    }
}
static_assert(rows_in_all({{2, 1}, 2}) == 5 && rows_in_all({{2, 4}, 1}) == 8);
static_assert(gather_law{{2, 4}, 2}.workspace_rows() == 16 && gather_law{{2, 4}, 2}.rows_for(9) == 8);
static_assert(gather_law{{2, 2}, 4}.gathered_row({1, 0, 3, 6}, 2, 8) == 14);
static_assert(gather_law{{2, 2}, 4}.gathered_page({1, 0, 3, 6}, 1, 8) == 7);

TEST_CASE("a workspace of less than a round is refused with its numbers") {
    for (const std::int64_t workspace : {std::int64_t{15}, std::int64_t{0}, std::int64_t{-1}, -largest}) {
        const ctxpar::config_error problem = refusal([&] { ctxpar::make_gather({4, 4}, workspace); });
        CHECK(problem.code() == "workspace");
        CHECK(says(problem, "a workspace of " + std::to_string(workspace) + " rows"));
        CHECK(says(problem, "4 ranks and an interleave of 4"));
        CHECK(says(problem, "at least 16"));
    }
    CHECK(ctxpar::make_gather({4, 4}, 16).units == 1);
    CHECK(ctxpar::make_gather({4, 4}, 31).units == 1);
}

TEST_CASE("a negative context is refused") {
    const gather_law gather = ctxpar::make_gather({2, 1}, 8);
    const ctxpar::config_error problem = refusal([&] { ctxpar::plan_gather(gather, numbers{9, -2}); });
    CHECK(problem.code() == "length");
    CHECK(says(problem, "-2"));
}
