// A prefill step of any number of layers works in the workspace it is planned into: nothing allocates, nor does the
// plan.
#include <doctest/doctest.h>

#include <cstddef>

#include "../support/counted_allocations.hpp"
#include "small_world.hpp"

using namespace small_world;

namespace {

// The allocations of plan, append, attend and restore in some steps of all ranks, over communicators that allocate
// nothing themselves.
std::int64_t allocations_of(const setting& s) {
    using prefiller_type = prefiller<policy_type, cpu_backend, local_communicator>;
    local_world kv(static_cast<int>(s.sizes.dcp)), rows(static_cast<int>(s.sizes.pcp));
    num_allocations = 0;
    on_all_ranks(s, [&](std::int64_t rank) {
        local_communicator kv_rank = kv.rank(static_cast<int>(rank)), rows_rank = rows.rank(static_cast<int>(rank));
        prefill_shape shape = shape_of(s, rank);
        shape.merged_lse = false;
        prefiller_type used({&kv_rank, nullptr, nullptr, &rows_rank}, shape, policy_of(s));
        host_workspace memory(used.workspace_bytes());
        const std::int64_t blocks = s.longest() / s.block_size + 1;
        const std::int64_t heads = s.kv_heads;
        std::vector<float> pool_k(
            static_cast<std::size_t>(s.num_requests() * blocks * s.block_size * heads * key_width));
        std::vector<float> pool_v(pool_k.size());
        const auto cache = nhd_kv(pool_k.data(), pool_v.data(), s.num_requests() * blocks, s.block_size, heads,
                                  key_width, value_width);
        std::vector<std::int64_t> computed, tokens, kinds;
        for (const request& each : s.requests) {
            computed.push_back(each.computed);
            tokens.push_back(each.tokens);
            kinds.push_back(each.decodes ? 1 : 0);
        }
        prefill_batch batch;
        batch.requests = s.num_requests();
        batch.computed = index_of(computed.data());
        batch.tokens = index_of(tokens.data());
        batch.kinds = index_of(kinds.data());
        batch.table = identity_table(s.num_requests(), s.block_size, blocks);
        std::vector<float> q(static_cast<std::size_t>(s.batch_rows() * s.q_heads * key_width), 0.5F), out(q.size());
        std::vector<float> hidden(static_cast<std::size_t>(s.batch_rows() * 2)), all(hidden.size());
        const auto read = [](const std::vector<float>& list, std::int64_t count, std::int64_t h, std::int64_t width) {
            return dense_view(list.data(), count, h, width);
        };
        for (int number = 0; number < 20; ++number) {
            is_counting = true;
            const prefill_step step = used.plan(batch, memory, {});
            for (int layer = 0; layer < 3; ++layer) {
                used.append(step, read(q, step.rows(), heads, key_width), read(q, step.rows(), heads, value_width),
                            cache, {});
                used.attend(step, read(q, step.rows(), s.q_heads, key_width), kv_view<const float>(cache),
                            dense_view(out.data(), step.rows(), s.q_heads, value_width), layer_options<>{}, {});
            }
            used.restore(step, read(hidden, step.rows(), 1, 2), dense_view(all.data(), s.batch_rows(), 1, 2), {});
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

TEST_CASE("plan, append, attend and restore allocate nothing") {
    for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv, prefill_path::automatic}) {
        setting s;
        s.sizes.pcp = s.sizes.dcp = 2;
        s.prefill_rows = path;
        s.requests = {{40, 9, false}, {7, 1, true}, {0, 4, false}};
        CHECK(allocations_of(s) == 0);
    }
}
