// The zigzag split against lists of rows made by hand: tokens dealt into chunks one by one, chunks dealt to ranks.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/zigzag.hpp>

namespace {

using ctxpar::row_kind;
using ctxpar::zigzag;
using ctxpar::zigzag_law;
using ctxpar::zigzag_request;
using ctxpar::zigzag_segment;
using ctxpar::zigzag_split;
using numbers = std::vector<std::int64_t>;
using booleans = std::vector<bool>;
using segments = std::vector<zigzag_segment>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr zigzag_split all_splits[] = {zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil};

zigzag_request prefill(std::int64_t tokens, std::int64_t computed = 0) {
    return {tokens, computed, row_kind::prefill};
}
zigzag_request decode(std::int64_t tokens, std::int64_t computed) {
    return {tokens, computed, row_kind::decode};
}

// The 2W chunks of n tokens, token by token; under padded with pads, which are numbered on from n.
std::vector<numbers> plain_chunks(std::int64_t ranks, zigzag_split split, std::int64_t n) {
    std::vector<numbers> chunks(static_cast<std::size_t>(2 * ranks));
    std::vector<std::size_t> sizes(chunks.size(), 0);
    if (split == zigzag_split::balanced) {
        for (std::int64_t dealt = 0; dealt < n; ++dealt) ++sizes[static_cast<std::size_t>(dealt) % sizes.size()];
    } else {
        std::size_t size = 0;
        while (size * sizes.size() < static_cast<std::size_t>(n)) ++size;
        std::fill(sizes.begin(), sizes.end(), size);
    }
    std::int64_t token = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i)
        while (chunks[i].size() < sizes[i] && (token < n || split == zigzag_split::padded))
            chunks[i].push_back(token++);
    return chunks;
}

// All arrays of a batch, from lists of rows.
struct plain_batch {
    struct row {
        std::int64_t position;
        std::int64_t global; // -1 for a pad
    };

    plain_batch(std::int64_t ranks, const std::vector<zigzag_request>& requests, zigzag_split split)
        : positions(static_cast<std::size_t>(ranks)), runs(static_cast<std::size_t>(ranks)),
          work(static_cast<std::size_t>(ranks), 0), rows_of(static_cast<std::size_t>(ranks)) {
        std::int64_t first = 0;
        for (std::size_t r = 0; r < requests.size(); ++r) {
            const zigzag_request& request = requests[r];
            const std::vector<numbers> chunks = plain_chunks(ranks, split, request.tokens);
            numbers whole;
            for (std::int64_t token = 0; token < request.tokens; ++token) whole.push_back(token);
            for (std::size_t rank = 0; rank < positions.size(); ++rank) {
                if (request.kind == row_kind::decode) {
                    take(r, request, first, rank, whole);
                } else {
                    take(r, request, first, rank, chunks[rank]);
                    take(r, request, first, rank, chunks[chunks.size() - 1 - rank]);
                }
            }
            first += request.tokens;
        }
        gather_rows(first);
    }

    void take(std::size_t r, const zigzag_request& request, std::int64_t first, std::size_t rank,
              const numbers& tokens) {
        if (tokens.empty()) return;
        runs[rank].push_back({static_cast<std::int64_t>(r), tokens.front(), static_cast<std::int64_t>(tokens.size()),
                              request.computed + tokens.front()});
        for (const std::int64_t token : tokens) {
            const bool real = token < request.tokens;
            positions[rank].push_back(request.computed + token);
            rows_of[rank].push_back({request.computed + token, real ? first + token : -1});
            if (real && request.kind == row_kind::prefill) work[rank] += request.computed + token + 1;
        }
    }

    // A batch row counts where it stands first among the gathered rows.
    void gather_rows(std::int64_t batch_rows) {
        for (const std::vector<row>& rows : rows_of) most = std::max(most, rows.size());
        restore.assign(static_cast<std::size_t>(batch_rows), -1);
        for (const std::vector<row>& rows : rows_of) {
            for (std::size_t i = 0; i < most; ++i) {
                const std::int64_t global = i < rows.size() ? rows[i].global : -1;
                const bool counts = global >= 0 && restore[static_cast<std::size_t>(global)] < 0;
                if (counts) restore[static_cast<std::size_t>(global)] = static_cast<std::int64_t>(gather.size());
                kv_write.push_back(counts);
                gather.push_back(global);
            }
        }
    }

    std::size_t most = 0;
    numbers gather, restore;
    booleans kv_write;
    std::vector<numbers> positions;
    std::vector<segments> runs;
    numbers work;
    std::vector<std::vector<row>> rows_of;
};

