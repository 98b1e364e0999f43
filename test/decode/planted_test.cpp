// The data of these tests can tell: what a fault would lose, or count twice, carries weight.
#include <doctest/doctest.h>

#include "../support/exactness.hpp"

using namespace ctxpar_test;

namespace {

// The largest share of any row and head that a token has, or would have if it were visible.
double share_of(const attention_problem& ask, const attention_result& whole, std::int64_t token) {
    attention_problem open = ask;
    open.window = open.chunk = open.prefix = 0;
    open.tree = nullptr;
    double most = 0.0;
    for (std::int64_t row = 0; row < ask.rows; ++row) {
        // As one row at the end of the sequence, which sees every token.
        open.rows = 1;
        open.q = ask.q + row * ask.q_heads * ask.key_width;
        const attention_result alone = attend(open, [&](std::int64_t other) { return other == token; });
        for (std::int64_t head = 0; head < ask.q_heads; ++head) {
            const double score = alone.lse[static_cast<std::size_t>(head)];
            const double lse = whole.lse[static_cast<std::size_t>(row * ask.q_heads + head)];
            const double odds = std::exp(score - lse);
            most = std::max(most, is_visible(ask, row, token) ? odds : odds / (1.0 + odds));
        }
    }
    return most;
}

// The largest distance between the LSEs of two shards, of any head in the last row.
double spread_of(const deployment& d, const attention_problem& ask) {
    std::vector<attention_result> shards;
    for (std::int64_t shard = 0; shard < d.dcp(); ++shard)
        shards.push_back(attend(ask, [&](std::int64_t token) { return d.owner(token) == shard; }));
    double most = 0.0;
    for (std::int64_t head = 0; head < ask.q_heads; ++head) {
        double low = -minus_infinity, high = minus_infinity;
        for (const attention_result& shard : shards) {
            const double lse = shard.lse[static_cast<std::size_t>((ask.rows - 1) * ask.q_heads + head)];
            if (lse == minus_infinity) continue;
            low = std::min(low, lse);
            high = std::max(high, lse);
        }
        most = std::max(most, high - low);
    }
    return most;
}

void check_data(const deployment& d) {
    const planted_data data = plant(d);
    for (std::size_t i = 0; i < d.requests.size(); ++i) {
        INFO(describe(d), " request ", i);
        const cached_sequence cache = cached(d, data, i);
        const attention_problem ask = problem_of(d, data, cache, i);
        const attention_result whole = attend(ask);
        double least = 1.0;
        for (const std::int64_t token : data.sequences[i].planted) least = std::min(least, share_of(ask, whole, token));
        CHECK(least >= 0.05);
        std::int64_t visible = 0;
        for (std::int64_t token = 0; token < ask.length; ++token) visible += is_visible(ask, ask.rows - 1, token);
        if (visible >= 2 * d.dcp() * d.interleave) CHECK(spread_of(d, ask) >= 2.0);
    }
}

deployment base() {
    deployment d;
    d.q_heads = 16;
    d.requests = {{131, 3}, {64, 1}, {257, 5}};
    d.interleave = 4;
    d.block_size = 4;
    return d;
}

} // namespace

TEST_CASE("planted tokens carry weight and make shards differ, for any number of shards and heads") {
    for (const std::int64_t n : {2, 3, 4, 8}) {
        for (const std::int64_t kv_heads : {1, 2, 4}) {
            for (const std::int64_t width : {16, 64, 128}) {
                deployment d = base();
                d.sizes.dcp = n;
                d.kv_heads = kv_heads;
                d.key_width = width;
                d.seed = static_cast<std::uint64_t>(n * 10 + kv_heads);
                check_data(d);
            }
        }
    }
}

TEST_CASE("planted tokens carry weight at the edges of masks") {
    for (const mask_rule& mask : {mask_rule{17, 0, 0}, mask_rule{0, 32, 0}, mask_rule{17, 0, 5}, mask_rule{0, 64, 3}}) {
        deployment d = base();
        d.sizes.dcp = 3;
        d.mask = mask;
        d.key_width = 32;
        check_data(d);
    }
}

TEST_CASE("planted latent rows carry weight and make shards differ") {
    deployment d = base();
    d.is_mla = true;
    d.key_width = 48;
    d.value_width = 32;
    d.sizes.dcp = 4;
    check_data(d);
    d.kv_element = scalar_type::e4m3;
    d.scales = scale_choice::token;
    check_data(d);
}
