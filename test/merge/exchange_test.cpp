// Bytes and calls of an exchange against the closed formulas, and against published numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/exchange.hpp>

using namespace ctxpar;

namespace {

struct bytes {
    std::uint64_t gather_q, gather_lse, outputs, regather, total;
    std::int64_t collectives;

    friend bool operator==(const bytes&, const bytes&) = default;
};

bytes counted(merge_kind kind, const exchange_shape& shape) {
    const exchange_bytes sum = exchange(merge::dynamic{kind}, shape);
    return {sum.gather_q, sum.gather_lse, sum.outputs, sum.regather, sum.total, sum.collectives};
}

// The formulas, term by term. Where N does not divide the heads (AG+AR), a rank's part of the outputs is rounded up.
bytes formulas(merge_kind kind, const exchange_shape& s) {
    const auto n = static_cast<std::uint64_t>(s.ranks);
    const auto m = static_cast<std::uint64_t>(s.distinct_tp);
    const auto r = static_cast<std::uint64_t>(s.rows);
    const auto hg = static_cast<std::uint64_t>(s.gathered_heads);
    const auto dq = static_cast<std::uint64_t>(s.query_width);
    const auto dv = static_cast<std::uint64_t>(s.value_width);
    const auto e = static_cast<std::uint64_t>(s.partial_bytes);
    const auto out = static_cast<std::uint64_t>(s.output_bytes);
    bytes sum{};
    if (!s.replicated_q && m > 1) {
        sum.gather_q = (m - 1) * r * (hg / m) * dq * static_cast<std::uint64_t>(s.query_bytes);
        ++sum.collectives;
    }
    if (n == 1) return {0, 0, 0, 0, 0, 0};
    const bool scatters = kind == merge_kind::a2a || kind == merge_kind::ag_rs;
    if (kind == merge_kind::deferred) {
        sum.gather_lse = (n - 1) * r * hg * 4;
        sum.collectives += 1;
    } else if (kind == merge_kind::a2a) {
        sum.outputs = (n - 1) * r * (hg / n) * (dv * e + 4);
        sum.collectives += 1;
    } else {
        sum.gather_lse = (n - 1) * r * hg * 4;
        sum.outputs = (n - 1) * ((r * hg * dv + n - 1) / n) * e * (scatters ? 1 : 2);
        sum.collectives += 2;
    }
    std::uint64_t again = 1; // ranks among which heads are gathered again
    if (scatters && s.placement == output_placement::own_heads) again = n / m;
    if (scatters && s.placement == output_placement::all_heads) again = n;
    if (again > 1) {
        sum.regather = (again - 1) * r * (hg / n) * dv * out;
        sum.collectives += 1;
        if (s.merged_lse && kind == merge_kind::a2a) {
            sum.regather += (again - 1) * r * (hg / n) * 4;
            sum.collectives += 1;
        }
    }
    sum.total = sum.gather_q + sum.gather_lse + sum.outputs + sum.regather;
    return sum;
}

exchange_shape gqa_shape(std::int64_t ranks, std::int64_t rows, std::int64_t heads, std::int64_t width) {
    exchange_shape shape;
    shape.ranks = shape.distinct_tp = ranks;
    shape.rows = rows;
    shape.gathered_heads = heads;
    shape.query_width = shape.value_width = width;
    shape.placement = output_placement::scattered;
    return shape;
}

exchange_shape mla_shape(std::int64_t ranks, std::int64_t rows) {
    exchange_shape shape = gqa_shape(ranks, rows, 128, 512);
    shape.query_width = 576;
    return shape;
}

bytes replicated(merge_kind kind, exchange_shape shape) {
    shape.replicated_q = true;
    return counted(kind, shape);
}

// Whether a published number of KiB, which is rounded to the last digit it shows, fits.
bool fits(std::uint64_t exact, double kib) {
    const double digit = kib == std::floor(kib) ? 1.0 : 0.1;
    return std::fabs(static_cast<double>(exact) / 1024 - kib) <= 0.55 * digit;
}

constexpr merge_kind kinds[] = {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a, merge_kind::deferred};

} // namespace

