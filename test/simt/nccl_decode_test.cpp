// A whole decode over the emulated NCCL, on a device for each rank: exact for every merge, and it sends the bytes that
// the schedule says.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>

#include <ctxpar/cuda.cuh>

#include "../support/decode_ranks.hpp"
#include "nccl.hpp"

using namespace ctxpar_test;

namespace {

// The kind of ranks (test/support/local_ranks.hpp) that this file is about.
struct nccl_ranks {
    using backend = cuda_backend;
    using communicator = owning_nccl_communicator;
    using stream_type = cudaStream_t;
    using stream = device_stream;

    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        const int ranks = static_cast<int>(d.world());
        const simt::device device({.seed = d.seed, .devices = ranks});
        const nccl_handles handles(ranks);
        run_on_devices(
            d, ranks, [&](int rank) { return handles.rank(rank, d.checks); }, fn);
    }
    static std::optional<owning_nccl_communicator> split(owning_nccl_communicator& world, int color, int key) {
        return world.split_off(color, key);
    }
    static void finish(cudaStream_t stream) { finish_stream(stream); }
};

using policy_type = policy<gqa<bf16, 64>, interleave<>, merge::dynamic>;

// Ragged lengths: an empty request, one token, a length that leaves ranks empty, drafts.
deployment ragged(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = tp == 3 ? 6 : 8;
    d.kv_heads = tp == 1 ? 2 : 1;
    d.key_width = d.value_width = 64;
    d.requests = {{0}, {1}, {3}, {61, 2}, {34}};
    d.block_size = 4;
    d.interleave = 2;
    return d;
}

void check_exact(const deployment& d) {
    INFO(describe(d));
    const planted_data data = plant(d);
    const auto make = [](int) { return cuda_backend(); };
    const auto got =
        run_ranks<policy_type, float, lse_base::natural, nccl_ranks>(d, data, policy_for<policy_type>(d), make);
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

} // namespace

TEST_CASE("ranks of NCCL decode exactly, with every merge and output placement") {
    std::uint64_t seed = 1;
    for (const auto& [tp, pcp, dcp] :
         {std::array{1, 1, 1}, std::array{2, 1, 2}, std::array{3, 1, 3}, std::array{4, 1, 4}, std::array{2, 2, 4}}) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            deployment d = ragged(tp, pcp, dcp);
            d.merge = merge;
            d.placement = seed % 3 == 0 ? output_placement::all_heads : output_placement::own_heads;
            d.sinks = seed % 4 == 0;
            d.seed = seed++;
            check_exact(d);
        }
    }
}

TEST_CASE("with A2A, NCCL moves the bytes that the formulas say, and no other") {
    for (const bool replicated : {false, true}) {
        deployment d = ragged(4, 1, 4);
        d.merge = merge_kind::a2a;
        d.replicated_q = replicated;
        d.checks = check_level::off; // digests are bytes too
        const planted_data data = plant(d);
        const auto make = [](int) { return cuda_backend(); };
        const std::uint64_t before = simt::nccl_counters().bytes_moved;
        const auto got =
            run_ranks<policy_type, float, lse_base::natural, nccl_ranks>(d, data, policy_for<policy_type>(d), make);
        std::uint64_t sum = 0;
        for (const rank_report& report : got.reports) sum += report.exchange.total;
        CHECK(sum > 0);
        CHECK(simt::nccl_counters().bytes_moved - before == sum);
    }
}

TEST_CASE("a decode over NCCL is exact for every order of streams") {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        deployment d = ragged(4, 1, 4);
        d.requests = {{9}, {30, 2}};
        d.merge = seed % 2 == 0 ? merge_kind::a2a : merge_kind::ag_rs;
        d.seed = 1000 + seed;
        check_exact(d);
    }
}
