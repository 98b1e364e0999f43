// A step of any number of layers works in the workspace it is planned into: nothing allocates, nor does the plan.
#include <doctest/doctest.h>

#include "../support/counted_allocations.hpp"
#include "../support/decode_ranks.hpp"

using namespace ctxpar_test;

namespace {

constexpr int num_steps = 100;
constexpr int num_layers = 3;

// The allocations of plan, append and decode in all steps of all ranks.
template <class Policy>
std::int64_t allocations_of(const deployment& d) {
    const planted_data data = plant(d);
    num_allocations = 0;
    run_local_ranks(static_cast<int>(d.world()), {}, [&](local_communicator& world) {
        decode_rank<Policy> rank(world, d, data, policy_for<Policy>(d), cpu_backend({d.threads, d.instructions}));
        rank.fill();
        rank.append(rank.plan());
        const std::int64_t heads = rank.facts().output.count;
        output_buffer<float> out(d.rows(), heads, d.value_width, false, false);
        output_buffer<natural_lse> lses(d.rows(), heads, 1, false, false);
        const auto row = dense_view(rank.queries().base, d.rows(), rank.facts().kv.count, d.key_width);
        rank.queries();
        for (int step_number = 0; step_number < num_steps; ++step_number) {
            is_counting = true;
            const decode_step step = rank.plan();
            for (int layer = 0; layer < num_layers; ++layer) {
                rank.used().append(step, row, row, rank.pool().view(), {});
                rank.decode(step, out.view(), lses.view());
            }
            is_counting = false;
        }
    });
    return num_allocations;
}

} // namespace

TEST_CASE("allocations are counted") {
    num_allocations = 0;
    is_counting = true;
    std::vector<int> some(3);
    is_counting = false;
    CHECK(num_allocations == 1);
    CHECK(some.size() == 3);
}

TEST_CASE("plan, append and decode allocate nothing") {
    using policy_type = policy<gqa<bf16, 16>, interleave<2>, merge::dynamic>;
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        for (const output_placement placement : {output_placement::own_heads, output_placement::all_heads}) {
            deployment d;
            d.sizes = {2, 2, 4, 1, 1, 1};
            d.interleave = 2;
            d.requests = {{33, 2}, {7, 1}};
            d.merge = merge;
            d.placement = placement;
            d.threads = placement == output_placement::all_heads ? 2 : 1;
            d.sinks = true;
            CHECK(allocations_of<policy_type>(d) == 0);
        }
    }
}
