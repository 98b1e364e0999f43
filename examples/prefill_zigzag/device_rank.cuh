// One rank whose cache lies on a GPU: the same calls as on a CPU, on memory of the device and with a stream.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/universal_vector.h>

#include <ctxpar/cuda.cuh>

#include "common/blocks.hpp"
#include "common/device_groups.hpp"
#include "common/progress.hpp"
#include "engine.hpp"

namespace demo {

template <class Vector>
auto* pointer(Vector& memory) {
    return thrust::raw_pointer_cast(memory.data());
}

// Makes NaN of the rows that are to be appended; a block a token.
static __global__ void forget_kernel(ctxpar::kv_view<ctxpar::bf16> cache, ctxpar::shard part, ctxpar::block_table table,
                                     std::int64_t first) {
    const std::int64_t slot = ctxpar::slot_of(part, table, 0, first + blockIdx.x);
    for (std::int64_t head = 0; slot >= 0 && head < cache.kv_heads; ++head)
        for (std::int64_t d = threadIdx.x; d < cache.key_width; d += blockDim.x) {
            cache.key(slot, head)[d] = ctxpar::bf16::from_bits(0xffff);
            cache.value(slot, head)[d] = ctxpar::bf16::from_bits(0xffff);
        }
}

// World joins the ranks on the host.
template <class Communicator, class World>
class device_prefill_rank {
public:
    using attention = ctxpar::gqa<ctxpar::bf16, 128>;
    using policy = ctxpar::policy<attention, ctxpar::interleave<>, ctxpar::merge::a2a>;
    using prefiller = ctxpar::prefiller<policy, ctxpar::cuda_backend, Communicator>;

    // `blocks` are the request's block ids, the same on every rank; `memory` is this rank's pool.
    device_prefill_rank(const problem& all, const prompt_data& data, std::int64_t dcp,
                        const std::vector<std::int32_t>& blocks, thrust::device_vector<ctxpar::bf16>& memory,
                        World& world)
        : all_(all), data_(data), dcp_(dcp), memory_(memory), world_(world),
          groups_(world, all.ranks(dcp), all.id_file), blocks_(blocks.begin(), blocks.end()),
          table_(ctxpar::table_2d(std::as_const(blocks_).data().get(), 1, all.blocks(dcp), all.block_size)) {}

    std::size_t pool_bytes() const { return memory_.size() * sizeof(ctxpar::bf16); }

    // Writes the context, chunk by chunk, without attending to it. All ranks, as all that follows.
    void fill(progress& bar) {
        prefiller with = make(ctxpar::prefill_path::automatic);
        thrust::device_vector<std::byte> workspace(with.workspace_bytes());
        for (std::int64_t computed = 0; computed < all_.computed(); computed += all_.chunk) {
            const numbers tokens{computed, std::min(all_.chunk, all_.computed() - computed)};
            const ctxpar::prefill_step step = with.plan(batch(tokens), lent(workspace), nullptr);
            rows own(all_, data_, step, false);
            append(with, step, own);
            groups_.rows->wait(nullptr);
            bar.add(tokens.tokens.front());
        }
    }

    // What a prefiller decides where nothing is forced.
    ctxpar::path_choice automatic_choice() {
        prefiller with = make(ctxpar::prefill_path::automatic);
        thrust::device_vector<std::byte> workspace(with.workspace_bytes());
        const numbers tokens{all_.computed(), all_.chunk};
        const ctxpar::path_choice choice = with.plan(batch(tokens), lent(workspace), nullptr).prefill_rows;
        ctxpar::cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
        return choice;
    }

    // The step that is attended and timed.
    void attend(record& to, progress& bar);

private:
    // Read by the host and by the device.
    struct numbers {
        thrust::universal_vector<std::int64_t> computed, tokens; // [1]
        numbers(std::int64_t computed_tokens, std::int64_t new_tokens)
            : computed(1, computed_tokens), tokens(1, new_tokens) {}
    };
    struct rows; // queries, keys and values of a step

