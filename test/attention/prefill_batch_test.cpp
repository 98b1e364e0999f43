// The laws by which a batch with prefills is cut up, against asking every token and dealing every row.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <attention/plain_prefill.hpp>

#include <ctxpar/attention/prefill_batch.hpp>

using namespace ctxpar;
using plain::numbers;

namespace {

// The smallest range that starts at a multiple of U and has every token of the context that some new token sees.
context_range plain_context(const prefill_request& request, const mask_rule& mask, std::int64_t unit) {
    const std::int64_t total = request.computed + request.tokens;
    std::int64_t first = -1;
    std::int64_t last = -1;
    for (std::int64_t position = 0; position < request.computed; ++position)
        for (std::int64_t row = 0; row < request.tokens; ++row)
            if (plain::row_sees(total, request.tokens, row, mask, nullptr, position)) {
                first = first < 0 ? position : first;
                last = position;
            }
    if (first < 0) return {};
    std::int64_t begin = 0;
    while (begin + unit <= first) begin += unit;
    return {begin, last + 1};
}

prefill_law law_of(std::int64_t ranks, std::int64_t interleave, const mask_rule& mask) {
    prefill_law law;
    law.gather = {{ranks, interleave}, 4};
    law.part = {ranks, 0, interleave};
    law.mask = mask;
    return law;
}

// Rows of a gather that one rank adds for a range, dealt: the most that any rank holds, in whole groups of I.
std::int64_t plain_rows_for(std::int64_t ranks, std::int64_t interleave, std::int64_t length) {
    const auto held = static_cast<std::int64_t>(plain::positions_of(ranks, interleave, 0, length).size());
    std::int64_t rows = 0;
    while (rows < held) rows += interleave;
    return rows;
}

const mask_rule all_rules[] = {{},         {1, 0, 0}, {5, 0, 0},   {40, 0, 0}, {0, 8, 0}, {0, 1, 0}, {5, 0, 3},
                               {7, 0, 20}, {0, 8, 5}, {10, 16, 0}, {6, 9, 2},  {1, 0, 2}, {0, 4, 1}, {0, 0, 1000}};

// The sums over one rank's rows before a request.
prefill_offsets plain_offsets(const plain::prefills& given, std::size_t request, std::int64_t rank) {
    prefill_offsets sum;
    for (std::size_t r = 0; r < request; ++r) {
        const row_set set = given.set(r);
        const bool decodes = given.decodes(r);
        for (const std::int64_t token : given.tokens_on(r, rank)) {
            ++sum.own;
            sum.prefill += decodes ? 0 : 1;
            sum.tree += decodes ? 1 : 0;
            sum.spread += set == row_set::spread ? 1 : 0;
            sum.decode += set == row_set::decode ? 1 : 0;
            sum.kv += set == row_set::kv ? 1 : 0;
            sum.last += !decodes && token == given.tokens[r] - 1 ? 1 : 0;
        }
        sum.spread_requests += set == row_set::spread ? 1 : 0;
        sum.kv_requests += set == row_set::kv ? 1 : 0;
    }
    sum.batch = given.batch_row(request);
    sum.staged = given.staged_row(request);
    return sum;
}

bool same(const prefill_offsets& a, const prefill_offsets& b) {
    return a.batch == b.batch && a.own == b.own && a.prefill == b.prefill && a.spread == b.spread &&
           a.decode == b.decode && a.kv == b.kv && a.staged == b.staged && a.tree == b.tree && a.last == b.last &&
           a.spread_requests == b.spread_requests && a.kv_requests == b.kv_requests;
}

} // namespace

TEST_CASE("The context of a request is the smallest range of whole rounds that its new tokens see") {
    for (std::int64_t ranks = 1; ranks <= 4; ++ranks)
        for (const std::int64_t interleave : {1, 2, 3, 4})
            for (const mask_rule& mask : all_rules) {
                const prefill_law law = law_of(ranks, interleave, mask);
                int wrong = 0;
                for (std::int64_t computed = 0; computed <= 34; ++computed)
                    for (const std::int64_t tokens : {0, 1, 2, 5, 11}) {
                        const prefill_request request{computed, tokens, false};
                        const context_range expected = plain_context(request, mask, ranks * interleave);
                        const context_range got = law.context_of(request);
                        wrong += got.begin == expected.begin && got.end == expected.end ? 0 : 1;
                    }
                CAPTURE(ranks);
                CAPTURE(interleave);
                CAPTURE(mask.window);
                CAPTURE(mask.chunk);
                CAPTURE(mask.prefix);
                CHECK(wrong == 0);
            }
}

TEST_CASE("Contexts past 2^32 tokens keep their place") {
    prefill_law law = law_of(3, 4, {});
    const std::int64_t computed = (std::int64_t{1} << 36) + 7;
    CHECK(law.context_of({computed, 5, false}).begin == 0);
    CHECK(law.context_of({computed, 5, false}).end == computed);
    law.mask.window = 100;
    CHECK(law.context_of({computed, 5, false}).begin == (computed - 99) / 12 * 12);
    law.context_bytes = 1000;
    law.mask.window = 0;
    CHECK(law.bytes_of_context({computed, 5, false}) == ((computed + 11) / 12) * 4 * 1000);
}

