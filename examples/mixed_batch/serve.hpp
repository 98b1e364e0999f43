// The step loop of an engine, on one rank: what is made once, what is called once a step, and what is called per layer.
// Ranks are whatever the communicator joins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/prefill.hpp>

#include "common/groups.hpp"
#include "model.hpp"
#include "schedule.hpp"
#include "watch.hpp"

namespace demo {

using namespace ctxpar;

inline constexpr std::int64_t width = options::head_dim;

using chosen = policy<gqa<bf16, width>, interleave<>, merge::a2a>;

inline prefill_shape shape_of(const options& given, int rank) {
    prefill_shape shape;
    shape.sizes = given.sizes;
    shape.q_heads = options::q_heads;
    shape.kv_heads = given.kv_heads;
    shape.rank = rank;
    shape.max_requests = options::max_requests;
    shape.max_rows = options::max_requests * make_zigzag(given.sizes.pcp).most_rows(given.chunk);
    shape.longest = options::longest;
    shape.pool_blocks = options::max_requests * given.blocks();
    shape.prefill_rows = given.path;
    shape.context_rows = std::max<std::int64_t>(256, given.sizes.dcp * given.interleave);
    shape.output = scalar_type::f32;
    shape.hidden_bytes = options::q_heads / given.sizes.tp * width * static_cast<std::int64_t>(sizeof(float));
    return shape;
}

// What the scheduler says, as the library wants it. The arrays stay where they are.
inline prefill_batch batch_of(const options& given, const step_input& step) {
    prefill_batch batch;
    batch.requests = static_cast<std::int64_t>(step.requests.size());
    batch.computed = index_of(step.computed.data());
    batch.tokens = index_of(step.tokens.data());
    batch.kinds = index_of(step.kinds.data());
    batch.table = table_2d(step.blocks.data(), batch.requests, given.blocks(), options::block_size);
    return batch;
}

template <communicator Communicator>
class rank_engine {
public:
    // Once: groups, the prefiller, its workspace, and a pool for each layer.
    rank_engine(Communicator& world, const options& given, watch& observer)
        : given_(given), observer_(observer), world_(world), ranks_(given.ranks()), groups_(world, ranks_),
          prefill_(groups_.view(), shape_of(given, world.rank()), {{}, {given.interleave}, {}}),
          memory_(prefill_.workspace_bytes()), weights_(given) {
        const rank_group tp = ranks_.group(group_kind::tp, world.rank());
        tp_ = world.split(static_cast<int>(tp.color), static_cast<int>(tp.key));
        const std::int64_t slots = prefill_.shape().pool_blocks * options::block_size;
        pools_.assign(options::layers, std::vector<bf16>(static_cast<std::size_t>(slots * kv_heads() * 2 * width)));
    }

    void run() {
        for (scheduler schedule(given_); !schedule.done();) {
            step_input in = schedule.next();
            observer_.spoil(in); // the injected fault
            schedule.finish(in, one_step(in));
        }
    }

private:
    // Once a step: the plan, this rank's rows of it, all layers, and the tokens that follow.
    std::vector<std::int64_t> one_step(const step_input& in) {
        const prefill_step step = prefill_.plan(batch_of(given_, in), memory_, {});
        const std::vector<placed_token> tokens = own_tokens(step, in);
        std::vector<float> hidden(static_cast<std::size_t>(step.rows() * heads() * width));
        for (std::int64_t layer = 0; layer < options::layers; ++layer) {
            one_layer(step, layer, tokens, hidden);
            compare(step, layer, in.rows(), hidden);
        }
        const std::vector<std::int64_t> sampled = sample(step, hidden);
        observer_.step_ends(world_, in, step, sampled);
        return sampled;
    }

