// A whole decode whose ranks share the emulated device and read each other's partial states where they lie: exact for
// every merge, with the launches that the kernels promise, and without a host that waits.
#include <doctest/doctest.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <ctxpar/cuda.cuh>

#include "../support/decode_ranks.hpp"

using namespace ctxpar_test;

namespace {

// The kind of ranks (test/support/local_ranks.hpp) that this file is about.
struct ranks_of_process {
    using backend = cuda_backend;
    using communicator = local_cuda_communicator;
    using stream_type = cudaStream_t;
    using stream = device_stream;

    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        const simt::device device({.seed = d.seed});
        local_cuda_group group(static_cast<int>(d.world()), {.checks = d.checks});
        run_on_devices(
            d, 1, [&](int rank) { return group.rank(rank); }, fn);
    }
    static std::optional<local_cuda_communicator> split(local_cuda_communicator& world, int color, int key) {
        return world.split(color, key);
    }
    static void finish(cudaStream_t stream) { finish_stream(stream); }
};

using policy_type = policy<gqa<bf16, 64>, interleave<>, merge::dynamic>;
using rank_type = decode_rank<policy_type, cuda_backend, ranks_of_process>;

// Ragged lengths: an empty request, one token, a length that leaves ranks empty, drafts.
deployment ragged(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 8;
    d.kv_heads = tp == 1 ? 2 : 1;
    d.key_width = d.value_width = 64;
    d.requests = {{0}, {1}, {3}, {131, 2}, {64}};
    d.block_size = 4;
    d.interleave = 2;
    return d;
}

void check_exact(const deployment& d) {
    INFO(describe(d));
    const planted_data data = plant(d);
    const auto make = [](int) { return cuda_backend(); };
    const auto got =
        run_ranks<policy_type, float, lse_base::natural, ranks_of_process>(d, data, policy_for<policy_type>(d), make);
    CHECK(got.problem() == "");
    const distance far = distance_between(d, expected(d, data), got.outputs);
    CHECK(far.out <= 1.0);
    CHECK(far.lse <= 1.0);
    for (const rank_report& report : got.reports) {
        CHECK(report.bytes_sent == report.schedule.bytes_sent());
        CHECK(report.bytes_sent == report.exchange.total);
        CHECK(report.other_bytes == 0); // plan and append send nothing
    }
}

// What append and decode of one layer cost on all ranks together.
struct layer_cost {
    std::vector<std::uint64_t> launches; // of each rank
    simt::device_counts before, after;
    bool all_right = true;
};

layer_cost cost_of_layer(const deployment& d) {
    const planted_data data = plant(d);
    const auto world = static_cast<std::size_t>(d.world());
    layer_cost cost{std::vector<std::uint64_t>(world), {}, {}, true};
    std::vector<rank_output> outputs(world);
    std::barrier together(static_cast<std::ptrdiff_t>(d.world()));
    ranks_of_process::run(d, [&](local_cuda_communicator& comm) {
        const auto number = static_cast<std::size_t>(comm.rank());
        rank_type rank(comm, d, data, policy_for<policy_type>(d), cuda_backend());
        output_buffer<float> out(d.rows(), rank.facts().output.count, d.value_width, false, false);
        output_buffer<natural_lse> lses(d.rows(), rank.facts().output.count, 1, false, false);
        rank.fill();
        const decode_step step = rank.plan();
        rank.wait();
        together.arrive_and_wait();
        if (number == 0) cost.before = simt::device_counters();
        together.arrive_and_wait();
        const std::uint64_t launched = rank.used().used_backend().launches();
        rank.append(step);
        rank.decode(step, out.view(), lses.view());
        cost.launches[number] = rank.used().used_backend().launches() - launched;
        together.arrive_and_wait();
        if (number == 0) cost.after = simt::device_counters();
        together.arrive_and_wait();
        rank.wait();
        outputs[number].out = out.values([](float value) { return value; });
        outputs[number].lse = lses.values([](natural_lse value) { return value.value; });
    });
    cost.all_right = distance_between(d, expected(d, data), outputs).right();
    return cost;
}

