// One rank whose cache lies on a GPU: the same calls as on a CPU, on memory of the device and with a stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thrust/copy.h>
#include <thrust/device_vector.h>

#include <ctxpar/cuda.cuh>

#include "cache.hpp"
#include "common/device_groups.hpp"
#include "engine.hpp"

namespace demo {

template <class T>
T* pointer(thrust::device_vector<T>& memory) {
    return thrust::raw_pointer_cast(memory.data());
}
template <class T>
const T* pointer(const thrust::device_vector<T>& memory) {
    return thrust::raw_pointer_cast(memory.data());
}
// A view of host memory as that of its copy on the device.
template <class T>
ctxpar::head_view<const T> moved(ctxpar::head_view<const T> view, const std::vector<T>& from,
                                 const thrust::device_vector<T>& to) {
    view.base = pointer(to) + (view.base - from.data());
    return view;
}

// Bytes a second that the current device reads while it copies.
inline double copy_bandwidth() {
    constexpr std::size_t size = std::size_t{1} << 30;
    thrust::device_vector<std::byte> from(size), to(size);
    double best = 0.0;
    for (int run = 0; run < 5; ++run) {
        const auto start = std::chrono::steady_clock::now();
        ctxpar::cuda::check(cudaMemcpyAsync(pointer(to), pointer(from), size, cudaMemcpyDeviceToDevice),
                            "cudaMemcpyAsync");
        ctxpar::cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        best = std::max(best, 2.0 * static_cast<double>(size) / taken.count());
    }
    return best;
}

// The pools of one rank.
template <class Attention>
class device_cache {
public:
    using stored = typename Attention::kv_element;

    void allocate(const problem& all) {
        const std::int64_t tokens = all.blocks_per_request() * all.requests * all.block_size;
        const auto elements = static_cast<std::size_t>(tokens * all.token_bytes()) / sizeof(stored);
        for (std::int64_t layer = 0; layer < all.layers; ++layer) pools_.emplace_back(elements);
    }
    std::size_t bytes() const {
        std::size_t bytes = 0;
        for (const auto& pool : pools_) bytes += pool.size() * sizeof(stored);
        return bytes;
    }
    ctxpar::kv_view<stored> view(const problem& all, std::int64_t layer) {
        return view_of_pool<Attention>(all, pointer(pools_[static_cast<std::size_t>(layer)]));
    }

private:
    std::vector<thrust::device_vector<stored>> pools_;
};

struct owned_stream {
    cudaStream_t handle = nullptr;
    owned_stream() {
        ctxpar::cuda::check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    owned_stream(const owned_stream&) = delete;
    owned_stream& operator=(const owned_stream&) = delete;
    ~owned_stream() { (void)cudaStreamDestroy(handle); }
};

template <class Attention, class Communicator, class World>
class device_rank {
public:
    using policy_type = ctxpar::policy<Attention, ctxpar::interleave<>, ctxpar::merge::dynamic>;
    using decoder_type = ctxpar::decoder<policy_type, ctxpar::cuda_backend, Communicator>;
    using element = typename Attention::element;

    device_rank(const problem& all, const kv_data& data, device_cache<Attention>& cache,
                const std::vector<std::int32_t>& blocks, World& world)
        : all_(all), data_(data), cache_(cache), world_(world), mesh_(all.ranks()),
          groups_(world, mesh_, all.id_file), part_{all.law.ranks, groups_.kv->rank(), all.law.interleave},
          blocks_(blocks.begin(), blocks.end()), table_(table_of(blocks.data())),
          device_table_(table_of(pointer(blocks_))), first_kv_head_(mesh_.kv_heads(world.rank()).first) {}

    decoder_type make_decoder(const std::string& merge) {
        ctxpar::decode_shape shape;
        shape.sizes = all_.sizes;
        shape.q_heads = all_.q_heads;
        shape.kv_heads = all_.kv_heads;
        shape.rank = world_.rank();
        shape.max_requests = all_.requests;
        shape.max_rows = all_.requests * all_.query_rows;
        shape.longest = all_.room();
        shape.pool_blocks = all_.requests * all_.blocks_per_request();
        shape.placement = all_.placement;
        shape.output = ctxpar::scalar_type::f32;
        shape.max_splits = 32;
        const policy_type chosen{{}, {all_.law.interleave}, {ctxpar::merge_named(merge)}};
        return {groups_.view(), shape, chosen, backend_};
    }

