// Maps of heads that launch kernels of their own on the stream they are given, as an engine's products would: no host
// waits between attention, map and exchange.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <ctxpar/cuda.cuh>

#include "../support/decode_ranks.hpp"

using namespace ctxpar_test;

namespace {

constexpr std::int64_t mapped_width = 6;

// A weight that says head, row and column of its matrix.
float weight_of(std::int64_t head, std::int64_t from, std::int64_t to) {
    return static_cast<float>((head * 7 + from * 3 + to * 5) % 11 - 5);
}

// A block for each (row, head), a thread for each number of it.
template <class P>
void up_project_kernel(head_view<const float> from, head_view<P> to, std::int64_t first_head) {
    const std::int64_t row = simt::position().block.x / from.heads, head = simt::position().block.x % from.heads;
    for (std::int64_t o = simt::position().thread.x; o < to.width; o += 32) {
        float sum = 0.0F;
        for (std::int64_t x = 0; x < from.width; ++x) sum += from.at(row, head)[x] * weight_of(first_head + head, x, o);
        to.at(row, head)[o] = static_cast<P>(sum);
    }
}

// Queries that travel are half of what they are mapped to: each number and its negative.
void unfold_kernel(head_view<const bf16> from, head_view<bf16> to) {
    const std::int64_t row = simt::position().block.x / from.heads, head = simt::position().block.x % from.heads;
    for (std::int64_t k = simt::position().thread.x; k < to.width; k += 32) {
        const float value = static_cast<float>(from.at(row, head)[k % from.width]);
        to.at(row, head)[k] = bf16(k < from.width ? value : -value);
    }
}

struct up_project {
    std::int64_t first_head;

    template <class P>
    void operator()(const head_view<const float>& from, const head_view<P>& to, cudaStream_t stream) const {
        const auto blocks = static_cast<std::uint32_t>(from.rows * from.heads);
        ctxpar::cuda::launch({blocks, 1, 32}, stream, up_project_kernel<P>, from, to, first_head);
    }
};

struct unfold {
    void operator()(const head_view<const bf16>& from, const head_view<bf16>& to, cudaStream_t stream) const {
        const auto blocks = static_cast<std::uint32_t>(from.rows * from.heads);
        ctxpar::cuda::launch({blocks, 1, 32}, stream, unfold_kernel, from, to);
    }
};

// Planted data whose queries are unfolded ones.
planted_data unfolded(const deployment& d) {
    planted_data data = plant(d);
    const std::int64_t half = d.key_width / 2;
    for (std::size_t at = 0; at < data.q.size(); ++at) {
        const auto k = static_cast<std::int64_t>(at) % d.key_width;
        if (k >= half) data.q[at] = -data.q[at - static_cast<std::size_t>(half)];
    }
    return data;
}

expectation mapped(const deployment& d, const expectation& plain) {
    expectation want = plain;
    want.out.clear();
    want.floor.clear();
    for (std::int64_t cell = 0; cell < plain.rows * d.q_heads; ++cell)
        for (std::int64_t o = 0; o < mapped_width; ++o) {
            double sum = 0.0;
            for (std::int64_t x = 0; x < d.value_width; ++x)
                sum += plain.out[static_cast<std::size_t>(cell * d.value_width + x)] *
                       static_cast<double>(weight_of(cell % d.q_heads, x, o));
            want.out.push_back(sum);
        }
    return want;
}

void check_mapped(const deployment& d) {
    using policy_type = policy<mla<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    const planted_data data = unfolded(d);
    const run_result got = run_ranks<policy_type, float, lse_base::natural>(
        d, data, policy_for<policy_type>(d), suite_ranks::backends(d),
        [&](auto& rank, const decode_step&) {
            std::vector<float> q;
            for (std::int64_t row = 0; row < d.rows(); ++row)
                for (std::int64_t head = 0; head < rank.facts().queries.count; ++head) {
                    const auto* of =
                        data.q.data() + (row * d.q_heads + rank.facts().queries.first + head) * d.key_width;
                    q.insert(q.end(), of, of + d.unmapped_query_width);
                }
            rank.set_queries(q);
        },
        [](auto& rank) {
            return head_maps{unfold{}, up_project{rank.facts().gathered.first}};
        });
    INFO(describe(d));
    CHECK(got.problem() == "");
    deployment wanted = d;
    wanted.value_width = mapped_width;
    const distance far = distance_between(wanted, mapped(d, expected(d, data)), got.outputs);
    CHECK(far.out <= 5.0); // products in fp32, whose sums cancel
    CHECK(far.lse <= 1.0);
    for (const rank_report& report : got.reports) CHECK(report.bytes_sent == report.schedule.bytes_sent());
}

} // namespace

TEST_CASE("maps that launch kernels on the stream give the mapped attention, with every merge") {
    std::uint64_t seed = 1;
    for (const auto& [tp, pcp, dcp] : {std::array{1, 1, 1}, std::array{2, 1, 2}, std::array{2, 2, 4}}) {
        for (const merge_kind merge : {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::deferred}) {
            deployment d;
            d.is_mla = true;
            d.sizes = {tp, pcp, dcp, 1, 1, 1};
            d.q_heads = 8;
            d.value_width = 16;
            d.key_width = 24;
            d.unmapped_query_width = 12;
            d.mapped_width = mapped_width;
            d.merge = merge;
            if (merge == merge_kind::deferred) d.placement = output_placement::partial_sums;
            d.interleave = 2;
            d.block_size = 4;
            d.requests = {{0}, {1}, {61, 2}, {34}};
            d.sinks = seed % 2 == 0;
            d.seed = seed++;
            check_mapped(d);
        }
    }
}