    // The token of each own row, with its position for the rotary embedding. Rows that fill up have none.
    std::vector<placed_token> own_tokens(const prefill_step& step, const step_input& in) {
        std::vector<std::int64_t> ids(static_cast<std::size_t>(step.rows()));
        prefill_.scatter(step, dense_view(in.ids.data(), in.rows(), 1, 1), dense_view(ids.data(), step.rows(), 1, 1),
                         {});
        std::vector<placed_token> tokens;
        for (std::int64_t row = 0; row < step.rows(); ++row) {
            const bool filling = step.arrays.batch_rows[row] < 0;
            tokens.push_back({filling ? -1 : ids[static_cast<std::size_t>(row)], step.positions()[row]});
        }
        return tokens;
    }

    // Per layer: new keys reach the ranks that own them, then every row attends to its whole sequence.
    void one_layer(const prefill_step& step, std::int64_t layer, const std::vector<placed_token>& tokens,
                   std::vector<float>& hidden) {
        const rank_rows own(weights_, layer, tokens, ranks_.q_heads(world_.rank()), ranks_.kv_heads(world_.rank()));
        const kv_view<bf16> cache =
            joint_kv(pools_[static_cast<std::size_t>(layer)].data(), prefill_.shape().pool_blocks, options::block_size,
                     kv_heads(), width, width);
        const std::int64_t rows = step.rows();
        observer_.layer_begins(groups_.bytes_sent());
        prefill_.append(step, dense_view(own.k.data(), rows, kv_heads(), width),
                        dense_view(own.v.data(), rows, kv_heads(), width), cache, {});
        prefill_.attend(step, dense_view(own.q.data(), rows, heads(), width), cache,
                        dense_view(hidden.data(), rows, heads(), width), {}, {});
        observer_.layer_ends(groups_.bytes_sent());
    }

    // Not what an engine does: all rows in the order of the batch, to be compared.
    void compare(const prefill_step& step, std::int64_t layer, std::int64_t batch_rows,
                 const std::vector<float>& hidden) {
        std::vector<float> all(static_cast<std::size_t>(batch_rows * heads() * width));
        prefill_.restore(step, dense_view(hidden.data(), step.rows(), heads(), width),
                         dense_view(all.data(), batch_rows, heads(), width), {});
        observer_.compare(layer, all, batch_rows, ranks_.q_heads(world_.rank()).first);
    }

    // The tokens that follow the last row of each request; TP ranks bring their heads together.
    std::vector<std::int64_t> sample(const prefill_step& step, const std::vector<float>& hidden) {
        const std::int64_t requests = step.batch.requests;
        std::vector<float> last(static_cast<std::size_t>(requests * heads() * width));
        prefill_.restore_last(step, dense_view(hidden.data(), step.rows(), heads(), width),
                              dense_view(last.data(), requests, heads(), width), {});
        std::vector<float> all(last.size() * static_cast<std::size_t>(tp_->size()));
        tp_->all_gather(last.data(), all.data(), last.size() * sizeof(float), {}, {"last rows"});
        std::vector<std::int64_t> tokens;
        for (std::int64_t request = 0; request < requests; ++request) {
            std::vector<float> row;
            for (std::int64_t rank = 0; rank < tp_->size(); ++rank) {
                const auto from = all.begin() + (rank * requests + request) * heads() * width;
                row.insert(row.end(), from, from + heads() * width);
            }
            tokens.push_back(model::sample(row.data()));
        }
        return tokens;
    }

    std::int64_t heads() const { return ranks_.heads_per_rank(); }
    std::int64_t kv_heads() const { return ranks_.kv_heads_per_rank(); }

    const options& given_;
    watch& observer_;
    Communicator& world_;
    mesh ranks_;
    rank_groups<Communicator> groups_;
    std::optional<Communicator> tp_;
    prefiller<chosen, cpu_backend, Communicator> prefill_;
    host_workspace memory_;
    model weights_;
    std::vector<std::vector<bf16>> pools_; // [layers]
};

// Serves all requests, step by step; every rank calls it.
template <communicator Communicator>
void serve(Communicator& world, const options& given, watch& observer) {
    rank_engine<Communicator>(world, given, observer).run();
}

} // namespace demo
