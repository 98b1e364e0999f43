// The bounds and the data of these tests find faults: every seeded one is further off than ten times what is allowed.
// They are seeded through policies and backends that a user could write, which without a fault are exact.
#include <doctest/doctest.h>

#include <functional>

#include "../support/drawn.hpp"
#include "user_policies.hpp"

using namespace ctxpar_test;

namespace {

using user_policy = policy<thin_attention, half_a_block, gather_all>;

// Of the user's policies; the scale is stated for the reference, the decoder takes it from the policy.
deployment users_own(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    deployment d;
    d.sizes = {tp, pcp, dcp, 1, 1, 1};
    d.key_width = 12;
    d.value_width = 10;
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{131, 3}, {64, 1}, {35, 2}};
    d.softmax_scale = thin_attention::scale;
    return d;
}

distance run_users(const deployment& d, const planted_data& data, merge_fault fault,
                   step_fault step = step_fault::none) {
    deployment by_default = d;
    by_default.softmax_scale = 0.0F;
    const user_policy chosen{{}, {2 * d.interleave}, {fault}};
    const run_result got = run_ranks<user_policy>(by_default, data, chosen, [&](int) { return faulty_backend(step); });
    for (const rank_report& report : got.reports) CHECK(report.bytes_sent == report.schedule.bytes_sent());
    return distance_between(d, expected(d, data), got.outputs);
}

const std::array<std::array<std::int64_t, 3>, 3> topologies{{{2, 1, 2}, {1, 4, 4}, {2, 2, 4}}};

void check_fault(merge_fault fault, step_fault step, const std::function<void(deployment&)>& change = {}) {
    for (const auto& [tp, pcp, dcp] : topologies) {
        deployment d = users_own(tp, pcp, dcp);
        if (change) change(d);
        if (!is_drawn(d)) continue;
        const planted_data data = plant(d);
        INFO(describe(d));
        CHECK(run_users(d, data, merge_fault::none).right());
        CHECK(run_users(d, data, fault, step).out > 10.0);
    }
}

// The result of running `wrong` data for `d`, where the reference reads `right` data.
void check_wrong_data(const deployment& d, const planted_data& right, const deployment& wrong_d,
                      const planted_data& wrong) {
    if (!is_drawn(d)) return;
    using policy_type = policy<gqa<bf16, 12, 10>, interleave<>, merge::a2a>;
    const auto far = [&](const deployment& run_d, const planted_data& run_data) {
        const run_result got =
            run_ranks<policy_type>(run_d, run_data, policy_for<policy_type>(run_d), plain_backends(run_d));
        return distance_between(d, expected(d, right), got.outputs);
    };
    INFO(describe(d));
    CHECK(far(d, right).right());
    CHECK(far(wrong_d, wrong).out > 10.0);
}

// Exchanges keys and values of `count` tokens from `a` and from `b`.
void swap_tokens(const deployment& d, planted_sequence& sequence, std::int64_t a, std::int64_t b, std::int64_t count) {
    const auto swap = [&](std::vector<float>& plane, std::int64_t width) {
        std::swap_ranges(plane.begin() + a * width, plane.begin() + (a + count) * width, plane.begin() + b * width);
    };
    swap(sequence.k, d.kv_heads * d.key_width);
    swap(sequence.v, d.kv_heads * d.value_width);
}

} // namespace

TEST_CASE("user-written attention, interleave and merge policies are exact") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const output_placement placement :
             {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
            deployment d = users_own(tp, pcp, dcp);
            d.placement = placement;
            d.sinks = placement == output_placement::all_heads;
            if (!is_drawn(d)) continue;
            INFO(describe(d));
            CHECK(run_users(d, plant(d), merge_fault::none).right());
        }
    }
}

