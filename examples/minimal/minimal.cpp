// One decode step over 4 ranks, each with a quarter of the KV cache. The README shows the body of main().
#include <cstdint>
#include <vector>

#include <ctxpar/ctxpar.hpp>

using namespace ctxpar;

int main() {
    using chosen = policy<gqa<bf16, 128>, interleave<16>, merge::a2a>;
    run_local_ranks(4, {}, [](local_communicator& kv) { // on each rank; an engine brings its own communicator
        decode_shape shape{.sizes = {.tp = 4, .dcp = 4}, .q_heads = 32, .kv_heads = 1};
        shape.longest = 4096;
        shape.pool_blocks = 64; // of 16 tokens: a quarter of 4096
        decoder<chosen, cpu_backend, local_communicator> decoder{{&kv}, shape};
        host_workspace memory{decoder.workspace_bytes()};

        std::vector<bf16> pool(2 * 64 * 16 * 128), new_kv(2 * 128), q(8 * 128), out(8 * 128); // the engine's own
        std::vector<std::int32_t> block_ids(64, 0);
        const std::int64_t length = 1; // tokens, the new one included
        auto cache = stacked_kv(pool.data(), 64, 16, 1, 128, 128);

        decode_batch batch{.requests = 1, .lengths = index_of(&length), .table = table_2d(block_ids.data(), 1, 64, 16)};
        auto step = decoder.plan(batch, memory, {});                        // once a step
        decoder.append(step, dense_view<const bf16>(&new_kv[0], 1, 1, 128), // and per layer: the owner writes,
                       dense_view<const bf16>(&new_kv[128], 1, 1, 128), cache, {});
        decoder.decode(step, dense_view<const bf16>(q.data(), 1, 8, 128), cache, // all attend, exactly
                       dense_view(out.data(), 1, 8, 128), {}, {});
    });
}
