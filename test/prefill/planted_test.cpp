// The data of these tests can tell: what a fault of a prefill would lose, or count twice, carries weight.
#include <doctest/doctest.h>

#include "../support/prefill_exactness.hpp"

using namespace ctxpar_test;

namespace {

// The largest share of any head of the last row that a token has, or would have if it were visible.
double share_of(const attention_problem& last, const attention_result& whole, std::int64_t token) {
    attention_problem open = last;
    open.window = open.chunk = open.prefix = 0;
    const attention_result alone = attend(open, [&](std::int64_t other) { return other == token; });
    double most = 0.0;
    for (std::size_t head = 0; head < whole.lse.size(); ++head) {
        const double odds = std::exp(alone.lse[head] - whole.lse[head]);
        most = std::max(most, is_visible(last, 0, token) ? odds : odds / (1.0 + odds));
    }
    return most;
}

// The largest distance between the LSEs of two shards, of any head of the last row.
double spread_of(const prefill_deployment& d, const attention_problem& last) {
    std::vector<double> low(static_cast<std::size_t>(d.q_heads), -minus_infinity);
    std::vector<double> high(low.size(), minus_infinity);
    for (std::int64_t shard = 0; shard < d.dcp(); ++shard) {
        const attention_result part = attend(last, [&](std::int64_t token) { return d.owner(token) == shard; });
        for (std::size_t head = 0; head < low.size(); ++head) {
            low[head] = std::min(low[head], part.lse[head]);
            high[head] = std::max(high[head], part.lse[head]);
        }
    }
    double most = 0.0;
    for (std::size_t head = 0; head < low.size(); ++head) most = std::max(most, high[head] - low[head]);
    return most;
}

void check_data(const prefill_deployment& d) {
    const prefill_data data = plant(d);
    for (std::size_t i = 0; i < d.batch.size(); ++i) {
        const new_tokens& each = d.batch[i];
        const std::int64_t length = each.computed + each.tokens;
        INFO(describe(d), " request ", i);
        const cached_sequence cache = cached(d, data, i);
        attention_problem last = problem_of_step(d, data, cache, {length - 1, 1, false}, i);
        const attention_result whole = attend(last);
        double least = 1.0;
        for (const std::int64_t token : data.sequences[i].planted)
            least = std::min(least, share_of(last, whole, token));
        CHECK(least >= 0.05);

        // First and newest token, and both sides of every edge that was asked for.
        std::vector<std::int64_t> edges{0, length - 1, each.computed - 1, each.computed};
        for (const std::int64_t token : edges)
            CHECK((token < 0 ||
                   std::binary_search(data.sequences[i].planted.begin(), data.sequences[i].planted.end(), token)));
        std::int64_t visible = 0;
        for (std::int64_t token = 0; token < length; ++token) visible += is_visible(last, 0, token) ? 1 : 0;
        if (d.dcp() > 1 && visible >= 2 * d.dcp() * d.interleave) CHECK(spread_of(d, last) >= 2.0);
    }
}

prefill_deployment base() {
    prefill_deployment d;
    d.q_heads = 16;
    d.interleave = 2;
    d.block_size = 4;
    d.context_rows = 32;
    d.serve({prefills(90, 41), prefills(37, 9), decodes(63, 2), prefills(0, 60), prefills(50, 1)});
    return d;
}

} // namespace

TEST_CASE("planted tokens of prefills carry weight and make shards differ") {
    for (const std::int64_t n : {1, 2, 4}) {
        for (const std::int64_t kv_heads : {1, 2, 4}) {
            for (const std::int64_t width : {16, 64}) {
                prefill_deployment d = base();
                d.sizes.pcp = d.sizes.dcp = n;
                d.kv_heads = kv_heads;
                d.key_width = width;
                d.seed = static_cast<std::uint64_t>(n * 10 + kv_heads);
                check_data(d);
            }
        }
    }
}

TEST_CASE("planted tokens of prefills carry weight at the edges of masks") {
    for (const mask_rule& mask : {mask_rule{17, 0, 0}, mask_rule{0, 32, 0}, mask_rule{17, 0, 5}}) {
        prefill_deployment d = base();
        d.sizes.pcp = d.sizes.dcp = 2;
        d.mask = mask;
        check_data(d);
    }
}

TEST_CASE("planted latent rows of prefills carry weight, absorbed and up-projected") {
    prefill_deployment d = base();
    d.is_mla = true;
    d.key_width = 48;
    d.value_width = 32;
    d.sizes.pcp = d.sizes.dcp = 2;
    check_data(d);
    d.nope_width = 20;
    d.projected_value_width = 24;
    check_data(d);
}