TEST_CASE("The schedule sends what the formulas say, for any shape, placement and merge") {
    for (const merge_kind kind : kinds)
        for (const std::int64_t ranks : {1, 2, 4, 8, 6})
            for (std::int64_t m = 1; m <= ranks; ++m)
                for (const std::int64_t rows : {0, 1, 5})
                    for (const std::int64_t heads : {ranks, 3 * ranks})
                        for (const bool lse : {false, true})
                            for (const bool no_gather : {false, true})
                                for (const auto placement : {output_placement::own_heads, output_placement::scattered,
                                                             output_placement::all_heads}) {
                                    if (ranks % m != 0) continue;
                                    exchange_shape shape = gqa_shape(ranks, rows, heads, 24);
                                    shape.distinct_tp = m;
                                    shape.query_width = 40;
                                    shape.partial_bytes = 4;
                                    shape.replicated_q = no_gather;
                                    shape.merged_lse = lse;
                                    shape.placement = placement;
                                    CHECK((counted(kind, shape) == formulas(kind, shape)));
                                }
}

TEST_CASE("Heads that the ranks do not divide cost a part more") {
    exchange_shape shape = gqa_shape(4, 3, 6, 5); // 90 outputs over 4 ranks: 23 each
    shape.distinct_tp = 2;
    CHECK(counted(merge_kind::ag_ar, shape).outputs == 3 * 23 * 2 * 2);
    CHECK((counted(merge_kind::ag_ar, shape) == formulas(merge_kind::ag_ar, shape)));
}

TEST_CASE("A single rank sends nothing and calls nothing") {
    for (const merge_kind kind : kinds) CHECK((counted(kind, gqa_shape(1, 32, 64, 128)) == bytes{}));
}

TEST_CASE("Published byte counts come out exactly") {
    CHECK((counted(merge_kind::ag_rs, mla_shape(8, 1)) == bytes{129024, 3584, 114688, 0, 247296, 3}));
    CHECK((counted(merge_kind::a2a, mla_shape(8, 1)) == bytes{129024, 0, 115136, 0, 244160, 2}));
    CHECK((counted(merge_kind::ag_rs, gqa_shape(8, 1, 64, 128)) == bytes{14336, 1792, 14336, 0, 30464, 3}));
    CHECK(counted(merge_kind::a2a, gqa_shape(8, 1, 64, 128)).total == 28896);
    CHECK(replicated(merge_kind::a2a, gqa_shape(8, 1, 64, 128)).total == 14560);
    CHECK((counted(merge_kind::ag_rs, gqa_shape(4, 8, 32, 128)) == bytes{49152, 3072, 49152, 0, 101376, 3}));
    CHECK((counted(merge_kind::ag_ar, gqa_shape(4, 8, 32, 128)) == bytes{49152, 3072, 98304, 0, 150528, 3}));
    CHECK((counted(merge_kind::a2a, gqa_shape(4, 8, 32, 128)) == bytes{49152, 0, 49920, 0, 99072, 2}));
    CHECK((counted(merge_kind::a2a, mla_shape(8, 4)) == bytes{516096, 0, 460544, 0, 976640, 2}));
}

TEST_CASE("Published tables of KiB a layer come out, to their last digit") {
    struct row {
        std::int64_t ranks, heads;
        double ag_rs[3], ag_ar[3], a2a[3], no_gather[3]; // 1, 32 and 128 rows
    };
    const row table[] = {
        {8, 64, {29.8, 952, 3808}, {43.8, 1400, 5600}, {28.2, 903, 3612}, {14.2, 455, 1820}},
        {4, 32, {12.4, 396, 1584}, {18.4, 588, 2352}, {12.1, 387, 1548}, {6.1, 195, 780}},
        {2, 16, {4.1, 130, 520}, {6.1, 194, 776}, {4.0, 129, 516}, {2.0, 65, 260}},
        {2, 8, {2.0, 65, 260}, {3.0, 97, 388}, {2.0, 64.5, 258}, {1.0, 32.5, 130}},
    };
    for (const row& one : table)
        for (std::size_t i = 0; i < 3; ++i) {
            const exchange_shape shape = gqa_shape(one.ranks, i == 0 ? 1 : (i == 1 ? 32 : 128), one.heads, 128);
            CHECK(fits(counted(merge_kind::ag_rs, shape).total, one.ag_rs[i]));
            CHECK(fits(counted(merge_kind::ag_ar, shape).total, one.ag_ar[i]));
            CHECK(fits(counted(merge_kind::a2a, shape).total, one.a2a[i]));
            CHECK(fits(replicated(merge_kind::a2a, shape).total, one.no_gather[i]));
        }
    const double latent[3][5] = {
        {241.5, 353.5, 238.4, 112.4, 126}, {7728, 11312, 7630, 3598, 4032}, {30912, 45248, 30520, 14392, 16128}};
    for (std::size_t i = 0; i < 3; ++i) {
        const exchange_shape shape = mla_shape(8, i == 0 ? 1 : (i == 1 ? 32 : 128));
        CHECK(fits(counted(merge_kind::ag_rs, shape).total, latent[i][0]));
        CHECK(fits(counted(merge_kind::ag_ar, shape).total, latent[i][1]));
        CHECK(fits(counted(merge_kind::a2a, shape).total, latent[i][2]));
        CHECK(fits(replicated(merge_kind::a2a, shape).total, latent[i][3]));
        CHECK(fits(counted(merge_kind::a2a, shape).gather_q, latent[i][4]));
    }
}

