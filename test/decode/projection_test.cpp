// A whole attention block over ranks: each multiplies its rows of the query projection, decodes, multiplies its columns
// of the output projection, and the products of the ranks that the mesh names add up to the unsharded block.
#include "block_weights.hpp"

using namespace ctxpar_test;

namespace {

template <class Policy>
void check_block(const deployment& d) {
    const mesh ranks(d.sizes, {d.is_mla ? attention_kind::mla : attention_kind::gqa, d.q_heads, d.kv_heads});
    const planted_data data = plant(d);
    const block_weights weights(d, data);
    planted_data without_queries = data;
    std::fill(without_queries.q.begin(), without_queries.q.end(), std::numeric_limits<float>::quiet_NaN());

    const run_result got = run_ranks<Policy, float, lse_base::natural>(
        d, without_queries, policy_for<Policy>(d), plain_backends(d), [&](auto& rank, const decode_step&) {
            const head_range rows = ranks.query_projection(rank.used().shape().rank, d.replicated_q);
            rank.set_queries(weights.project_queries(d, rows));
        });

    const expectation want = expected(d, data);
    std::vector<double> right(static_cast<std::size_t>(d.rows() * hidden_out), 0.0);
    weights.add_output(d, {0, d.q_heads}, want.out, right);
    double worst = 0.0;
    for (std::int64_t rank = 0; rank < d.world(); ++rank) {
        std::vector<double> sum(right.size(), 0.0);
        for (const std::int64_t member : ranks.output_projection(rank, d.placement).sum.members)
            weights.add_output(d, ranks.output_projection(member, d.placement).heads,
                               got.outputs[static_cast<std::size_t>(member)].out, sum);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] -= right[i];
        worst = std::max(worst, norm(sum));
    }
    INFO(describe(d));
    CHECK(worst <= exact_bound * norm(weights.output) * norm(want.out));
}

// Every placement and merge that the topology allows, the merges taken in turn.
template <class Policy>
void check_topology_of(deployment d) {
    const mesh ranks(d.sizes, {d.is_mla ? attention_kind::mla : attention_kind::gqa, d.q_heads, d.kv_heads});
    for (const output_placement placement : {output_placement::own_heads, output_placement::scattered,
                                             output_placement::all_heads, output_placement::partial_sums}) {
        if (placement == output_placement::scattered && !ranks.scatters_heads()) continue;
        for (const bool replicated_q : {false, true}) {
            d.placement = placement;
            d.replicated_q = replicated_q;
            ++d.seed;
            d.merge = ranks.scatters_heads() ? static_cast<merge_kind>(d.seed % 3) : merge_kind::ag_ar;
            if (placement == output_placement::partial_sums) d.merge = merge_kind::deferred;
            check_block<Policy>(d);
        }
    }
}

template <class Policy>
std::int64_t check_all_topologies(deployment d) {
    std::int64_t count = 0;
    for (std::int64_t tp = 1; tp <= 4; ++tp) {
        for (std::int64_t pcp = 1; pcp <= 4; ++pcp) {
            const attention_kind kind = d.is_mla ? attention_kind::mla : attention_kind::gqa;
            for (const std::int64_t dcp : legal_dcp({tp, pcp, 1, 1, 1, 1}, {kind, d.q_heads, d.kv_heads})) {
                d.sizes = {tp, pcp, dcp, 1, 1, 1};
                d.seed = static_cast<std::uint64_t>(tp * 100 + pcp * 10 + dcp);
                check_topology_of<Policy>(d);
                ++count;
            }
        }
    }
    return count;
}

deployment tiny() {
    deployment d;
    d.element = d.kv_element = scalar_type::f32;
    d.key_width = 4;
    d.value_width = 3;
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{33, 2}, {5, 1}};
    return d;
}

} // namespace

TEST_CASE("a block of grouped-query attention is the unsharded block in every legal topology") {
    using policy_type = policy<gqa<float, dynamic, dynamic>, interleave<>, merge::dynamic>;
    deployment d = tiny();
    for (const auto& [q_heads, kv_heads] : {std::array{48, 1}, std::array{12, 2}, std::array{12, 4}}) {
        d.q_heads = q_heads;
        d.kv_heads = kv_heads;
        CHECK(check_all_topologies<policy_type>(d) >= 20);
    }
}

TEST_CASE("a block of latent attention is the unsharded block in every legal topology") {
    using policy_type = policy<mla<float, dynamic, dynamic>, interleave<>, merge::dynamic>;
    deployment d = tiny();
    d.is_mla = true;
    for (const std::int64_t q_heads : {48, 12}) {
        d.q_heads = q_heads;
        CHECK(check_all_topologies<policy_type>(d) >= 20);
    }
}
