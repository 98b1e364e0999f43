#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/layout/zigzag.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/migrate.hpp>
#include <ctxpar/prefill.hpp>

namespace serve {
namespace {

using namespace ctxpar;
using dims = model_dims;
// Queries, keys and values as the model makes them. Rounded to bf16, a difference of one bit would now and then become
// one of 0.4%, and no bound on the outputs would tell a fault from it.
using element = float;
using chosen = policy<gqa<element, dims::head_dim>, interleave<>, merge::dynamic>;
using rank_prefiller = prefiller<chosen, cpu_backend, local_communicator>;
using rank_migrator = migrator<chosen::attention_type, cpu_backend, local_communicator>;
constexpr host_stream stream{};

// The fewest collectives that the heads allow.
merge_kind merge_of(std::int64_t ranks) {
    return dims::q_heads % ranks == 0 ? merge_kind::a2a : merge_kind::ag_ar;
}

prefill_shape shape_of(const engine_options& given, std::int64_t ranks, std::int64_t rank) {
    prefill_shape shape;
    shape.sizes.pcp = ranks;
    shape.sizes.dcp = ranks;
    shape.q_heads = dims::q_heads;
    shape.kv_heads = dims::kv_heads;
    shape.rank = rank;
    shape.max_requests = given.max_requests;
    shape.max_rows = given.chunk + given.max_requests;
    shape.max_decode_rows = given.max_requests;
    shape.longest = given.longest;
    shape.pool_blocks = given.pool_blocks;
    shape.context_rows = std::max<std::int64_t>(8192, ranks * given.interleave);
    shape.output = scalar_type::f32;
    shape.hidden_bytes = dims::width * static_cast<std::int64_t>(sizeof(float));
    return shape;
}

// The KV of all layers on one rank.
class layer_pools {
public:
    layer_pools(std::int64_t blocks, std::int64_t block_size) : blocks_(blocks), block_size_(block_size) {
        const auto each = static_cast<std::size_t>(blocks * block_size * dims::kv_heads * 2 * dims::head_dim);
        pools_.assign(dims::layers, std::vector<element>(each));
    }
    kv_view<element> layer(std::int64_t which) {
        return joint_kv(pools_[static_cast<std::size_t>(which)].data(), blocks_, block_size_, dims::kv_heads,
                        dims::head_dim, dims::head_dim);
    }

private:
    std::int64_t blocks_, block_size_;
    std::vector<std::vector<element>> pools_;
};

// A place's batch as the library wants it, on one rank. The arrays live as long as the step.
struct batch_arrays {
    std::vector<std::int64_t> computed, tokens, kinds, ids, offsets;
    std::vector<std::int32_t> blocks;

    batch_arrays(const place_batch& batch, std::int64_t rank) {
        std::size_t width = 1;
        for (const step_entry& entry : batch.entries) width = std::max(width, entry.table->size());
        for (const step_entry& entry : batch.entries) {
            computed.push_back(entry.computed);
            tokens.push_back(entry.tokens);
            kinds.push_back(static_cast<std::int64_t>(entry.decodes ? row_kind::decode : row_kind::prefill));
            ids.insert(ids.end(), entry.ids.begin(), entry.ids.end());
            std::vector<std::int32_t> row(width, 0);
            std::transform(entry.table->begin(), entry.table->end(), row.begin(),
                           [rank](const shared_block& block) { return block->id_on(rank); });
            blocks.insert(blocks.end(), row.begin(), row.end());
        }
        width_ = static_cast<std::int64_t>(width);
    }

    prefill_batch view(std::int64_t block_size) const {
        prefill_batch batch;
        batch.requests = static_cast<std::int64_t>(computed.size());
        batch.computed = index_of(computed.data());
        batch.tokens = index_of(tokens.data());
        batch.kinds = index_of(kinds.data());
        batch.table = table_2d(blocks.data(), batch.requests, width_, block_size);
        return batch;
    }

private:
    std::int64_t width_ = 1;
};

// What a group of one size needs on one rank.
struct group_engine {
    std::int64_t ranks;
    std::optional<local_communicator> comm;
    rank_prefiller prefill;
    host_workspace memory;
    std::optional<rank_migrator> mover; // of requests that come to this group, or go from it to a narrower one
    host_workspace mover_memory;

