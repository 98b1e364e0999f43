// Re-sharding against tokens dealt one by one to the ranks of both layouts.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/reshard.hpp>

#include "counted_allocations.hpp"
#include "refusal.hpp"

namespace {

using ctxpar::ownership;
using ctxpar::reshard_law;
using ctxpar::reshard_run;
using ctxpar_test::refusal_of;
using ctxpar_test::says;
using numbers = std::vector<std::int64_t>;
using run_list = std::vector<reshard_run>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

std::size_t at(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

// Where a token lies in one layout.
struct holding {
    std::int64_t rank, local;
};

// The first `length` tokens dealt out: `interleave` of them to a rank, then the next rank's turn.
std::vector<holding> deal(const ownership& law, std::int64_t length) {
    std::vector<holding> all;
    numbers held(at(law.ranks), 0);
    std::int64_t rank = 0, given = 0;
    for (std::int64_t token = 0; token < length; ++token) {
        if (given == law.interleave) {
            given = 0;
            rank = rank + 1 == law.ranks ? 0 : rank + 1;
        }
        ++given;
        all.push_back({rank, held[at(rank)]++});
    }
    return all;
}

struct dealt {
    std::vector<holding> src, dst;
};

dealt deal_both(const reshard_law& law, std::int64_t length) {
    return {deal(law.from, length), deal(law.to, length)};
}

// A run and the tokens in it.
struct plain_run {
    reshard_run run;
    numbers tokens;
};

// Every token in turn goes to the latest run of its pair of ranks, or opens a new one where an index jumps.
std::vector<plain_run> plain_plan(const dealt& tokens, std::int64_t first, std::int64_t end) {
    std::vector<plain_run> all;
    std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> latest;
    for (std::int64_t token = first; token < end; ++token) {
        const holding src = tokens.src[at(token)], dst = tokens.dst[at(token)];
        const auto known = latest.find({src.rank, dst.rank});
        if (known != latest.end()) {
            plain_run& open = all[known->second];
            if (open.run.src_local + open.run.count == src.local && open.run.dst_local + open.run.count == dst.local) {
                ++open.run.count;
                open.tokens.push_back(token);
                continue;
            }
        }
        latest[{src.rank, dst.rank}] = all.size();
        all.push_back({{src.rank, src.local, dst.rank, dst.local, 1}, {token}});
    }
    return all;
}

run_list runs_of(const std::vector<plain_run>& plan) {
    run_list runs;
    for (const plain_run& each : plan) runs.push_back(each.run);
    return runs;
}

std::int64_t kept_of(const dealt& tokens, std::int64_t first, std::int64_t end) {
    std::int64_t kept = 0;
    for (std::int64_t token = first; token < end; ++token)
        kept += tokens.src[at(token)].rank == tokens.dst[at(token)].rank;
    return kept;
}

// Whether no run of a pair of ranks could take in another of the same pair.
bool maximal(const run_list& runs) {
    std::map<std::pair<std::int64_t, std::int64_t>, reshard_run> latest;
    for (const reshard_run& run : runs) {
        const auto known = latest.find({run.src_rank, run.dst_rank});
        if (known != latest.end()) {
            const reshard_run& before = known->second;
            if (before.src_local + before.count == run.src_local && before.dst_local + before.count == run.dst_local)
                return false;
        }
        latest[{run.src_rank, run.dst_rank}] = run;
    }
    return true;
}

constexpr std::int64_t ranks_tried[] = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr std::int64_t interleaves_tried[] = {1, 2, 3, 4, 16, 64};

template <class Body>
void for_each_law(const Body& body) {
    for (const std::int64_t from_ranks : ranks_tried)
        for (const std::int64_t to_ranks : ranks_tried)
            for (const std::int64_t from_interleave : interleaves_tried)
                for (const std::int64_t to_interleave : interleaves_tried) {
                    CAPTURE(from_ranks);
                    CAPTURE(from_interleave);
                    CAPTURE(to_ranks);
                    CAPTURE(to_interleave);
                    body(reshard_law{{from_ranks, from_interleave}, {to_ranks, to_interleave}});
                }
}

reshard_law inverse(const reshard_law& law) {
    return {law.to, law.from};
}

constexpr std::size_t row_bytes = 24;
using bytes = std::vector<unsigned char>;
using caches = std::vector<bytes>; // [rank] the rows of its tokens

// What the ranks hold of `rows`, a row a token.
caches hold(const ownership& law, const bytes& rows) {
    caches held(at(law.ranks));
    const auto length = static_cast<std::int64_t>(rows.size() / row_bytes);
    const std::vector<holding> places = deal(law, length);
    for (std::int64_t token = 0; token < length; ++token) {
        bytes& cache = held[at(places[at(token)].rank)];
        const auto row = rows.begin() + static_cast<std::ptrdiff_t>(at(token) * row_bytes);
        cache.insert(cache.end(), row, row + row_bytes);
    }
    return held;
}

void execute(const run_list& runs, const caches& from, caches& to) {
    for (const reshard_run& run : runs) {
        REQUIRE((at(run.src_rank) < from.size() && at(run.dst_rank) < to.size()));
        bytes& target = to[at(run.dst_rank)];
        const std::size_t needed = at(run.dst_local + run.count) * row_bytes;
        if (target.size() < needed) target.resize(needed, 0xEE);
        REQUIRE(at(run.src_local + run.count) * row_bytes <= from[at(run.src_rank)].size());
        std::memcpy(target.data() + at(run.dst_local) * row_bytes,
                    from[at(run.src_rank)].data() + at(run.src_local) * row_bytes, at(run.count) * row_bytes);
    }
}

bytes random_rows(std::int64_t tokens, std::mt19937& random) {
    bytes rows(at(tokens) * row_bytes);
    for (unsigned char& byte : rows) byte = static_cast<unsigned char>(random());
    return rows;
}

std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

} // namespace

TEST_CASE("re-sharding worked by hand") {
    struct example {
        reshard_law law;
        std::int64_t length;
        run_list runs;
        std::int64_t moved;
    };
    const std::vector<example> examples = {
        {{{1, 16}, {4, 16}},
         100,
         {{0, 0, 0, 0, 16},
          {0, 16, 1, 0, 16},
          {0, 32, 2, 0, 16},
          {0, 48, 3, 0, 16},
          {0, 64, 0, 16, 16},
          {0, 80, 1, 16, 16},
          {0, 96, 2, 16, 4}},
         68},
        {{{4, 4}, {2, 4}},
         25,
         {{0, 0, 0, 0, 4},
          {1, 0, 1, 0, 4},
          {2, 0, 0, 4, 4},
          {3, 0, 1, 4, 4},
          {0, 4, 0, 8, 4},
          {1, 4, 1, 8, 4},
          {2, 4, 0, 12, 1}},
         9},
        {{{2, 4}, {4, 2}},
         17,
         {{0, 0, 0, 0, 2},
          {0, 2, 1, 0, 2},
          {1, 0, 2, 0, 2},
          {1, 2, 3, 0, 2},
          {0, 4, 0, 2, 2},
          {0, 6, 1, 2, 2},
          {1, 4, 2, 2, 2},
          {1, 6, 3, 2, 2},
          {0, 8, 0, 4, 1}},
         12},
        {{{2, 1}, {2, 1}}, 6, {{0, 0, 0, 0, 3}, {1, 0, 1, 0, 3}}, 0},
        {{{1, 1}, {2, 1}},
         6,
         {{0, 0, 0, 0, 1}, {0, 1, 1, 0, 1}, {0, 2, 0, 1, 1}, {0, 3, 1, 1, 1}, {0, 4, 0, 2, 1}, {0, 5, 1, 2, 1}},
         3},
        {{{2, 1}, {1, 1}}, 0, {}, 0},
        {{{4, 16}, {8, 1}}, 1, {{0, 0, 0, 0, 1}}, 0},
        // Both chunks of ranks 0 and 1 end at token 2, and both ranks come back at token 6.
        {{{3, 2}, {5, 1}},
         8,
         {{0, 0, 0, 0, 1},
          {0, 1, 1, 0, 2},
          {1, 0, 2, 0, 1},
          {1, 1, 3, 0, 1},
          {2, 0, 4, 0, 1},
          {2, 1, 0, 1, 1},
          {0, 3, 2, 1, 1}},
         7},
    };
    for (const example& e : examples) {
        CAPTURE(e.length);
        CHECK(ctxpar::reshard_runs(e.law, 0, e.length) == e.runs);
        CHECK(e.law.moved(0, e.length) == e.moved);
        CHECK(e.law.kept(0, e.length) == e.length - e.moved);
    }
}

TEST_CASE("runs are those of tokens taken one by one, and counted without a list") {
    for_each_law([](const reshard_law& law) {
        const std::int64_t from_unit = law.from.unit(), to_unit = law.to.unit(), both = std::lcm(from_unit, to_unit);
        constexpr std::int64_t most = 900;
        const dealt tokens = deal_both(law, most);
        numbers lengths = {0, 1, 2, 5, 97, most, law.from.interleave, law.to.interleave};
        for (const std::int64_t edge : {from_unit, to_unit, both})
            for (const std::int64_t length : {edge - 1, edge, edge + 1}) lengths.push_back(length);
        for (const std::int64_t length : lengths) {
            if (length > most) continue;
            CAPTURE(length);
            const run_list runs = ctxpar::reshard_runs(law, 0, length);
            REQUIRE(runs == runs_of(plain_plan(tokens, 0, length)));
            REQUIRE(law.kept(0, length) == kept_of(tokens, 0, length));
            REQUIRE(law.moved(0, length) == length - kept_of(tokens, 0, length));
            const auto count = static_cast<std::int64_t>(runs.size());
            REQUIRE(count <= law.run_bound(0, length));
            REQUIRE(law.run_bound(0, length) <= 2 * count);
            const bool one_gap = from_unit - law.from.interleave == to_unit - law.to.interleave;
            if (!one_gap || law.same_layout()) REQUIRE(law.run_bound(0, length) == count);
        }
    });
}

TEST_CASE("runs of any range are those of its tokens alone") {
    std::mt19937 random(11);
    for_each_law([&](const reshard_law& law) {
        constexpr std::int64_t most = 700;
        const dealt tokens = deal_both(law, most);
        for (int repeat = 0; repeat < 4; ++repeat) {
            const std::int64_t first = draw(random, 0, most), end = draw(random, first, most);
            CAPTURE(first);
            CAPTURE(end);
            const run_list runs = ctxpar::reshard_runs(law, first, end);
            REQUIRE(runs == runs_of(plain_plan(tokens, first, end)));
            REQUIRE(law.kept(first, end) == kept_of(tokens, first, end));
            REQUIRE(law.moved(first, end) == end - first - law.kept(first, end));
            REQUIRE(static_cast<std::int64_t>(runs.size()) <= law.run_bound(first, end));
        }
    });
}

TEST_CASE("every token moves or stays exactly once, and no run could be longer") {
    std::mt19937 random(12);
    for (int repeat = 0; repeat < 300; ++repeat) {
        const reshard_law law{{draw(random, 1, 12), draw(random, 1, 40)}, {draw(random, 1, 12), draw(random, 1, 40)}};
        const std::int64_t length = draw(random, 0, 3000);
        CAPTURE(law.from.ranks);
        CAPTURE(law.from.interleave);
        CAPTURE(law.to.ranks);
        CAPTURE(law.to.interleave);
        CAPTURE(length);
        const run_list runs = ctxpar::reshard_runs(law, 0, length);
        std::vector<int> seen(at(length), 0);
        std::int64_t moved = 0, latest = -1;
        for (const reshard_run& run : runs) {
            REQUIRE(run.count > 0);
            const std::int64_t first = law.from.global(run.src_local, run.src_rank);
            REQUIRE(first > latest);
            latest = first;
            for (std::int64_t i = 0; i < run.count; ++i) {
                const std::int64_t token = law.from.global(run.src_local + i, run.src_rank);
                REQUIRE(token < length);
                REQUIRE(law.to.global(run.dst_local + i, run.dst_rank) == token);
                ++seen[at(token)];
            }
            moved += run.src_rank != run.dst_rank ? run.count : 0;
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
        CHECK(moved == law.moved(0, length));
        CHECK(length - moved == law.kept(0, length));
        CHECK(maximal(runs));
    }
}

TEST_CASE("a cache is what its ranks hold after a plan, and bit for bit the old one after its inverse") {
    std::mt19937 random(13);
    for (int repeat = 0; repeat < 300; ++repeat) {
        const reshard_law law{{draw(random, 1, 8), draw(random, 1, 20)}, {draw(random, 1, 8), draw(random, 1, 20)}};
        const bytes rows = random_rows(draw(random, 0, 900), random);
        const auto length = static_cast<std::int64_t>(rows.size() / row_bytes);
        const caches before = hold(law.from, rows);
        caches after(at(law.to.ranks)), back(at(law.from.ranks));
        execute(ctxpar::reshard_runs(law, 0, length), before, after);
        CHECK(after == hold(law.to, rows));
        execute(ctxpar::reshard_runs(inverse(law), 0, length), after, back);
        CHECK(back == before);
    }
}

TEST_CASE("the inverse has the same runs the other way round") {
    for_each_law([](const reshard_law& law) {
        run_list turned = ctxpar::reshard_runs(law, 3, 400);
        for (reshard_run& run : turned) {
            std::swap(run.src_rank, run.dst_rank);
            std::swap(run.src_local, run.dst_local);
        }
        REQUIRE(ctxpar::reshard_runs(inverse(law), 3, 400) == turned);
        REQUIRE(inverse(law).kept(3, 400) == law.kept(3, 400));
    });
}

TEST_CASE("plans of chunks, and of tokens appended later, add up to the whole") {
    std::mt19937 random(14);
    for (int repeat = 0; repeat < 300; ++repeat) {
        const reshard_law law{{draw(random, 1, 8), draw(random, 1, 20)}, {draw(random, 1, 8), draw(random, 1, 20)}};
        const bytes rows = random_rows(draw(random, 0, 900), random);
        const auto length = static_cast<std::int64_t>(rows.size() / row_bytes);
        run_list joined; // the runs of all chunks, those that go on put together
        std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> latest;
        std::int64_t kept = 0;
        caches after(at(law.to.ranks));
        for (std::int64_t first = 0; first < length;) {
            const std::int64_t end = std::min(length, first + draw(random, 0, 80));
            const run_list chunk = ctxpar::reshard_runs(law, first, end);
            kept += law.kept(first, end);
            execute(chunk, hold(law.from, rows), after);
            for (const reshard_run& run : chunk) {
                const auto known = latest.find({run.src_rank, run.dst_rank});
                if (known != latest.end()) {
                    reshard_run& open = joined[known->second];
                    if (open.src_local + open.count == run.src_local && open.dst_local + open.count == run.dst_local) {
                        open.count += run.count;
                        continue;
                    }
                }
                latest[{run.src_rank, run.dst_rank}] = joined.size();
                joined.push_back(run);
            }
            first = end;
        }
        CHECK(joined == ctxpar::reshard_runs(law, 0, length));
        CHECK(kept == law.kept(0, length));
        CHECK(after == hold(law.to, rows));
    }
}

TEST_CASE("with equal interleave 1 - min(N1, N2) / lcm(N1, N2) of whole periods moves") {
    for (const std::int64_t from : ranks_tried)
        for (const std::int64_t to : ranks_tried)
            for (const std::int64_t interleave : {1, 2, 5, 16}) {
                const reshard_law law{{from, interleave}, {to, interleave}};
                const std::int64_t both = std::lcm(from, to), least = std::min(from, to);
                CHECK(law.period() == both * interleave);
                for (const std::int64_t periods : {std::int64_t{1}, std::int64_t{3}, std::int64_t{1} << 40}) {
                    const std::int64_t length = periods * both * interleave;
                    CHECK(law.moved(0, length) == periods * interleave * (both - least));
                    CHECK(law.moved(7, 7 + length) == periods * interleave * (both - least));
                }
            }
    CHECK(reshard_law{{8, 1}, {8, 64}}.moved(0, 512) == 448);
    CHECK(reshard_law{{8, 1}, {8, 64}}.moved(0, 512 * 5 + 64) == 448 * 5 + 56);
    CHECK(reshard_law{{1, 3}, {8, 16}}.moved(0, 128) == 112);
    CHECK(reshard_law{{6, 16}, {8, 16}}.moved(0, 384) == 288);
}

TEST_CASE("positions up to 2^63 - 1 and interleaves as large") {
    const auto by_law = [](const reshard_law& law, std::int64_t first, std::int64_t end) {
        run_list runs;
        std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> latest;
        for (std::int64_t token = first; token < end; ++token) {
            const reshard_run one{law.from.owner(token), law.from.local(token), law.to.owner(token),
                                  law.to.local(token), 1};
            const auto known = latest.find({one.src_rank, one.dst_rank});
            if (known != latest.end()) {
                reshard_run& open = runs[known->second];
                if (open.src_local + open.count == one.src_local && open.dst_local + open.count == one.dst_local) {
                    ++open.count;
                    continue;
                }
            }
            latest[{one.src_rank, one.dst_rank}] = runs.size();
            runs.push_back(one);
        }
        return runs;
    };
    constexpr std::int64_t huge = std::int64_t{1} << 61;
    const std::vector<reshard_law> laws = {{{3, 2}, {5, 1}},    {{1, 1}, {8, 16}},       {{2, huge}, {3, 5}},
                                           {{2, 7}, {3, huge}}, {{4, huge - 1}, {2, 1}}, {{huge, 3}, {huge + 1, 2}},
                                           {{6, 4}, {6, 4}},    {{1, huge}, {1, 3}}};
    for (const reshard_law& law : laws) {
        CHECK(ctxpar::reshard_runs(law, largest - 150, largest) == by_law(law, largest - 150, largest));
        CHECK(ctxpar::reshard_runs(law, huge - 70, huge + 70) == by_law(law, huge - 70, huge + 70));
        std::int64_t kept = 0;
        for (std::int64_t token = largest - 150; token < largest; ++token)
            kept += law.from.owner(token) == law.to.owner(token);
        CHECK(law.kept(largest - 150, largest) == kept);
    }
    // One layout is a run a rank, however long.
    CHECK(ctxpar::reshard_runs({{3, 1}, {3, 1}}, 0, largest).size() == 3);
    CHECK(ctxpar::reshard_runs({{1, 5}, {1, 9}}, 0, largest) == run_list{{0, 0, 0, 0, largest}});
    CHECK(ctxpar::reshard_runs({{huge, 1}, {huge, 1}}, 5, 7) == run_list{{5, 0, 5, 0, 1}, {6, 0, 6, 0, 1}});
    CHECK(reshard_law{{1, 1}, {2, 1}}.kept(0, largest) == largest / 2 + 1);
    CHECK(reshard_law{{huge, 2}, {huge - 1, 2}}.kept(0, largest) == 2 * (huge - 1));
    CHECK(reshard_law{{2, huge}, {3, 5}}.period() == largest);
    CHECK(reshard_law{{3, 2}, {5, 3}}.run_bound(0, largest) == largest / 6 * 4 + 1);
    CHECK(reshard_law{{3, 1}, {5, 2}}.run_bound(0, largest) == largest);
}

TEST_CASE("a million tokens of one rank over eight: a run each chunk, no memory, and soon") {
    constexpr std::int64_t length = std::int64_t{1} << 20;
    const reshard_law law = ctxpar::make_reshard({1, 1}, {8, 16});
    double best_ms = 1e9;
    for (int repeat = 0; repeat < 20; ++repeat) {
        std::int64_t runs = 0, tokens = 0;
        num_allocations = 0;
        is_counting = true;
        const auto start = std::chrono::steady_clock::now();
        ctxpar::for_each_run(law, 0, length, [&](const reshard_run& run) {
            ++runs;
            tokens += run.count;
        });
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        is_counting = false;
        best_ms = std::min(best_ms, took.count());
        REQUIRE(runs == length / 16);
        REQUIRE(tokens == length);
        REQUIRE(num_allocations == 0);
    }
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(best_ms < 10.0);
#endif
    CHECK(law.run_bound(0, length) == length / 16);
    CHECK(law.moved(0, length) == length / 8 * 7);
}

// The plan is usable in constant expressions.
constexpr std::int64_t tokens_in_all(const reshard_law& law, std::int64_t length) {
    std::int64_t tokens = 0;
    ctxpar::for_each_run(law, 0, length, [&](const reshard_run& run) { tokens += run.count; });
    return tokens;
}
static_assert(tokens_in_all({{3, 2}, {5, 1}}, 20) == 20 && tokens_in_all({{2, 1}, {2, 1}}, 6) == 6);
static_assert(reshard_law{{3, 2}, {5, 1}}.moved(0, 20) == 18 && reshard_law{{4, 4}, {2, 4}}.kept(0, 25) == 16);
static_assert(reshard_law{{1, 4}, {1, 7}}.same_layout() && !reshard_law{{2, 4}, {2, 7}}.same_layout());

TEST_CASE("a change of layout that can not be is refused with its numbers") {
    CHECK(says(refusal_of([] { ctxpar::make_reshard({0, 1}, {2, 1}); }), "ranks", {"from 0 ranks to 2", "at least 1"}));
    CHECK(says(refusal_of([] { ctxpar::make_reshard({2, 0}, {-3, 1}); }), "ranks", {"from 2 ranks to -3"}));
    CHECK(says(refusal_of([] { ctxpar::make_reshard({2, 1}, {2, 0}); }), "interleave", {"of 1 tokens to one of 0"}));
    CHECK(says(refusal_of([] { ctxpar::make_reshard({2, -1}, {2, 4}); }), "interleave", {"-1", "at least 1"}));
    CHECK(says(refusal_of([] { ctxpar::make_reshard({2, largest}, {2, 4}); }), "interleave", {"63 bits"}));
    CHECK(says(refusal_of([] { ctxpar::make_reshard({2, 4}, {4, largest / 2}); }), "interleave", {"63 bits"}));
    CHECK(ctxpar::make_reshard({2, 4}, {4, 1}) == reshard_law{{2, 4}, {4, 1}});

    const reshard_law law{{1, 1}, {2, 4}};
    int visits = 0;
    const auto visit = [&](const reshard_run&) { ++visits; };
    CHECK(says(refusal_of([&] { ctxpar::for_each_run(law, -1, 4, visit); }), "range", {"[-1, 4)", "at least 0"}));
    CHECK(says(refusal_of([&] { ctxpar::for_each_run(law, 5, 4, visit); }), "range", {"[5, 4)"}));
    CHECK(says(refusal_of([&] { ctxpar::reshard_runs(law, 0, -4); }), "range", {"[0, -4)"}));
    ctxpar::for_each_run(law, 4, 4, visit);
    CHECK(visits == 0);
}
