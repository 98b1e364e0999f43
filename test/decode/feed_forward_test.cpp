// A whole layer whose attention is split over T tp ranks with N ranks each that share the KV, and all that follows over
// all T*N of them: replicated queries, decode, scattered heads through the output projection, a feed-forward network by
// columns and then by rows. Together the ranks give the unsharded layer.
#include "block_weights.hpp"

#include <ctxpar/layout/feed_forward.hpp>

using namespace ctxpar_test;

namespace {

constexpr std::int64_t inner = 24; // divided by 4 and 6 ranks

// down(relu(up(y))) for hidden states of hidden_out numbers.
struct network {
    std::vector<double> up;   // [inner][hidden_out]
    std::vector<double> down; // [hidden_out][inner]

    explicit network(std::uint64_t seed) {
        random_numbers random(seed + 7);
        for (std::int64_t i = 0; i < inner * hidden_out; ++i) up.push_back(random.normal());
        for (std::int64_t i = 0; i < inner * hidden_out; ++i) down.push_back(random.normal());
    }

    // Adds the product of columns [first, last) of up and rows of down.
    void add(std::int64_t first, std::int64_t last, const std::vector<double>& y, std::vector<double>& sum) const {
        for (std::size_t row = 0; row < y.size() / hidden_out; ++row)
            for (std::int64_t column = first; column < last; ++column) {
                double value = 0.0;
                for (std::size_t x = 0; x < hidden_out; ++x)
                    value += up[static_cast<std::size_t>(column) * hidden_out + x] * y[row * hidden_out + x];
                for (std::size_t x = 0; x < hidden_out && value > 0.0; ++x)
                    sum[row * hidden_out + x] += down[x * inner + static_cast<std::size_t>(column)] * value;
            }
    }
};

// What the ranks give: each multiplies the output of `turn` ranks further on, 0 where all is right.
std::vector<double> sharded_layer(const deployment& d, const mesh& ranks, const run_result& got,
                                  const block_weights& weights, const network& ffn, std::int64_t rank,
                                  std::size_t turn) {
    const auto size = static_cast<std::size_t>(d.rows() * hidden_out);
    std::vector<double> y(size, 0.0), z(size, 0.0);
    const std::vector<std::int64_t> members = ranks.output_projection(rank, output_placement::scattered).sum.members;
    for (std::size_t i = 0; i < members.size(); ++i) {
        const auto other = static_cast<std::size_t>(members[(i + turn) % members.size()]);
        weights.add_output(d, ranks.output_projection(members[i], output_placement::scattered).heads,
                           got.outputs[other].out, y);
    }
    const feed_forward_part part = feed_forward_shard(ranks, rank, inner);
    CHECK(part.sum.members == members); // one sum behind the other, over the same ranks
    for (const std::int64_t member : part.sum.members) {
        const feed_forward_part theirs = feed_forward_shard(ranks, member, inner);
        ffn.add(theirs.first, theirs.last, y, z);
    }
    return z;
}

template <class Policy>
void check_layer(const deployment& d, std::int64_t kv_ranks) {
    const mesh ranks(d.sizes, {d.is_mla ? attention_kind::mla : attention_kind::gqa, d.q_heads, d.kv_heads});
    const planted_data data = plant(d);
    const block_weights weights(d, data);
    const network ffn(d.seed);
    planted_data without_queries = data;
    std::fill(without_queries.q.begin(), without_queries.q.end(), std::numeric_limits<float>::quiet_NaN());
    const run_result got = run_ranks<Policy, float, lse_base::natural>(
        d, without_queries, policy_for<Policy>(d), plain_backends(d), [&](auto& rank, const decode_step& step) {
            const head_range rows = ranks.query_projection(rank.used().shape().rank, true);
            CHECK(rows.count() * (d.world() / kv_ranks) == d.q_heads); // T shards of Q
            rank.set_queries(weights.project_queries(d, rows));
            for (int i = 0; i < step.schedule.count; ++i) // and no gather of it
                CHECK(std::string(step.schedule.calls[static_cast<std::size_t>(i)].what) != "queries");
        });

    const expectation want = expected(d, data);
    std::vector<double> y(static_cast<std::size_t>(d.rows() * hidden_out), 0.0), right(y.size(), 0.0);
    weights.add_output(d, {0, d.q_heads}, want.out, y);
    ffn.add(0, inner, y, right);
    const auto distance_to = [&](std::vector<double> z) {
        for (std::size_t i = 0; i < z.size(); ++i) z[i] -= right[i];
        return norm(z) / norm(right);
    };
    INFO(describe(d));
    for (std::int64_t rank = 0; rank < d.world(); ++rank) {
        CHECK(distance_to(sharded_layer(d, ranks, got, weights, ffn, rank, 0)) <= 1e-5);
        CHECK(distance_to(sharded_layer(d, ranks, got, weights, ffn, rank, 1)) > 1e-2);
        CHECK(ranks.output_projection(rank, output_placement::scattered).heads.count() * d.world() == d.q_heads);
    }
}

// Attention TP x KV ranks, as {tp, kv ranks}; both ways to write it as a topology.
template <class Policy>
void check_layouts(deployment d) {
    for (const auto& [tp, kv_ranks] : {std::array{2, 2}, std::array{1, 4}, std::array{2, 3}}) {
        for (const bool over_pcp : {false, true}) {
            for (const merge_kind merge : {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar}) {
                d.sizes = over_pcp ? topology{tp, kv_ranks, kv_ranks} : topology{tp * kv_ranks, 1, kv_ranks};
                if (!d.is_mla) d.kv_heads = over_pcp ? 2 * tp : tp;
                d.q_heads = 4 * tp * kv_ranks;
                d.merge = merge;
                ++d.seed;
                check_layer<Policy>(d, kv_ranks);
            }
        }
    }
}

deployment small() {
    deployment d;
    d.element = d.kv_element = scalar_type::f32;
    d.key_width = 6;
    d.value_width = 4;
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{33, 2}, {5, 1}, {1, 1}};
    d.placement = output_placement::scattered;
    d.replicated_q = true;
    return d;
}

} // namespace

TEST_CASE("a layer of grouped-query attention and a network split over all ranks is the unsharded layer") {
    check_layouts<policy<gqa<float, dynamic, dynamic>, interleave<>, merge::dynamic>>(small());
}

TEST_CASE("a layer of latent attention and a network split over all ranks is the unsharded layer") {
    deployment d = small();
    d.is_mla = true;
    check_layouts<policy<mla<float, dynamic, dynamic>, interleave<>, merge::dynamic>>(d);
}
