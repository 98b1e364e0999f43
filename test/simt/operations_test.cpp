// The whole CUDA backend on the emulated machine: prefill and decode over ranks that are threads, with every operation
// a kernel, are exact.
#include <ctxpar/cuda.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "../prefill/small_batches.hpp"
#include "block.hpp"

using namespace small_world;

namespace {

void run_batch(const setting& s, simt::thread_order order, std::uint64_t seed) {
    const basic_all_groups<cudaStream_t> world(s);
    std::vector<one_rank<cuda_backend>::errors> errors(static_cast<std::size_t>(s.world()));
    std::vector<int> restored(errors.size());
    on_all_ranks(s, [&](std::int64_t rank) {
        cuda::emulated_order() = {order, seed + static_cast<std::uint64_t>(rank)};
        one_rank<cuda_backend> one(s, world, rank);
        const prefill_step step = one.plan();
        errors[static_cast<std::size_t>(rank)] = one.run(step);
        restored[static_cast<std::size_t>(rank)] = one.restores(step);
    });
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
        INFO("rank ", rank);
        CHECK(errors[rank].out <= 2e-6);
        CHECK(errors[rank].lse <= 4e-6);
        CHECK(errors[rank].filling_is_empty);
        CHECK(restored[rank]);
    }
}

} // namespace

TEST_CASE("random batches of prefills and decodes are exact on the emulated device") {
    generator random(20261130);
    for (int i = 0; i < 24; ++i) {
        const setting s = any_setting(random);
        INFO("batch ", i, ": ", describe(s));
        const auto order = static_cast<simt::thread_order>(i % 3);
        run_batch(s, order, static_cast<std::uint64_t>(i));
    }
}