// Counts what a plan says other than the lists of rows, and its broken laws.
int faults_of(std::int64_t ranks, const std::vector<zigzag_request>& requests, zigzag_split split) {
    const zigzag plan(ranks, requests, split);
    const plain_batch due(ranks, requests, split);
    const numbers gathered = plan.gather(), restore = plan.restore();
    int wrong = plan.rows() != static_cast<std::int64_t>(due.most);
    wrong += gathered != due.gather;
    wrong += restore != due.restore;
    wrong += plan.kv_write() != due.kv_write;
    wrong += plan.work() != due.work;
    wrong += plan.batch_rows() != static_cast<std::int64_t>(due.restore.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        wrong += plan.rows(rank) != static_cast<std::int64_t>(due.rows_of[at].size());
        wrong += plan.segments(rank) != due.runs[at];
        wrong += plan.positions(rank) != due.positions[at];
    }
    for (std::size_t row = 0; row < restore.size(); ++row)
        wrong += gathered[static_cast<std::size_t>(restore[row])] != static_cast<std::int64_t>(row);
    const numbers last = plan.last();
    wrong += last.size() != requests.size();
    std::int64_t end = 0;
    for (std::size_t r = 0; r < last.size(); ++r) {
        end += requests[r].tokens;
        const auto first_place = std::find(due.gather.begin(), due.gather.end(), end - 1) - due.gather.begin();
        wrong += last[r] != (requests[r].tokens == 0 ? -1 : first_place);
    }
    return wrong;
}

const numbers& token_counts() {
    static const numbers counts = {0, 1, 2, 3, 7, 8, 13, 98, 301, 4097};
    return counts;
}

template <class Body>
void for_each_split(Body body) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
        for (const zigzag_split split : all_splits) {
            CAPTURE(ranks);
            CAPTURE(static_cast<int>(split));
            body(zigzag_law{ranks, split});
        }
    }
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

TEST_CASE("chunks are the tokens dealt out, and tile a request without a gap") {
    for_each_split([](const zigzag_law& law) {
        for (const std::int64_t n : token_counts()) {
            const std::vector<numbers> due = plain_chunks(law.pcp, law.split, n);
            std::int64_t next = 0;
            int wrong = 0;
            for (std::int64_t i = 0; i < 2 * law.pcp; ++i) {
                const ctxpar::token_run run = law.chunk(n, i);
                const numbers& tokens = due[static_cast<std::size_t>(i)];
                wrong += run.count != static_cast<std::int64_t>(tokens.size());
                wrong += run.first != next || (!tokens.empty() && run.first != tokens.front());
                wrong += run != (i < law.pcp ? law.head(n, i) : law.tail(n, 2 * law.pcp - 1 - i));
                next += run.count;
            }
            CAPTURE(n);
            CHECK(wrong == 0);
            CHECK((law.split == zigzag_split::padded ? next >= n && next < n + 2 * law.pcp : next == n));
        }
    });
}

TEST_CASE("every token of a prefill is on one rank, where place finds it") {
    for_each_split([](const zigzag_law& law) {
        for (const std::int64_t n : token_counts()) {
            numbers times(static_cast<std::size_t>(n), 0);
            std::int64_t most = 0;
            int wrong = 0;
            for (std::int64_t rank = 0; rank < law.pcp; ++rank) {
                most = std::max(most, law.rows(n, rank));
                for (std::int64_t i = 0; i < law.rows(n, rank); ++i) {
                    const std::int64_t token = law.token(n, rank, i);
                    if (token >= n) {
                        wrong += law.split != zigzag_split::padded;
                        continue;
                    }
                    ++times[static_cast<std::size_t>(token)];
                    wrong += law.place(n, token) != ctxpar::row_place{rank, i};
                }
            }
            CAPTURE(n);
            CHECK(wrong == 0);
            CHECK(times == numbers(static_cast<std::size_t>(n), 1));
            CHECK(law.most_rows(n) == most);
        }
    });
}

TEST_CASE("most_rows is the largest row count for every short request") {
    for_each_split([](const zigzag_law& law) {
        for (std::int64_t n = 0; n <= 100; ++n) {
            std::size_t most = 0;
            const std::vector<numbers> chunks = plain_chunks(law.pcp, law.split, n);
            for (std::size_t i = 0; i < chunks.size() / 2; ++i)
                most = std::max(most, chunks[i].size() + chunks[chunks.size() - 1 - i].size());
            REQUIRE(law.most_rows(n) == static_cast<std::int64_t>(most));
        }
    });
}

