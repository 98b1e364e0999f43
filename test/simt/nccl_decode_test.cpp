// A whole decode over the emulated NCCL, on a device for each rank: exact for every merge, and it sends the bytes that
// the schedule says.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/cuda.cuh>

#include "../support/decode_ranks.hpp"
#include "nccl_world.hpp"

using namespace ctxpar_test;

namespace {

struct handle_end {
    void operator()(ncclComm_t handle) const { ncclCommDestroy(handle); }
};

// A communicator that destroys its handle, as the groups of a test do.
class owning_communicator : public nccl_communicator {
public:
    owning_communicator(ncclComm_t handle, const nccl_options& options)
        : nccl_communicator(handle, options), handle_(handle) {}

private:
    std::unique_ptr<ncclComm, handle_end> handle_;
};

// The kind of ranks (test/support/local_ranks.hpp) that this file is about.
struct nccl_ranks {
    using backend = cuda_backend;
    using communicator = owning_communicator;
    using stream_type = cudaStream_t;
    using stream = device_ranks::stream;

    // The orders in which streams and threads go on are others for every seed.
    template <class Fn>
    static void run(const deployment& d, const Fn& fn) {
        const int ranks = static_cast<int>(d.world());
        const simt::device device({.seed = d.seed, .devices = ranks});
        ncclUniqueId id;
        ncclGetUniqueId(&id);
        std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
        simt_test::on_ranks(ranks, [&](int rank) {
            const std::uint64_t own = d.seed * 64 + static_cast<std::uint64_t>(rank);
            cuda::emulated_order() = {static_cast<simt::thread_order>(own % 3), own};
            try {
                ncclComm_t handle = nullptr;
                require(ncclCommInitRank(&handle, ranks, id, rank) == ncclSuccess, "test", ncclGetLastError(nullptr));
                owning_communicator comm(handle, {.checks = d.checks});
                fn(comm);
            } catch (...) {
                thrown[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
        for (const std::exception_ptr& each : thrown)
            if (each != nullptr) std::rethrow_exception(each);
    }
    static std::optional<owning_communicator> split(owning_communicator& world, int color, int key) {
        const ncclComm_t part = world.split(color, key);
        if (part == nullptr) return std::nullopt;
        return std::optional<owning_communicator>(std::in_place, part, nccl_options{.checks = world.checks()});
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
    for (const rank_report& report : got.reports) CHECK(report.bytes_sent == report.schedule.bytes_sent());
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

TEST_CASE("a decode over NCCL is exact for every order of streams") {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        deployment d = ragged(4, 1, 4);
        d.requests = {{9}, {30, 2}};
        d.merge = seed % 2 == 0 ? merge_kind::a2a : merge_kind::ag_rs;
        d.seed = 1000 + seed;
        check_exact(d);
    }
}