    prefiller make(ctxpar::prefill_path path) {
        ctxpar::prefill_shape shape;
        shape.sizes = all_.ranks(dcp_).sizes();
        shape.q_heads = all_.q_heads;
        shape.kv_heads = all_.kv_heads;
        shape.rank = world_.rank();
        shape.max_rows = all_.split().most_rows(all_.chunk);
        shape.max_decode_rows = 0;
        shape.longest = all_.tokens;
        shape.pool_blocks = all_.blocks(dcp_);
        shape.prefill_rows = path;
        shape.context_rows = std::max(all_.workspace_rows, all_.law(dcp_).unit());
        shape.merged_lse = true;
        shape.output = ctxpar::scalar_type::f32;
        shape.hidden_bytes = all_.q_heads * all_.head_dim * static_cast<std::int64_t>(sizeof(float));
        return {groups_.view(), shape, {{}, {all_.interleave}, {}}, backend_};
    }
    ctxpar::prefill_batch batch(const numbers& tokens) const {
        ctxpar::prefill_batch one;
        one.requests = 1;
        one.computed = ctxpar::index_of(pointer(tokens.computed));
        one.tokens = ctxpar::index_of(pointer(tokens.tokens));
        one.table = table_;
        return one;
    }
    static ctxpar::workspace lent(thrust::device_vector<std::byte>& memory) { return {pointer(memory), memory.size()}; }
    ctxpar::kv_view<ctxpar::bf16> cache() const {
        return ctxpar::joint_kv(pointer(memory_), all_.blocks(dcp_), all_.block_size, all_.kv_heads, all_.head_dim,
                                all_.head_dim, ctxpar::page_order::hnd);
    }
    void append(prefiller& with, const ctxpar::prefill_step& step, const rows& own) const {
        with.append(step, ctxpar::dense_view(pointer(own.k), own.count, all_.kv_heads, all_.head_dim),
                    ctxpar::dense_view(pointer(own.v), own.count, all_.kv_heads, all_.head_dim), cache(), nullptr);
    }
    void restore(prefiller& with, const ctxpar::prefill_step& step, const rows& own, rank_record& to);

    const problem& all_;
    const prompt_data& data_;
    std::int64_t dcp_;
    thrust::device_vector<ctxpar::bf16>& memory_;
    World& world_;
    device_groups<Communicator> groups_;
    ctxpar::cuda_backend backend_;
    thrust::universal_vector<std::int32_t> blocks_;
    ctxpar::block_table table_;
};

// A step's rows on this rank, as a model would make them from its tokens. Rows that are not tokens hold what an engine
// may have left there.
template <class Communicator, class World>
struct device_prefill_rank<Communicator, World>::rows {
    std::int64_t count;
    thrust::device_vector<ctxpar::bf16> q, k, v;
    thrust::device_vector<float> out;
    thrust::device_vector<ctxpar::natural_lse> lses;