    // Collective over the world where there is one.
    group_engine(local_communicator* world, const engine_options& given, std::int64_t size, const cpu_backend& backend)
        : ranks(size), comm(world == nullptr ? std::nullopt : world->split(world->rank() / size, world->rank())),
          prefill({comm ? &*comm : nullptr, nullptr, nullptr, comm ? &*comm : nullptr},
                  shape_of(given, size, comm ? comm->rank() : 0), {{}, {given.interleave}, {merge_of(size)}}, backend),
          memory(prefill.workspace_bytes()), mover_memory(0) {
        if (!comm || size == 1) return;
        mover.emplace(*comm, migration_shape{dims::kv_heads, 0, given.move_chunk}, chosen::attention_type{}, backend);
        mover_memory = host_workspace(mover->workspace_bytes());
    }
};

// A planned batch of one group, and where its rows are among those of the rank's step.
struct planned_batch {
    group_engine* group;
    prefill_step step;
    std::int64_t first_row = 0;
};

template <class T>
head_view<T> heads_of(T* rows, std::int64_t first, std::int64_t count, std::int64_t heads) {
    return dense_view(rows + first * heads * dims::head_dim, count, heads, dims::head_dim);
}

// All layers over the rows of all batches together; attention by batch.
rows_of<float> forward(const model<float>& weights, const std::vector<planned_batch>& batches, layer_pools& pools,
                       std::span<const std::int32_t> tokens, std::span<const std::int64_t> positions) {
    rows_of<float> hidden = weights.embed(tokens);
    rows_of<float> attended(hidden.rows(), dims::q_heads * dims::head_dim);
    for (std::int64_t layer = 0; layer < dims::layers; ++layer) {
        const model<float>::projected rows = weights.project(layer, hidden, positions);
        const kv_view<element> cache = pools.layer(layer);
        for (const planned_batch& each : batches) {
            const std::int64_t first = each.first_row, count = each.step.rows();
            rank_prefiller& prefill = each.group->prefill;
            prefill.append(each.step, heads_of(rows.k.data(), first, count, dims::kv_heads),
                           heads_of(rows.v.data(), first, count, dims::kv_heads), cache, stream);
            layer_options<> options;
            options.softmax_scale = dims::softmax_scale;
            prefill.attend(each.step, heads_of(rows.q.data(), first, count, dims::q_heads), cache,
                           heads_of(attended.data(), first, count, dims::q_heads), options, stream);
        }
        weights.finish(layer, attended, hidden);
    }
    return hidden;
}

} // namespace

struct engine::parts {
    engine_options given;
    const model<float>& weights;
    std::int64_t rank;
    cpu_backend backend;
    layer_pools pools;
    std::map<std::int64_t, group_engine> groups; // by size

    parts(local_communicator& world, const engine_options& options, const model<float>& shared)
        : given(options), weights(shared), rank(world.rank()), backend(cpu_options{options.threads}),
          pools(options.pool_blocks, options.block_size) {
        for (std::int64_t size = 1; size <= options.ranks; ++size)
            if (options.ranks % size == 0) groups.try_emplace(size, &world, given, size, backend);
    }