    // Writes this rank's tokens of all layers and requests, a chunk at a time, to the slots that the table says.
    void fill(decoder_type& decoder, progress& bar) {
        constexpr std::int64_t chunk = 4096;
        new_rows<Attention> rows(all_, chunk);
        std::vector<std::int64_t> positions(chunk), slots(chunk);
        for (std::int64_t layer = 0; layer < all_.layers; ++layer)
            for (std::int64_t request = 0; request < all_.requests; ++request) {
                const std::int64_t own = part_.local_len(all_.filled(request));
                for (std::int64_t first = 0; first < own; first += chunk) {
                    const std::int64_t count = std::min(chunk, own - first);
                    for (std::int64_t i = 0; i < count; ++i) {
                        const std::int64_t position = part_.global(first + i);
                        positions[static_cast<std::size_t>(i)] = position;
                        rows.make(data_, i, layer, request, position, position, first_kv_head_);
                    }
                    const auto size = static_cast<std::size_t>(count);
                    ctxpar::map_slots(part_, table_, request, std::span(positions).first(size), std::span(slots));
                    const thrust::device_vector<std::int64_t> to(slots.begin(), slots.end());
                    const thrust::device_vector<element> k(rows.k.begin(), rows.k.end()),
                        v(rows.v.begin(), rows.v.end());
                    decoder.append(ctxpar::index_of(pointer(to)), moved(rows.first_part(count), rows.k, k),
                                   second_part(rows, count, k, v), cache_.view(all_, layer), stream_.handle);
                    groups_.kv->wait(stream_.handle);
                    bar.add(count);
                }
            }
    }

    void decode(record& to) {
        decoder_type decoder = make_decoder(to.merge);
        thrust::device_vector<std::byte> memory(decoder.workspace_bytes());
        const ctxpar::workspace lent{pointer(memory), memory.size()};
        const std::uint64_t launches = backend_.launches();
        for (std::int64_t step = 0; step < all_.steps; ++step) one_step(decoder, lent, step, to);
        const auto at = static_cast<std::size_t>(world_.rank());
        to.sent[at] = groups_.bytes_sent();
        if (at == 0) {
            const auto done = static_cast<std::int64_t>(backend_.launches() - launches);
            to.launches = (done - all_.steps) / (all_.steps * all_.layers);
        }
    }

private:
    struct step_inputs;
    void one_step(decoder_type& decoder, const ctxpar::workspace& lent, std::int64_t step, record& to);

    ctxpar::block_table table_of(const std::int32_t* ids) const {
        return ctxpar::table_2d(ids, all_.requests, all_.blocks_per_request(), all_.block_size);
    }
    ctxpar::head_view<const element> second_part(const new_rows<Attention>& rows, std::int64_t count,
                                                 const thrust::device_vector<element>& k,
                                                 const thrust::device_vector<element>& v) const {
        return all_.is_mla() ? moved(rows.second_part(count), rows.k, k) : moved(rows.second_part(count), rows.v, v);
    }

    const problem& all_;
    const kv_data& data_;
    device_cache<Attention>& cache_;
    World& world_;
    owned_stream stream_;
    ctxpar::mesh mesh_;
    device_groups<Communicator> groups_;
    ctxpar::cuda_backend backend_;
    ctxpar::shard part_;
    thrust::device_vector<std::int32_t> blocks_;
    ctxpar::block_table table_;        // read by the host
    ctxpar::block_table device_table_; // read by the device
    std::int64_t first_kv_head_;
};

// What the model would hand over in a step, on the device before the clock starts.
template <class Attention, class Communicator, class World>
struct device_rank<Attention, Communicator, World>::step_inputs {
    std::vector<new_rows<Attention>> host_tokens; // [layers]
    std::vector<thrust::device_vector<element>> k, v, queries;
    std::vector<thrust::device_vector<float>> outputs;
    thrust::device_vector<std::int64_t> lengths, row_counts; // [requests]

