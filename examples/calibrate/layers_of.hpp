// What layers.hpp promises, for one kind of attention and communicator.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>

#include "common/blocks.hpp"
#include "layers.hpp"

namespace demo {

template <class Attention, ctxpar::communicator C>
class layers_of final : public rank_layers {
public:
    using policy_type = ctxpar::policy<Attention, ctxpar::interleave<>, ctxpar::merge::dynamic>;
    using decoder_type = ctxpar::decoder<policy_type, ctxpar::cpu_backend, C>;
    using element = typename Attention::element;

    layers_of(const model_dims& model, const requests& all, ctxpar::merge_kind merge, const number_pool& pool, C* kv)
        : model_(model), requests_(all), part_{ctxpar::group_size(kv), ctxpar::group_rank(kv), cache_interleave},
          columns_(columns()), ids_(scattered_blocks(std::max<std::int64_t>(1, count() * columns_))),
          table_(ctxpar::table_2d(ids_.data(), count(), columns_, cache_interleave)),
          decoder_({kv}, shape(), {{}, {cache_interleave}, {merge}}), memory_(decoder_.workspace_bytes()) {
        for (const ctxpar::request_load& each : all) {
            lengths_.push_back(each.keys);
            rows_.push_back(each.rows);
        }
        batch_.requests = count();
        batch_.lengths = ctxpar::index_of(lengths_.data());
        batch_.query_rows = ctxpar::index_of(rows_.data());
        batch_.table = table_;
        ctxpar::require(cache_bytes() <= pool.bytes(), "memory", "a layer of these requests takes ", cache_bytes(),
                        " bytes, and there are ", pool.bytes());
        make_rows();
        output_.resize(static_cast<std::size_t>(row_count() * model.heads * model.value_width()));
    }

    std::size_t cache_bytes() const override {
        return static_cast<std::size_t>(count() * columns_ * cache_interleave * model_.token_bytes());
    }

    void fill(std::byte* to) override {
        const auto cache = cache_at(to);
        for (std::int64_t request = 0; request < count(); ++request) {
            const std::int64_t old = lengths_[index(request)] - rows_[index(request)];
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
    }

    void plan() override { step_ = decoder_.plan(batch_, memory_, {}); }

    void append(std::byte* cache) override {
        if (model_.latent) {
            const std::int64_t latent = model_.value_width(), wide = model_.query_width();
            decoder_.append(step_, view(keys_, latent, wide), view(keys_, wide - latent, wide, latent), cache_at(cache),
                            {});
        } else {
            decoder_.append(step_, view(keys_, model_.query_width(), model_.query_width()),
                            view(values_, model_.value_width(), model_.value_width()), cache_at(cache), {});
        }
    }

    void decode(std::byte* cache) override {
        decoder_.decode(
            step_, ctxpar::dense_view<const element>(queries_.data(), row_count(), model_.heads, model_.query_width()),
            cache_at(cache), ctxpar::dense_view(output_.data(), row_count(), model_.heads, model_.value_width()), {},
            {});
    }

    const std::vector<float>& output() const override { return output_; }

private:
    static std::size_t index(std::int64_t at) { return static_cast<std::size_t>(at); }
    std::int64_t count() const { return static_cast<std::int64_t>(requests_.size()); }
    std::int64_t row_count() const {
        std::int64_t rows = 0;
        for (const ctxpar::request_load& each : requests_) rows += each.rows;
        return rows;
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

    ctxpar::kv_view<element> cache_at(std::byte* at) const {
        auto* const base = reinterpret_cast<element*>(at);
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
        queries_.resize(index(row_count() * model_.heads * wide));
        keys_.resize(index(row_count() * model_.kv_heads * wide));
        values_.resize(index(row_count() * model_.kv_heads * values));
        std::int64_t row = 0;
        for (std::int64_t request = 0; request < count(); ++request)
            for (std::int64_t i = 0; i < rows_[index(request)]; ++i, ++row) {
                const std::int64_t position = lengths_[index(request)] - rows_[index(request)] + i;
                for (std::int64_t head = 0; head < model_.heads; ++head)
                    numbers(token(request, position, head) + 2, wide,
                            &queries_[index((row * model_.heads + head) * wide)]);
                for (std::int64_t head = 0; head < model_.kv_heads; ++head) {
                    const std::int64_t at = row * model_.kv_heads + head;
                    numbers(token(request, position, head), wide, &keys_[index(at * wide)]);
                    numbers(token(request, position, head) + 1, values, &values_[index(at * values)]);
                }
            }
    }

    ctxpar::head_view<const element> view(const std::vector<element>& rows, std::int64_t width, std::int64_t pitch,
                                          std::int64_t first = 0) const {
        const std::int64_t heads = model_.kv_heads;
        return {rows.data() + first, row_count(), heads, width, heads, 0, heads * pitch, pitch};
    }

    model_dims model_;
    requests requests_;
    ctxpar::shard part_;
    std::int64_t columns_;
    std::vector<std::int32_t> ids_;
    ctxpar::block_table table_;
    decoder_type decoder_;
    ctxpar::host_workspace memory_;
    std::vector<std::int64_t> lengths_, rows_;
    ctxpar::decode_batch batch_;
    ctxpar::decode_step step_;
    std::vector<element> queries_, keys_, values_;
    std::vector<float> output_;
};

} // namespace demo