TEST_CASE("Published tables of KiB for LSEs alone come out; theirs are pairs, of twice the bytes") {
    const struct {
        std::int64_t ranks, heads;
        double kib[3]; // 1, 32 and 128 rows
    } table[] = {{8, 64, {3.5, 112, 448}}, {4, 32, {.75, 24, 96}}, {2, 16, {.125, 4, 16}}, {2, 8, {.0625, 2, 8}}};
    for (const auto& one : table)
        for (std::size_t i = 0; i < 3; ++i) {
            const std::int64_t rows = i == 0 ? 1 : (i == 1 ? 32 : 128);
            const bytes sent = replicated(merge_kind::deferred, gqa_shape(one.ranks, rows, one.heads, 128));
            CHECK(2 * static_cast<double>(sent.total) == 1024 * one.kib[i]);
            CHECK(sent.collectives == 1);
        }
}

TEST_CASE("Byte counts are 64-bit") {
    exchange_shape shape = mla_shape(8, 10'000'000);
    shape.partial_bytes = 4;
    for (const merge_kind kind : kinds) CHECK((counted(kind, shape) == formulas(kind, shape)));
    CHECK(counted(merge_kind::deferred, shape).gather_lse == 7ULL * 10'000'000 * 128 * 4);
    CHECK(counted(merge_kind::ag_rs, shape).outputs == 7ULL * 10'000'000 * 16 * 512 * 4);
}

TEST_CASE("Calls are listed in the order in which they are made, with their groups and types") {
    exchange_shape shape = gqa_shape(8, 5, 32, 16);
    shape.distinct_tp = 4;
    shape.placement = output_placement::own_heads;
    shape.merged_lse = true;
    shape.query_type = scalar_type::bf16;
    shape.partial_type = scalar_type::f32;
    shape.output_type = scalar_type::f16;
    const collective_schedule list = layer_schedule(merge::a2a{}, shape);
    const struct {
        collective_op op;
        group_role group;
        scalar_type type;
        int size;
        const char* what;
    } expected[] = {{collective_op::all_gather, group_role::query, scalar_type::bf16, 4, "queries"},
                    {collective_op::all_to_all, group_role::kv, scalar_type::f32, 8, "outputs with LSE"},
                    {collective_op::all_gather, group_role::heads, scalar_type::f16, 2, "merged heads"},
                    {collective_op::all_gather, group_role::heads, scalar_type::f32, 2, "merged LSE"}};
    REQUIRE(list.count == 4);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(list.calls[i].op == expected[i].op);
        CHECK(list.calls[i].group == expected[i].group);
        CHECK(list.calls[i].type == expected[i].type);
        CHECK(list.calls[i].size == expected[i].size);
        CHECK(std::string(list.calls[i].what) == expected[i].what);
    }
    shape.placement = output_placement::all_heads;
    const collective_schedule all = layer_schedule(merge::ag_rs{}, shape);
    REQUIRE(all.count == 4); // queries, LSE, outputs, heads; every LSE is known already
    CHECK(all.calls[3].group == group_role::kv);
    CHECK(all.calls[3].size == 8);
}
