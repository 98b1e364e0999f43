// The step loop of an engine, on one rank: what is made once, what is called once a step, and what is called per layer.
// Ranks are whatever the communicator joins, and compute where their place says: on a CPU by place.hpp, on a GPU by
// device_place.cuh.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/prefill.hpp>

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

// What the scheduler says, as the library wants it. The arrays live as long as the step.
template <class Place>
struct batch_arrays {
    typename Place::template numbers<std::int64_t> computed, tokens, kinds;
    typename Place::template numbers<std::int32_t> blocks;

    explicit batch_arrays(const step_input& step)
        : computed(step.computed.begin(), step.computed.end()), tokens(step.tokens.begin(), step.tokens.end()),
          kinds(step.kinds.begin(), step.kinds.end()), blocks(step.blocks.begin(), step.blocks.end()) {}

    prefill_batch view(const options& given) const {
        prefill_batch batch;
        batch.requests = static_cast<std::int64_t>(computed.size());
        batch.computed = index_of(Place::pointer(computed));
        batch.tokens = index_of(Place::pointer(tokens));
        batch.kinds = index_of(Place::pointer(kinds));
        batch.table = table_2d(Place::pointer(blocks), batch.requests, given.blocks(), options::block_size);
        return batch;
    }
};

template <class Place>
class rank_engine {
    using world_type = typename Place::world_type;
    template <class T>
    using memory = typename Place::template memory<T>;

public:
    // Once: groups, the prefiller, its workspace, and a pool for each layer.
    rank_engine(world_type& world, const options& given, watch& observer)
        : given_(given), observer_(observer), world_(world), ranks_(given.ranks()), place_(world, given),
          prefill_(place_.groups.view(), shape_of(given, world.rank()), {{}, {given.interleave}, {}}),
          memory_(prefill_.workspace_bytes()), weights_(given) {
        const std::int64_t slots = prefill_.shape().pool_blocks * options::block_size;
        pools_.assign(options::layers, memory<bf16>(static_cast<std::size_t>(slots * kv_heads() * 2 * width)));
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
        const batch_arrays<Place> arrays(in);
        const prefill_step step = prefill_.plan(arrays.view(given_), memory_, Place::stream);
        const std::vector<placed_token> tokens = own_tokens(step, in);
        memory<float> hidden(static_cast<std::size_t>(step.rows() * heads() * width));
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
        const auto& all = place_.moved(in.ids);
        memory<std::int64_t> own(static_cast<std::size_t>(step.rows()));
        prefill_.scatter(step, view(all, in.rows(), 1, 1), view(own, step.rows(), 1, 1), Place::stream);
        const auto& ids = place_.on_host(own);
        const std::vector<std::int64_t> rows = place_.on_host(step.arrays.batch_rows, step.rows());
        const std::vector<std::int64_t> positions = place_.on_host(step.positions(), step.rows());
        std::vector<placed_token> tokens;
        for (std::size_t row = 0; row < rows.size(); ++row)
            tokens.push_back({rows[row] < 0 ? -1 : ids[row], positions[row]});
        return tokens;
    }

    // Per layer: new keys reach the ranks that own them, then every row attends to its whole sequence.
    void one_layer(const prefill_step& step, std::int64_t layer, const std::vector<placed_token>& tokens,
                   memory<float>& hidden) {
        const rank_rows own(weights_, layer, tokens, ranks_.q_heads(world_.rank()), ranks_.kv_heads(world_.rank()));
        const auto& q = place_.moved(own.q);
        const auto& k = place_.moved(own.k);
        const auto& v = place_.moved(own.v);
        const kv_view<bf16> cache =
            joint_kv(Place::pointer(pools_[static_cast<std::size_t>(layer)]), prefill_.shape().pool_blocks,
                     options::block_size, kv_heads(), width, width);
        const std::int64_t rows = step.rows();
        observer_.layer_begins(place_.groups.bytes_sent());
        prefill_.append(step, view(k, rows, kv_heads(), width), view(v, rows, kv_heads(), width), cache, Place::stream);
        prefill_.attend(step, view(q, rows, heads(), width), cache, view(hidden, rows, heads(), width), {},
                        Place::stream);
        observer_.layer_ends(place_.groups.bytes_sent());
        place_.finish(); // q, k and v go
    }

    // Not what an engine does: all rows in the order of the batch, to be compared.
    void compare(const prefill_step& step, std::int64_t layer, std::int64_t batch_rows, const memory<float>& hidden) {
        memory<float> all(static_cast<std::size_t>(batch_rows * heads() * width));
        prefill_.restore(step, view(hidden, step.rows(), heads(), width), view(all, batch_rows, heads(), width),
                         Place::stream);
        observer_.compare(layer, place_.on_host(all), batch_rows, ranks_.q_heads(world_.rank()).first);
    }

    // The tokens that follow the last row of each request; TP ranks bring their heads together.
    std::vector<std::int64_t> sample(const prefill_step& step, const memory<float>& hidden) {
        const std::int64_t requests = step.batch.requests;
        memory<float> last(static_cast<std::size_t>(requests * heads() * width));
        prefill_.restore_last(step, view(hidden, step.rows(), heads(), width), view(last, requests, heads(), width),
                              Place::stream);
        memory<float> gathered(last.size() * static_cast<std::size_t>(place_.tp->size()));
        place_.tp->all_gather(Place::pointer(last), Place::pointer(gathered), last.size() * sizeof(float),
                              Place::stream, {"last rows"});
        const auto& all = place_.on_host(gathered);
        std::vector<std::int64_t> tokens;
        for (std::int64_t request = 0; request < requests; ++request) {
            std::vector<float> row;
            for (std::int64_t rank = 0; rank < place_.tp->size(); ++rank) {
                const auto from = all.begin() + (rank * requests + request) * heads() * width;
                row.insert(row.end(), from, from + heads() * width);
            }
            tokens.push_back(model::sample(row.data()));
        }
        return tokens;
    }

    template <class Memory>
    static auto view(Memory& rows, std::int64_t count, std::int64_t heads, std::int64_t head_width) {
        return dense_view(Place::pointer(rows), count, heads, head_width);
    }
    std::int64_t heads() const { return ranks_.heads_per_rank(); }
    std::int64_t kv_heads() const { return ranks_.kv_heads_per_rank(); }

    const options& given_;
    watch& observer_;
    world_type& world_;
    mesh ranks_;
    Place place_;
    prefiller<chosen, typename Place::backend, typename Place::communicator> prefill_;
    typename Place::lent_memory memory_;
    model weights_;
    std::vector<memory<bf16>> pools_; // [layers]
};

// Serves all requests, step by step; every rank calls it.
template <class Place>
void serve(typename Place::world_type& world, const options& given, watch& observer) {
    rank_engine<Place>(world, given, observer).run();
}

} // namespace demo
