// A prompt prefilled over 4 PCP ranks that share its KV cache, while another request decodes. The README shows main().
#include <cstdint>
#include <vector>

#include <ctxpar/ctxpar.hpp>

using namespace ctxpar;

int main() {
    using chosen = policy<gqa<bf16, 128>, interleave<16>, merge::a2a>;
    local_world kv_ranks(4); // an engine brings its own communicators: the ranks that share the KV ...
    run_local_ranks(4, {}, [&](local_communicator& rows) { // ... and the PCP ranks
        local_communicator kv = kv_ranks.rank(rows.rank());
        prefill_shape shape{.sizes = {.pcp = 4, .dcp = 4}, .q_heads = 32, .kv_heads = 8};
        shape.max_requests = 2;
        shape.max_rows = 300; // of one rank: a quarter of the prompts, and all decode rows
        shape.longest = 4096;
        shape.hidden_bytes = 4096 * sizeof(bf16); // of a row that restore() moves
        prefiller<chosen, cpu_backend, local_communicator> prefiller{{&kv, nullptr, nullptr, &rows}, shape};
        host_workspace memory{prefiller.workspace_bytes()};

        std::vector<bf16> pool(2 * 128 * 16 * 8 * 128); // the engine's own: 128 blocks of 16 tokens
        auto cache = stacked_kv(pool.data(), 128, 16, 8, 128, 128);
        const std::int64_t computed[] = {2048, 77}, tokens[] = {1000, 1}; // a chunk of a prompt, and a decode
        const std::int32_t kinds[] = {0, 1};
        prefill_batch batch{.requests = 2, .computed = index_of(computed), .tokens = index_of(tokens)};
        batch.kinds = index_of(kinds);
        batch.table = identity_table(2, 16, 64);

        auto step = prefiller.plan(batch, memory, {}); // once a step
        const std::int64_t n = step.rows();            // this rank's: 250 of the chunk, and the decode row
        std::vector<bf16> k(n * 8 * 128), v(n * 8 * 128), q(n * 32 * 128), out(n * 32 * 128), last(2 * 32 * 128);
        prefiller.append(step, dense_view<const bf16>(k.data(), n, 8, 128), // per layer: new keys reach their owners,
                         dense_view<const bf16>(v.data(), n, 8, 128), cache, {});
        prefiller.attend(step, dense_view<const bf16>(q.data(), n, 32, 128), cache, // all rows attend, exactly
                         dense_view(out.data(), n, 32, 128), {}, {});
        prefiller.restore_last(step, dense_view<const bf16>(out.data(), n, 1, 4096), // for sampling
                               dense_view(last.data(), 2, 1, 4096), {});
    });
}