// Layers given one after another, each of which overwrites what the one before has shown to its peers; whether all are
// right.
bool layers_are_exact(const deployment& d) {
    const std::array<float, 3> scales{0.125F, 0.3F, 0.02F};
    const planted_data data = plant(d);
    std::array<std::vector<rank_output>, 3> outputs;
    for (auto& layer : outputs) layer.resize(static_cast<std::size_t>(d.world()));
    ranks_of_process::run(d, [&](local_cuda_communicator& comm) {
        rank_type rank(comm, d, data, policy_for<policy_type>(d), cuda_backend());
        rank.fill();
        const decode_step step = rank.plan();
        rank.append(step);
        std::deque<output_buffer<float>> outs;
        std::deque<output_buffer<natural_lse>> lses;
        for (const float scale : scales) {
            outs.emplace_back(d.rows(), rank.facts().output.count, d.value_width, false, false);
            lses.emplace_back(d.rows(), rank.facts().output.count, 1, false, false);
            layer_options<> options;
            options.softmax_scale = scale;
            options.lse_out = lses.back().view();
            rank.used().decode(step, rank.queries(), kv_view<const bf16>(rank.pool().view()), outs.back().view(),
                               options, rank.stream());
        }
        rank.wait();
        for (std::size_t layer = 0; layer < scales.size(); ++layer) {
            rank_output& output = outputs[layer][static_cast<std::size_t>(comm.rank())];
            output.out = outs[layer].values([](float value) { return value; });
            output.lse = lses[layer].values([](natural_lse value) { return value.value; });
        }
    });
    bool all_right = true;
    for (std::size_t layer = 0; layer < scales.size(); ++layer) {
        deployment one = d;
        one.softmax_scale = scales[layer];
        const distance far = distance_between(one, expected(one, data), outputs[layer]);
        all_right = far.out <= 1.0 && far.lse_of_scores <= 1.0 && all_right; // scales are large
    }
    return all_right;
}

} // namespace

TEST_CASE("ranks that share a device decode exactly, with every merge and output placement") {
    std::uint64_t seed = 1;
    for (const auto& [tp, pcp, dcp] : {std::array{1, 1, 1}, std::array{2, 1, 2}, std::array{4, 1, 4},
                                       std::array{8, 1, 8}, std::array{1, 4, 4}, std::array{2, 2, 4}}) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a, merge_kind::deferred}) {
            deployment d = ragged(tp, pcp, dcp);
            d.merge = merge;
            d.placement = seed % 3 == 0 ? output_placement::all_heads : output_placement::own_heads;
            if (merge == merge_kind::deferred) d.placement = output_placement::partial_sums;
            d.sinks = seed % 4 == 0;
            d.seed = seed++;
            check_exact(d);
        }
    }
}

TEST_CASE("layers that follow each other without a wait are exact for every order of streams") {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        deployment d = ragged(4, 1, 4);
        d.requests = {{9}, {30, 2}};
        d.merge = std::array{merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::deferred}[seed % 4];
        if (d.merge == merge_kind::deferred) d.placement = output_placement::partial_sums;
        d.replicated_q = true; // a gather of queries would order the layers
        d.seed = 1000 + seed;
        INFO(describe(d));
        CHECK(layers_are_exact(d));
    }
}

TEST_CASE("append and decode with A2A take four launches, three where keys are not split; no host waits") {
    for (const std::int64_t splits : {1, 4}) {
        deployment d = ragged(4, 1, 4);
        d.merge = merge_kind::a2a;
        d.max_splits = splits;
        const layer_cost cost = cost_of_layer(d);
        CHECK(cost.all_right);
        CHECK(cost.launches == std::vector<std::uint64_t>(4, splits == 1 ? 3 : 4));
        CHECK(cost.after.launches - cost.before.launches == 4 * (splits == 1 ? 3 : 4));
        CHECK(cost.after.synchronisations == cost.before.synchronisations);
        CHECK(cost.after.allocations == cost.before.allocations);
        CHECK(cost.after.copies - cost.before.copies == 4 * 4); // queries; partial states are read in place
    }
}
