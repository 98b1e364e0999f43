// What layers.hpp promises, for one kind of attention and rank.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/attention/mla.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>

#include "common/blocks.hpp"
#include "layers.hpp"

namespace demo {

// Kind: host_kind or device_kind.
template <class Attention, class Kind>
class layers_of final : public rank_layers {
public:
    using policy_type = ctxpar::policy<Attention, ctxpar::interleave<>, ctxpar::merge::dynamic>;
    using decoder_type = ctxpar::decoder<policy_type, typename Kind::backend, typename Kind::communicator>;
    using stream_type = typename Kind::stream_type;
    using element = typename Attention::element;

    layers_of(const model_dims& model, const requests& all, ctxpar::merge_kind merge, const memory_in_turn& pool,
              typename Kind::communicator* kv, stream_type stream)
        : model_(model), requests_(all), part_{ctxpar::group_size(kv), ctxpar::group_rank(kv), cache_interleave},
          stream_(stream), columns_(columns()), ids_(scattered_blocks(std::max<std::int64_t>(1, count() * columns_))),
          table_(table_of(ids_.data())), decoder_({kv}, shape(), {{}, {cache_interleave}, {merge}}),
          memory_(Kind::room(decoder_.workspace_bytes(), stream)), own_ids_(Kind::moved(ids_, stream)) {
        std::vector<std::int64_t> lengths, rows;
        for (const ctxpar::request_load& each : all) {
            lengths.push_back(each.keys);
            rows.push_back(each.rows);
        }
        lengths_ = Kind::moved(lengths, stream);
        rows_ = Kind::moved(rows, stream);
        batch_.requests = count();
        batch_.lengths = ctxpar::index_of(std::as_const(lengths_).data());
        batch_.query_rows = ctxpar::index_of(std::as_const(rows_).data());
        batch_.table = table_of(std::as_const(own_ids_).data());
        ctxpar::require(cache_bytes() <= pool.bytes(), "memory", "a layer of these requests takes ", cache_bytes(),
                        " bytes, and there are ", pool.bytes());
        make_rows();
        output_ = Kind::moved(std::vector<float>(index(output_size())), stream);
    }

    std::size_t cache_bytes() const override {
        return static_cast<std::size_t>(count() * columns_ * cache_interleave * model_.token_bytes());
    }

    void fill(std::byte* to) override {
        const auto size = static_cast<std::int64_t>(cache_bytes() / sizeof(element));
        auto* const there = reinterpret_cast<element*>(to);
        std::vector<element> copy = Kind::copied(static_cast<const element*>(there), size, stream_);
        const auto cache = cache_of(copy.data());
        for (std::int64_t request = 0; request < count(); ++request) {
            const std::int64_t old = requests_[index(request)].keys - requests_[index(request)].rows;
            for (std::int64_t local = 0; local < part_.local_len(old); ++local) {
                const std::int64_t position = part_.global(local);
                const std::int64_t slot = ctxpar::slot_of(part_, table_, request, position);
                for (std::int64_t head = 0; head < cache.kv_heads; ++head) {
                    numbers(token(request, position, head), model_.query_width(), cache.key(slot, head));
                    if (!model_.latent)
                        numbers(token(request, position, head) + 1, model_.value_width(), cache.value(slot, head));
                }
            }
        }
        Kind::write(copy, there, stream_);
    }

    void plan() override {
        if constexpr (Kind::on_device) { // as an engine that captures its steps
            const ctxpar::step_bounds bounds{row_count(), decoder_.shape().longest};
            step_ = decoder_.plan(batch_, bounds, memory_, stream_);
        } else {
            step_ = decoder_.plan(batch_, memory_, stream_);
        }
    }

    void append(std::byte* cache) override {
        if (model_.latent) {
            const std::int64_t latent = model_.value_width(), wide = model_.query_width();
            decoder_.append(step_, view(keys_, latent, wide), view(keys_, wide - latent, wide, latent), cache_at(cache),
                            stream_);
        } else {
            decoder_.append(step_, view(keys_, model_.query_width(), model_.query_width()),
                            view(values_, model_.value_width(), model_.value_width()), cache_at(cache), stream_);
        }
    }

    void decode(std::byte* cache) override {
        decoder_.decode(
            step_, ctxpar::dense_view<const element>(queries_.data(), row_count(), model_.heads, model_.query_width()),
            cache_at(cache), ctxpar::dense_view(output_.data(), row_count(), model_.heads, model_.value_width()), {},
            stream_);
    }

    std::vector<float> output() const override { return Kind::copied(output_.data(), output_size(), stream_); }

private:
    template <class T>
    using own_memory = typename Kind::template memory<T>;