TEST_CASE("Bytes are those of the largest rank, and a request goes the way that sends fewer") {
    std::mt19937_64 random(51);
    int ways[2] = {};
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        for (int round = 0; round < 12; ++round) {
            const plain::prefills given = plain::random_prefills(random, pcp, ranks, split);
            const prefill_law law = given.law(pcp - 1, 0);
            for (std::size_t r = 0; r < given.requests(); ++r) {
                const prefill_request request = request_of(given.batch(0), static_cast<std::int64_t>(r));
                std::int64_t most = 0;
                for (std::int64_t rank = 0; rank < pcp; ++rank)
                    most = std::max(most, static_cast<std::int64_t>(given.tokens_on(r, rank).size()));
                const std::int64_t queries = most * given.query_bytes * (given.decodes(r) ? 2 : 1);
                const context_range range = plain_context(request, given.mask, ranks * given.interleave);
                const std::int64_t context =
                    given.context_bytes * plain_rows_for(ranks, given.interleave, range.end - range.begin);
                CHECK(law.bytes_of_queries(request) == queries);
                CHECK(law.bytes_of_context(request) == context);

                const bool prefill_keys = given.prefill_path == prefill_path::gather_kv ||
                                          (given.prefill_path == prefill_path::automatic && context <= queries);
                const bool decode_keys = given.decode_path == prefill_path::gather_kv;
                const row_set expected = (given.decodes(r) ? decode_keys : prefill_keys) ? row_set::kv
                                         : given.decodes(r)                              ? row_set::decode
                                                                                         : row_set::spread;
                CHECK(law.set_of(request) == expected);
                if (given.prefill_path == prefill_path::automatic && !given.decodes(r) && given.tokens[r] > 0)
                    ++ways[expected == row_set::kv ? 1 : 0];
            }
        }
    });
    CHECK(ways[0] > 50); // both were chosen often
    CHECK(ways[1] > 50);
}

TEST_CASE("The way of a request is the same on every rank") {
    std::mt19937_64 random(52);
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        const plain::prefills given = plain::random_prefills(random, pcp, ranks, split);
        for (std::size_t r = 0; r < given.requests(); ++r)
            for (std::int64_t rank = 0; rank < pcp; ++rank)
                for (std::int64_t tp = 0; tp < given.tp(); ++tp) {
                    const prefill_law law = given.law(rank, tp);
                    CHECK(law.set_of({given.computed[r], given.tokens[r], given.decodes(r)}) == given.set(r));
                    CHECK(law.first_row_owner() <= rank);
                    CHECK(law.first_row_owner() + given.owners > rank);
                    CHECK(law.first_row_owner() % given.owners == 0);
                }
    });
}

TEST_CASE("A rank's rows of a request are those that dealing gives it, and one rank has a prefill's last token") {
    plain::for_each_split([](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        plain::prefills given;
        given.pcp = pcp;
        given.ranks = ranks;
        given.owners = std::min(pcp, ranks);
        given.split = split;
        for (const std::int64_t kind : {0, 1})
            for (std::int64_t tokens = 0; tokens <= 33; ++tokens) {
                given.kinds = {kind};
                given.computed = {3};
                given.tokens = {tokens};
                const prefill_law law = given.law(0, 0);
                const prefill_request request{3, tokens, kind == 1};
                int wrong = 0;
                std::int64_t last = 0;
                for (std::int64_t rank = 0; rank < pcp; ++rank) {
                    const numbers dealt = given.tokens_on(0, rank);
                    wrong += law.rows_of(request, rank) == static_cast<std::int64_t>(dealt.size()) ? 0 : 1;
                    for (std::size_t i = 0; i < dealt.size(); ++i)
                        wrong += law.token_of(request, rank, static_cast<std::int64_t>(i)) == dealt[i] ? 0 : 1;
                    const bool has = std::count(dealt.begin(), dealt.end(), tokens - 1) == 1;
                    wrong += law.has_last(request, rank) == has ? 0 : 1;
                    last += has ? 1 : 0;
                }
                CHECK(wrong == 0);
                CHECK(last == (tokens == 0 ? 0 : (kind == 1 ? pcp : 1)));
            }
    });
}

TEST_CASE("Running sums say where the rows of each request begin, in every set") {
    std::mt19937_64 random(53);
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        for (int round = 0; round < 8; ++round) {
            const plain::prefills given = plain::random_prefills(random, pcp, ranks, split);
            for (std::int64_t rank = 0; rank < pcp; ++rank) {
                prefill_offsets at;
                for (std::size_t r = 0; r < given.requests(); ++r) {
                    CHECK(same(at, plain_offsets(given, r, rank)));
                    at.pass(given.law(0, 0), request_of(given.batch(0), static_cast<std::int64_t>(r)), rank);
                }
                CHECK(same(at, plain_offsets(given, given.requests(), rank)));
            }
        }
    });
}

TEST_CASE(
    "A batch says its new tokens by counts or by row offsets, in any integer type, and is all prefills by default") {
    const std::vector<std::int32_t> computed = {5, 0, 7};
    const std::vector<std::int32_t> tokens = {3, 0, 2};
    const std::vector<std::uint32_t> offsets = {0, 3, 3, 5};
    const std::vector<std::int32_t> kinds = {0, 1, 1};
    prefill_batch batch;
    batch.requests = 3;
    batch.computed = index_of(computed.data());
    batch.row_offsets = index_of(offsets.data());
    for (const bool counted : {false, true}) {
        if (counted) batch.tokens = index_of(tokens.data());
        for (const bool named : {false, true}) {
            batch.kinds = named ? index_of(kinds.data()) : index_view{};
            for (std::int64_t r = 0; r < 3; ++r) {
                const auto at = static_cast<std::size_t>(r);
                const prefill_request request = request_of(batch, r);
                CHECK(request.computed == computed[at]);
                CHECK(request.tokens == tokens[at]);
                CHECK(request.decodes == (named && kinds[at] == 1));
            }
        }
    }
}