    step_inputs(const device_rank& own, std::int64_t step, std::int64_t heads_out) {
        const problem& all = own.all_;
        const std::int64_t rows = all.requests * all.query_rows;
        const ctxpar::head_range heads = own.mesh_.q_heads(own.world_.rank());
        std::vector<std::int64_t> tokens;
        for (std::int64_t request = 0; request < all.requests; ++request) tokens.push_back(all.length(request, step));
        lengths = tokens;
        row_counts.assign(tokens.size(), all.query_rows);
        std::vector<float> query(static_cast<std::size_t>(all.query_width));
        std::vector<element> all_queries(static_cast<std::size_t>(rows * heads.count() * all.query_width));
        for (std::int64_t layer = 0; layer < all.layers; ++layer) {
            new_rows<Attention>& made = host_tokens.emplace_back(all, rows);
            element* to = all_queries.data();
            for (std::int64_t row = 0; row < rows; ++row) {
                const std::int64_t request = row / all.query_rows;
                const std::int64_t new_row = step * all.query_rows + row % all.query_rows;
                const std::int64_t position = all.filled(request) + new_row;
                made.make(own.data_, row, layer, request, position, position, own.first_kv_head_);
                for (std::int64_t head = heads.first; head < heads.last; ++head, to += all.query_width) {
                    own.data_.query(layer, request, new_row, head, query.data());
                    store_exact(query, to);
                }
            }
            k.emplace_back(made.k.begin(), made.k.end());
            v.emplace_back(made.v.begin(), made.v.end());
            queries.emplace_back(all_queries.begin(), all_queries.end());
            outputs.emplace_back(static_cast<std::size_t>(rows * heads_out * all.value_width));
        }
    }
};

// All ranks call it.
template <class Attention, class Communicator, class World>
void device_rank<Attention, Communicator, World>::one_step(decoder_type& decoder, const ctxpar::workspace& lent,
                                                           std::int64_t step_idx, record& to) {
    const std::int64_t heads_out = decoder.output_heads();
    step_inputs in(*this, step_idx, heads_out);
    const std::int64_t rows = all_.requests * all_.query_rows;
    const std::int64_t heads = mesh_.heads_per_rank();
    ctxpar::decode_batch batch;
    batch.requests = all_.requests;
    batch.lengths = ctxpar::index_of(pointer(in.lengths));
    batch.query_rows = ctxpar::index_of(pointer(in.row_counts));
    batch.table = device_table_;
    ctxpar::layer_options<> options;
    options.softmax_scale = all_.softmax_scale;

    // Ranks start together. Where they are threads of one process they share a clock.
    ctxpar::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    (void)from_first(world_, 0);
    const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()); };
    const auto at = static_cast<std::size_t>(step_idx * world_.size() + world_.rank());
    to.begin[at] = now().count();
    const ctxpar::decode_step step = decoder.plan(batch, ctxpar::step_bounds{rows, all_.room()}, lent, stream_.handle);
    for (std::int64_t i = 0; i < all_.layers; ++i) {
        const auto layer = static_cast<std::size_t>(i);
        const ctxpar::kv_view<typename Attention::kv_element> cache = cache_.view(all_, i);
        const new_rows<Attention>& tokens = in.host_tokens[layer];
        decoder.append(step, moved(tokens.first_part(rows), tokens.k, in.k[layer]),
                       second_part(tokens, rows, in.k[layer], in.v[layer]), cache, stream_.handle);
        decoder.decode(
            step, ctxpar::dense_view(pointer(std::as_const(in.queries[layer])), rows, heads, all_.query_width),
            ctxpar::kv_view<const typename Attention::kv_element>(cache),
            ctxpar::dense_view(pointer(in.outputs[layer]), rows, heads_out, all_.value_width), options, stream_.handle);
    }
    groups_.kv->wait(stream_.handle);
    to.end[at] = now().count();

    const ctxpar::step_status found = decoder.check(step);
    ctxpar::require(found.bad_entries == 0, "entry", "the step found ", found.bad_entries, " bad entries, the first ",
                    name_of(found.first_fault));
    for (std::int64_t layer = 0; layer < all_.layers; ++layer) {
        std::vector<float>& output = to.output(all_, step_idx, layer, world_.rank());
        output.resize(in.outputs[static_cast<std::size_t>(layer)].size());
        thrust::copy(in.outputs[static_cast<std::size_t>(layer)].begin(),
                     in.outputs[static_cast<std::size_t>(layer)].end(), output.begin());
    }
    if (world_.rank() == 0) {
        const ctxpar::merge::dynamic merge{ctxpar::merge_named(to.merge)};
        const ctxpar::exchange_bytes bytes = ctxpar::exchange(merge, step.shape);
        to.planned += bytes.total * static_cast<std::uint64_t>(all_.layers);
        to.collectives = bytes.collectives;
    }
}

} // namespace demo