    static std::size_t index(std::int64_t at) { return static_cast<std::size_t>(at); }
    std::int64_t count() const { return static_cast<std::int64_t>(requests_.size()); }
    std::int64_t row_count() const {
        std::int64_t rows = 0;
        for (const ctxpar::request_load& each : requests_) rows += each.rows;
        return rows;
    }
    std::int64_t output_size() const { return row_count() * model_.heads * model_.value_width(); }
    ctxpar::block_table table_of(const std::int32_t* ids) const {
        return ctxpar::table_2d(ids, count(), columns_, cache_interleave);
    }
    std::int64_t columns() const {
        std::int64_t most = 1;
        const ctxpar::ownership law{part_.ranks, part_.interleave};
        for (const ctxpar::request_load& each : requests_) most = std::max(most, law.local_len(each.keys, 0));
        return (most + cache_interleave - 1) / cache_interleave;
    }
    ctxpar::decode_shape shape() const {
        ctxpar::decode_shape shape;
        shape.sizes.pcp = shape.sizes.dcp = part_.ranks; // every rank has all heads
        shape.q_heads = model_.heads;
        shape.kv_heads = model_.kv_heads;
        shape.max_requests = count();
        shape.max_rows = row_count();
        shape.longest = 1;
        for (const ctxpar::request_load& each : requests_) shape.longest = std::max(shape.longest, each.keys);
        shape.pool_blocks = count() * columns_;
        shape.output = ctxpar::scalar_type::f32;
        return shape;
    }

    ctxpar::kv_view<element> cache_at(std::byte* at) const { return cache_of(reinterpret_cast<element*>(at)); }
    ctxpar::kv_view<element> cache_of(element* base) const {
        const std::int64_t blocks = count() * columns_;
        if (model_.latent)
            return ctxpar::latent_kv(base, blocks, cache_interleave, model_.value_width(),
                                     model_.query_width() - model_.value_width());
        return ctxpar::stacked_kv(base, blocks, cache_interleave, model_.kv_heads, model_.query_width(),
                                  model_.value_width(), ctxpar::page_order::nhd);
    }

    // The stream of a key; that of its value is one more, that of a query two more.
    static std::uint64_t token(std::int64_t request, std::int64_t position, std::int64_t head) {
        return 4 * ((static_cast<std::uint64_t>(request) << 44) + (static_cast<std::uint64_t>(head) << 34) +
                    static_cast<std::uint64_t>(position));
    }
    static void numbers(std::uint64_t stream, std::int64_t width, element* to) {
        for (std::int64_t i = 0; i < width / 4; ++i) {
            const std::uint64_t word = four_numbers(stream, static_cast<std::uint64_t>(i));
            std::memcpy(static_cast<void*>(to + 4 * i), &word, sizeof(word));
        }
    }

    // Queries, and the newest tokens' keys and values, row by row.
    void make_rows() {
        const std::int64_t wide = model_.query_width(), values = model_.value_width();
        std::vector<element> queries_of(index(row_count() * model_.heads * wide));
        std::vector<element> keys_of(index(row_count() * model_.kv_heads * wide));
        std::vector<element> values_of(index(row_count() * model_.kv_heads * values));
        std::int64_t row = 0;
        for (std::int64_t request = 0; request < count(); ++request)
            for (std::int64_t i = 0; i < requests_[index(request)].rows; ++i, ++row) {
                const std::int64_t position = requests_[index(request)].keys - requests_[index(request)].rows + i;
                for (std::int64_t head = 0; head < model_.heads; ++head)
                    numbers(token(request, position, head) + 2, wide,
                            &queries_of[index((row * model_.heads + head) * wide)]);
                for (std::int64_t head = 0; head < model_.kv_heads; ++head) {
                    const std::int64_t at = row * model_.kv_heads + head;
                    numbers(token(request, position, head), wide, &keys_of[index(at * wide)]);
                    numbers(token(request, position, head) + 1, values, &values_of[index(at * values)]);
                }
            }
        queries_ = Kind::moved(queries_of, stream_);
        keys_ = Kind::moved(keys_of, stream_);
        values_ = Kind::moved(values_of, stream_);
    }

    ctxpar::head_view<const element> view(const own_memory<element>& rows, std::int64_t width, std::int64_t pitch,
                                          std::int64_t first = 0) const {
        const std::int64_t heads = model_.kv_heads;
        return {rows.data() + first, row_count(), heads, width, heads, 0, heads * pitch, pitch};
    }

    model_dims model_;
    requests requests_;
    ctxpar::shard part_;
    stream_type stream_;
    std::int64_t columns_;
    std::vector<std::int32_t> ids_;
    ctxpar::block_table table_; // read by the host
    decoder_type decoder_;
    typename Kind::workspace memory_;
    own_memory<std::int32_t> own_ids_;
    own_memory<std::int64_t> lengths_, rows_;
    ctxpar::decode_batch batch_;
    ctxpar::decode_step step_;
    own_memory<element> queries_, keys_, values_;
    own_memory<float> output_;
};

template <class Kind>
std::unique_ptr<rank_layers> make_layers_of(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                            const memory_in_turn& pool, typename Kind::communicator* kv,
                                            typename Kind::stream_type stream) {
    if (model.latent)
        return std::make_unique<layers_of<ctxpar::mla<ctxpar::bf16, 512, 64>, Kind>>(model, all, merge, pool, kv,
                                                                                     stream);
    return std::make_unique<layers_of<ctxpar::gqa<ctxpar::bf16, 128>, Kind>>(model, all, merge, pool, kv, stream);
}

} // namespace demo