TEST_CASE("a batch of one request is its lists of rows") {
    for_each_split([](const zigzag_law& law) {
        for (const std::int64_t n : token_counts()) {
            for (const std::int64_t computed : {0, 16, 131'071}) {
                CAPTURE(n);
                CAPTURE(computed);
                CHECK(faults_of(law.pcp, {prefill(n, computed)}, law.split) == 0);
                CHECK(faults_of(law.pcp, {decode(n, computed)}, law.split) == 0);
            }
        }
        CHECK(faults_of(law.pcp, {}, law.split) == 0);
    });
}

TEST_CASE("a mixed batch in any order is its lists of rows") {
    std::mt19937 random(20'240'807);
    const numbers sizes = {0, 1, 1, 2, 3, 5, 7, 8, 13, 98, 301};
    const numbers before = {0, 0, 1, 16, 1000, std::int64_t{1} << 33};
    for_each_split([&](const zigzag_law& law) {
        for (int round = 0; round < 30; ++round) {
            std::vector<zigzag_request> requests(1 + random() % 7);
            for (zigzag_request& request : requests) {
                request = prefill(sizes[random() % sizes.size()], before[random() % before.size()]);
                if (random() % 3 == 0) request = decode(1 + static_cast<std::int64_t>(random() % 4), request.computed);
            }
            CHECK(faults_of(law.pcp, requests, law.split) == 0);
        }
    });
}

TEST_CASE("decode rows are on every rank and count once, on rank 0") {
    for (const std::int64_t ranks : {1, 2, 3, 8}) {
        const std::vector<zigzag_request> requests = {decode(1, 20), decode(3, 7), prefill(13, 4), decode(2, 0)};
        const zigzag plan(ranks, requests);
        const numbers gathered = plan.gather();
        const booleans counts = plan.kv_write();
        for (const std::int64_t row : {0, 1, 2, 3, 17, 18}) {
            CHECK(std::count(gathered.begin(), gathered.end(), row) == ranks);
            for (std::size_t i = 0; i < gathered.size(); ++i)
                if (gathered[i] == row) REQUIRE(counts[i] == (static_cast<std::int64_t>(i) < plan.rows()));
        }
        CHECK(std::count(counts.begin(), counts.end(), true) == 19);
        for (std::int64_t row = 4; row < 17; ++row) CHECK(std::count(gathered.begin(), gathered.end(), row) == 1);
    }
}

TEST_CASE("restore undoes gather for any values") {
    for_each_split([](const zigzag_law& law) {
        const std::vector<zigzag_request> requests = {prefill(98, 5), decode(2, 9), prefill(7), prefill(1),
                                                      decode(1, 3)};
        const zigzag plan(law.pcp, requests, law.split);
        numbers gathered;
        for (const std::int64_t row : plan.gather()) gathered.push_back(row < 0 ? -99 : 1000 + 7 * row);
        const numbers restore = plan.restore();
        for (std::size_t row = 0; row < restore.size(); ++row)
            REQUIRE(gathered[static_cast<std::size_t>(restore[row])] == 1000 + 7 * static_cast<std::int64_t>(row));
    });
}

TEST_CASE("balanced ranks differ by at most one token of a request") {
    for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
        const zigzag_law law = ctxpar::make_zigzag(ranks);
        for (std::int64_t n = 0; n <= 200; ++n) {
            std::int64_t least = largest;
            for (std::int64_t rank = 0; rank < ranks; ++rank) least = std::min(least, law.rows(n, rank));
            REQUIRE(law.most_rows(n) - least <= 1);
        }
    }
}

TEST_CASE("balanced ranks have the same causal work within 2.5 percent from 4096 fresh tokens on") {
    for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
        for (std::int64_t n = 4096; n < 4096 + 2 * ranks; ++n) {
            const numbers work = zigzag(ranks, std::vector{prefill(n)}).work();
            const auto [least, most] = std::minmax_element(work.begin(), work.end());
            std::int64_t sum = 0;
            for (const std::int64_t of_rank : work) sum += of_rank;
            CAPTURE(ranks);
            CAPTURE(n);
            CHECK(sum == n * (n + 1) / 2);
            CHECK(static_cast<double>(*most - *least) <= 0.025 * static_cast<double>(*least));
        }
    }
}