TEST_CASE("a mean in place of the merge is found") {
    check_fault(merge_fault::mean, step_fault::none);
}
TEST_CASE("partials that are added without weights are found") {
    check_fault(merge_fault::nothing_scaled, step_fault::none);
}
TEST_CASE("an LSE read in the wrong base is found") {
    check_fault(merge_fault::wrong_base, step_fault::none);
}
TEST_CASE("a shard that is dropped is found") {
    check_fault(merge_fault::shard_dropped, step_fault::none);
}
TEST_CASE("a sink that joins once for every shard is found") {
    check_fault(merge_fault::sink_per_shard, step_fault::none, [](deployment& d) { d.sinks = true; });
}
TEST_CASE("an empty shard that counts is found") {
    check_fault(merge_fault::empty_counts, step_fault::none, [](deployment& d) { d.requests = {{131, 3}, {1, 1}}; });
}
TEST_CASE("a newest token that is dropped is found") {
    check_fault(merge_fault::none, step_fault::newest_dropped);
}
TEST_CASE("a causal mask aligned to the end of the local keys is found") {
    check_fault(merge_fault::none, step_fault::end_aligned);
}
TEST_CASE("a window that is one key short is found") {
    check_fault(merge_fault::none, step_fault::window_off, [](deployment& d) { d.mask.window = 20; });
}
TEST_CASE("a row that sees the next token is found") {
    check_fault(merge_fault::none, step_fault::next_seen);
}

TEST_CASE("a newest token that is counted twice is found") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        deployment d = users_own(tp, pcp, dcp);
        d.requests = {{131, 1}, {64, 1}};
        d.softmax_scale = 0.0F;
        const planted_data data = plant(d);
        deployment longer = d; // the newest token once more behind itself
        planted_data twice = data;
        for (std::size_t i = 0; i < d.requests.size(); ++i) {
            ++longer.requests[i].length;
            planted_sequence& sequence = twice.sequences[i];
            const std::vector<float> k(sequence.k.end() - d.kv_heads * d.key_width, sequence.k.end());
            const std::vector<float> v(sequence.v.end() - d.kv_heads * d.value_width, sequence.v.end());
            sequence.k.insert(sequence.k.end(), k.begin(), k.end());
            sequence.v.insert(sequence.v.end(), v.begin(), v.end());
        }
        check_wrong_data(d, data, longer, twice);
    }
}

TEST_CASE("interleave groups that are swapped between two ranks are found") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const std::int64_t interleave : {1, 4}) {
            deployment d = users_own(tp, pcp, dcp);
            d.requests = {{129, 1}};
            d.interleave = interleave;
            d.mask.window = 33; // the first visible token, 96, starts a group
            d.softmax_scale = 0.0F;
            const planted_data data = plant(d);
            planted_data swapped = data;
            swap_tokens(d, swapped.sequences[0], 96 - interleave, 96, interleave);
            check_wrong_data(d, data, d, swapped);
        }
    }
}

TEST_CASE("tokens of the step that are written in the wrong order are found") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        deployment d = users_own(tp, pcp, dcp);
        d.requests = {{131, 4}, {64, 2}};
        d.softmax_scale = 0.0F;
        const planted_data data = plant(d);
        planted_data swapped = data;
        for (std::size_t i = 0; i < d.requests.size(); ++i)
            swap_tokens(d, swapped.sequences[i], d.requests[i].length - 2, d.requests[i].length - 1, 1);
        check_wrong_data(d, data, d, swapped);
    }
}

TEST_CASE("a key whose scale is another head's is found") {
    deployment d = users_own(1, 2, 2);
    d.kv_heads = 2;
    d.softmax_scale = 0.0F;
    d.scales = scale_choice::head;
    planted_data data = plant(d);
    data.head_scales = {0.04F, 0.03F, 0.03F, 0.04F};
    using policy_type = policy<gqa<bf16, 12, 10>, interleave<>, merge::a2a>;
    // Written by one head's scale, read by the other's.
    std::vector<rank_output> outputs(2);
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        decode_rank<policy_type> rank(world, d, data, policy_for<policy_type>(d), suite_ranks::backend());
        rank.fill();
        const decode_step step = rank.plan();
        rank.append(step);
        rank.wait();
        float* const scales = rank.pool().view().k_scale.data;
        std::swap(scales[0], scales[1]);
        rank_report report;
        decode_into<float, lse_base::natural>(d, rank, step, outputs[static_cast<std::size_t>(world.rank())], report);
    });
    CHECK(distance_between(d, expected(d, data), outputs).out > 10.0);
}