    void move(const step_move& part);
};

void engine::parts::move(const step_move& part) {
    const place& wide = part.over;
    if (!wide.holds(rank)) return;
    std::vector<migrated_layer<element>> layers;
    for (std::int64_t layer = 0; layer < dims::layers; ++layer)
        layers.push_back({kv_view<const element>(pools.layer(layer)), pools.layer(layer)});
    const auto side = [&](const place& where, const block_list& blocks, std::vector<std::int32_t>& ids) {
        if (where.holds(rank))
            for (const shared_block& block : *blocks) ids.push_back(block->id_on(rank));
        const auto width = static_cast<std::int64_t>(ids.size());
        return domain_request{make_ownership(where.ranks, given.interleave), where.first - wide.first,
                              table_2d(ids.data(), 1, width, given.block_size), 0};
    };
    std::vector<std::int32_t> from_ids, to_ids;
    migration job{side(part.from, part.from_table, from_ids), side(part.to, part.to_table, to_ids), 0, part.first};
    group_engine& group = groups.at(wide.ranks);
    const auto planned = group.mover->plan(job, part.end, layers, group.mover_memory, stream);
    group.mover->move(planned, stream);
}

engine::engine(local_communicator& world, const engine_options& given, const model<float>& weights)
    : parts_(std::make_unique<parts>(world, given, weights)) {}
engine::~engine() = default;

std::vector<std::vector<std::int32_t>> engine::run(const step& todo) {
    parts& own = *parts_;
    for (const step_move& part : todo.moves)
        if (!own.given.spoil_moves) own.move(part);

    std::vector<batch_arrays> arrays;
    std::vector<planned_batch> batches;
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> positions;
    for (const place_batch& batch : todo.batches) {
        if (!batch.where.holds(own.rank)) continue;
        const batch_arrays& made = arrays.emplace_back(batch, own.rank);
        group_engine& group = own.groups.at(batch.where.ranks);
        const prefill_step planned = group.prefill.plan(made.view(own.given.block_size), group.memory, stream);
        batches.push_back({&group, planned, static_cast<std::int64_t>(tokens.size())});
        for (std::int64_t row = 0; row < planned.rows(); ++row) {
            const std::int64_t from = planned.arrays.batch_rows[row]; // -1: a filling row, of any token
            tokens.push_back(from < 0 ? 0 : static_cast<std::int32_t>(made.ids[static_cast<std::size_t>(from)]));
            positions.push_back(from < 0 ? 0 : planned.positions()[row]);
        }
    }
    const rows_of<float> hidden = forward(own.weights, batches, own.pools, tokens, positions);

    std::vector<std::vector<std::int32_t>> sampled(todo.batches.size());
    auto planned = batches.begin();
    for (std::size_t b = 0; b < todo.batches.size(); ++b) {
        const place_batch& batch = todo.batches[b];
        if (!batch.where.holds(own.rank)) continue;
        const auto requests = static_cast<std::int64_t>(batch.entries.size());
        rows_of<float> last(requests, dims::width);
        planned->group->prefill.restore_last(
            planned->step,
            dense_view(hidden.data() + planned->first_row * dims::width, planned->step.rows(), 1, dims::width),
            dense_view(last.data(), requests, 1, dims::width), stream);
        ++planned;
        if (batch.where.first != own.rank) continue;
        const rows_of<float> logits = own.weights.logits(last);
        for (std::int64_t i = 0; i < requests; ++i) sampled[b].push_back(choose(logits.row(i).data()).token);
    }
    return sampled;
}

std::vector<choice> unsharded(const model<float>& weights, const std::vector<std::int32_t>& prompt,
                              const std::vector<std::int32_t>& outputs, std::int64_t threads) {
    std::vector<std::int32_t> all = prompt;
    all.insert(all.end(), outputs.begin(), outputs.end() - 1);
    engine_options given;
    given.chunk = 1024;
    given.max_requests = 1;
    given.longest = static_cast<std::int64_t>(all.size());
    given.pool_blocks = 1;
    given.block_size = given.longest;
    group_engine alone(nullptr, given, 1, cpu_backend{cpu_options{threads}});
    layer_pools pools(given.pool_blocks, given.block_size);
    const std::int32_t block = 0;

    std::vector<choice> right;
    for (std::int64_t computed = 0; computed < given.longest;) {
        const std::int64_t count = std::min(given.chunk, given.longest - computed);
        prefill_batch batch;
        batch.requests = 1;
        batch.computed = index_of(&computed);
        batch.tokens = index_of(&count);
        batch.table = table_2d(&block, 1, 1, given.block_size);
        const prefill_step planned = alone.prefill.plan(batch, alone.memory, stream);
        const std::span tokens(all.data() + computed, static_cast<std::size_t>(count));
        const std::span positions(planned.positions(), static_cast<std::size_t>(count));
        const rows_of<float> hidden = forward(weights, {{&alone, planned, 0}}, pools, tokens, positions);
        const auto from = std::max<std::int64_t>(0, static_cast<std::int64_t>(prompt.size()) - 1 - computed);
        if (from < count) {
            const rows_of<float> logits = weights.logits(hidden.bottomRows(count - from));
            for (std::int64_t i = 0; i < count - from; ++i) right.push_back(choose(logits.row(i).data()));
        }
        computed += count;
    }
    return right;
}

core_speed measure_core(const model<float>& weights) {
    constexpr std::int64_t rows = 4096;
    core_speed speed;
    speed.row_us = 2.0 * dims::dense_weights() / dims::layers / dense_flops_per_us(weights);
    const std::vector<std::int32_t> prompt(rows, 1);
    double best_us = std::numeric_limits<double>::infinity();
    for (int round = 0; round < 3; ++round) {
        const auto start = std::chrono::steady_clock::now();
        unsharded(weights, prompt, {0}, 1);
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
        best_us = std::min(best_us, took.count());
    }
    // A row sees half of them on the average.
    const double flops = 2.0 * dims::layers * dims::q_heads * 2 * dims::head_dim * rows * rows / 2;
    const double dense_us = static_cast<double>(dims::layers * rows) * speed.row_us;
    speed.flops_per_us = flops / std::max(best_us - dense_us, best_us / 10);
    return speed;
}

} // namespace serve