    rows(const problem& all, const prompt_data& data, const ctxpar::prefill_step& step, bool attended)
        : count(step.rows()) {
        std::vector<std::int64_t> batch_rows(static_cast<std::size_t>(count)), positions(batch_rows.size());
        const std::size_t bytes = batch_rows.size() * sizeof(std::int64_t);
        ctxpar::cuda::check(cudaMemcpy(batch_rows.data(), step.arrays.batch_rows, bytes, cudaMemcpyDefault),
                            "cudaMemcpy");
        ctxpar::cuda::check(cudaMemcpy(positions.data(), step.positions(), bytes, cudaMemcpyDefault), "cudaMemcpy");
        const auto size = [&](std::int64_t heads) { return static_cast<std::size_t>(count * heads * all.head_dim); };
        const ctxpar::bf16 left_over{2.0F};
        std::vector<ctxpar::bf16> keys(size(all.kv_heads), left_over), values(keys),
            queries(attended ? size(all.q_heads) : 0, left_over);
        std::vector<float> made(static_cast<std::size_t>(all.head_dim));
        for (std::int64_t row = 0; row < count; ++row) {
            if (batch_rows[static_cast<std::size_t>(row)] < 0) continue;
            const std::int64_t position = positions[static_cast<std::size_t>(row)];
            for (std::int64_t head = 0; head < all.kv_heads; ++head) {
                const std::int64_t at = (row * all.kv_heads + head) * all.head_dim;
                data.key(position, head, made.data());
                store_exact(made, keys.data() + at);
                data.value(position, head, made.data());
                store_exact(made, values.data() + at);
            }
            for (std::int64_t head = 0; attended && head < all.q_heads; ++head) {
                data.query(position, head, made.data());
                store_exact(made, queries.data() + (row * all.q_heads + head) * all.head_dim);
            }
        }
        q = queries;
        k = keys;
        v = values;
        out.resize(q.size());
        lses.resize(attended ? static_cast<std::size_t>(count * all.q_heads) : 0);
    }
};

template <class Communicator, class World>
void device_prefill_rank<Communicator, World>::attend(record& to, progress& bar) {
    const ctxpar::shard part{dcp_, groups_.kv->rank(), all_.interleave};
    forget_kernel<<<static_cast<unsigned>(all_.chunk), 128>>>(cache(), part, table_, all_.computed());
    ctxpar::cuda::check(cudaGetLastError(), "forget_kernel");
    prefiller with = make(to.run.path);
    thrust::device_vector<std::byte> workspace(with.workspace_bytes());
    const numbers tokens{all_.computed(), all_.chunk};
    const ctxpar::prefill_step step = with.plan(batch(tokens), lent(workspace), nullptr);
    rows own(all_, data_, step, true);
    ctxpar::layer_options<> options;
    options.softmax_scale = all_.softmax_scale;
    options.lse_out = ctxpar::dense_view(pointer(own.lses), own.count, all_.q_heads, 1);

    // Ranks start together. Where they are threads of one process they share a clock.
    ctxpar::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    (void)from_first(world_, 0);
    rank_record& mine = to.ranks[static_cast<std::size_t>(world_.rank())];
    const std::uint64_t before = groups_.bytes_sent();
    const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()); };
    mine.begin = now().count();
    append(with, step, own);
    with.attend(step, ctxpar::dense_view(pointer(std::as_const(own.q)), own.count, all_.q_heads, all_.head_dim),
                ctxpar::kv_view<const ctxpar::bf16>(cache()),
                ctxpar::dense_view(pointer(own.out), own.count, all_.q_heads, all_.head_dim), options, nullptr);
    groups_.kv->wait(nullptr);
    mine.end = now().count();
    mine.sent = groups_.bytes_sent() - before;
    bar.add(all_.pairs() / world_.size());

    restore(with, step, own, mine);
    if (world_.rank() != 0) return;
    to.choice = step.prefill_rows;
    to.planned = step.schedule.bytes_sent();
    to.workspace_bytes = with.workspace_bytes();
    for (std::int32_t i = 0; i < step.schedule.count; ++i) {
        const ctxpar::collective_call& call = step.schedule.calls[static_cast<std::size_t>(i)];
        to.collectives.push_back((call.calls > 1 ? std::to_string(call.calls) + " x " : std::string()) +
                                 name_of(call.op) + " of " + call.what);
    }
}

// Puts the rows of all ranks back into the order of the prompt, on every rank.
template <class Communicator, class World>
void device_prefill_rank<Communicator, World>::restore(prefiller& with, const ctxpar::prefill_step& step,
                                                       const rows& own, rank_record& to) {
    thrust::device_vector<float> outputs(static_cast<std::size_t>(all_.chunk * all_.q_heads * all_.head_dim));
    thrust::device_vector<ctxpar::natural_lse> lses(static_cast<std::size_t>(all_.chunk * all_.q_heads));
    with.restore(step, ctxpar::dense_view(pointer(own.out), own.count, all_.q_heads, all_.head_dim),
                 ctxpar::dense_view(pointer(outputs), all_.chunk, all_.q_heads, all_.head_dim), nullptr);
    with.restore(step, ctxpar::dense_view(pointer(own.lses), own.count, all_.q_heads, 1),
                 ctxpar::dense_view(pointer(lses), all_.chunk, all_.q_heads, 1), nullptr);
    groups_.rows->wait(nullptr);
    to.outputs.resize(outputs.size());
    thrust::copy(outputs.begin(), outputs.end(), to.outputs.begin());
    to.lses.resize(lses.size());
    thrust::copy(lses.begin(), lses.end(), to.lses.begin());
}

// Ranks that compute on GPUs and talk there through a Communicator, for runs.hpp.
template <class Communicator>
struct device_ranks {
    template <class World>
    using rank = device_prefill_rank<Communicator, World>;
    using pool = thrust::device_vector<ctxpar::bf16>;

    // The cache is of NaN, so that nothing is found that was not written.
    template <class World>
    static void prepare(World& world, const problem& all, std::int64_t dcp, pool& own) {
        use_device_of(world);
        if (own.empty())
            own.resize(static_cast<std::size_t>(all.pool_bytes(dcp)) / sizeof(ctxpar::bf16),
                       ctxpar::bf16::from_bits(0xffff));
    }
};

} // namespace demo