TEST_CASE("the law holds for requests past 32 bits") {
    for_each_split([](const zigzag_law& law) {
        for (const std::int64_t n : {(std::int64_t{1} << 40) + 3, largest - 2 * law.pcp}) {
            std::int64_t next = 0;
            for (std::int64_t i = 0; i < 2 * law.pcp; ++i) {
                const ctxpar::token_run run = law.chunk(n, i);
                REQUIRE(run.first == next);
                next += run.count;
                for (const std::int64_t token : {run.first, run.first + run.count / 2, run.first + run.count - 1}) {
                    if (token >= n) continue;
                    const ctxpar::row_place place = law.place(n, token);
                    REQUIRE(place.rank == std::min(i, 2 * law.pcp - 1 - i));
                    REQUIRE(law.token(n, place.rank, place.row) == token);
                }
            }
            CHECK(next >= n);
            CHECK(next < n + 2 * law.pcp);
        }
    });
}

// The law is usable in constant expressions.
static_assert(zigzag_law{2}.token(7, 0, 2) == 6 && zigzag_law{2}.place(7, 6) == ctxpar::row_place{0, 2});
static_assert(zigzag_law{3, zigzag_split::ceil}.rows(13, 0) == 3 &&
              zigzag_law{3, zigzag_split::ceil}.most_rows(13) == 6);
static_assert(zigzag_law{2, zigzag_split::padded}.tail(5, 0) == ctxpar::token_run{6, 2});
static_assert(zigzag_law{2}.head(0, 1).count == 0 && zigzag_law{4}.chunk(10, 2) == ctxpar::token_run{4, 1});
static_assert(zigzag_law{} == zigzag_law{1, zigzag_split::balanced} && !(zigzag_law{2} == zigzag_law{3}));

TEST_CASE("what is not a split is refused in one sentence") {
    for (const std::int64_t ranks : {std::int64_t{0}, std::int64_t{-3}, ctxpar::max_pcp + 1, largest}) {
        const ctxpar::config_error problem = refusal([&] { ctxpar::make_zigzag(ranks); });
        CHECK(problem.code() == "pcp");
        CHECK(says(problem, "PCP ranks is " + std::to_string(ranks)));
        CHECK(says(problem, "1 to " + std::to_string(ctxpar::max_pcp)));
        CHECK(refusal([&] { zigzag(ranks, std::vector{prefill(-1)}); }).code() == "pcp");
    }
    CHECK(ctxpar::make_zigzag(ctxpar::max_pcp).pcp == ctxpar::max_pcp);

    const auto refused = [](const zigzag_request& request) {
        return refusal([&] { zigzag(2, std::vector{prefill(4), request}); });
    };
    for (const zigzag_request& request : {prefill(-4, 7), decode(-4, 7)}) {
        CHECK(refused(request).code() == "request");
        CHECK(says(refused(request), "request 1 has -4 new tokens after 7 computed ones; both must be at least 0"));
    }
    CHECK(says(refused(prefill(4, -7)), "request 1 has 4 new tokens after -7 computed ones"));
    CHECK(refused({4, 0, static_cast<row_kind>(7)}).code() == "request");
    CHECK(says(refused({4, 0, static_cast<row_kind>(7)}), "kind 7; it must be 0 (prefill) or 1 (decode)"));
}

TEST_CASE("requests whose work does not fit 63 bits are refused") {
    const auto code = [](const std::vector<zigzag_request>& requests) {
        return refusal([&] { zigzag(2, requests); }).code();
    };
    CHECK(code({prefill(largest, 0)}) == "request");
    CHECK(code({prefill(1, largest)}) == "request");
    CHECK(code({prefill(0, largest)}) == "request");
    CHECK(code({decode(2, largest / 2)}) == "request");
    CHECK(code({prefill(std::int64_t{1} << 32)}) == "request");
    CHECK(code({prefill(1, largest - 5)}) == "");
    CHECK(code({prefill(1, largest - 5), prefill(1, largest - 5)}) == "request"); // each alone would fit
    CHECK(code({prefill(1, largest / 2), decode(1, largest / 2)}) == "request");
    CHECK(code({prefill(1, largest / 2 - 1), prefill(1, largest / 2 - 1)}) == "");
    const zigzag plan(2, std::vector{prefill(1, largest - 5)}, zigzag_split::padded);
    CHECK(plan.positions(0) == numbers{largest - 5, largest - 2});
    CHECK(plan.work() == numbers{largest - 4, 0});
    const ctxpar::config_error problem = refusal([] { zigzag(2, std::vector{prefill(std::int64_t{1} << 32, 5)}); });
    CHECK(says(problem, "request 0 has 4294967296 new tokens after 5 computed ones"));
    CHECK(says(problem, "63 bits"));
}
