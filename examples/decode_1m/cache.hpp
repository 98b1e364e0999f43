// One rank's KV cache: a pool of its own for each layer, written through the decoder.
#pragma once

#include <cstdint>
#include <vector>

#include <ctxpar/core/view.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/paged.hpp>

#include "common/blocks.hpp"
#include "common/memory.hpp"
#include "data.hpp"
#include "problem.hpp"

namespace demo {

// New rows of K and V on their way into the cache: [rows][KV heads of the rank][width], for MLA [rows][latent + rope].
template <class Attention>
struct new_rows {
    using element = typename Attention::element;

    new_rows(const problem& all, std::int64_t most) : heads(all.ranks().kv_heads_per_rank()), all_(all) {
        k.resize(static_cast<std::size_t>(most * heads * all.query_width));
        if (!all.is_mla()) v.resize(static_cast<std::size_t>(most * heads * all.value_width));
    }

    // Row i becomes a token; its value that of `value_position`, where keys and values can be told apart.
    void make(const kv_data& data, std::int64_t i, std::int64_t layer, std::int64_t request, std::int64_t position,
              std::int64_t value_position, std::int64_t first_head) {
        std::vector<float>& row = scratch_;
        for (std::int64_t head = 0; head < heads; ++head) {
            row.resize(static_cast<std::size_t>(all_.query_width));
            data.key(layer, request, position, first_head + head, row.data());
            store_exact(row, k.data() + (i * heads + head) * all_.query_width);
            row.resize(static_cast<std::size_t>(all_.value_width));
            if (!all_.is_mla()) {
                data.value(layer, request, value_position, first_head + head, row.data());
                store_exact(row, v.data() + (i * heads + head) * all_.value_width);
            } else if (value_position != position) { // another token's latent before this one's rope
                row.resize(static_cast<std::size_t>(all_.query_width));
                data.key(layer, request, value_position, first_head + head, row.data());
                row.resize(static_cast<std::size_t>(all_.value_width));
                store_exact(row, k.data() + (i * heads + head) * all_.query_width);
            }
        }
    }

    // The two parts that decoder::append takes: keys and values, or latent and rope.
    ctxpar::head_view<const element> first_part(std::int64_t rows) const {
        return part(k.data(), rows, all_.is_mla() ? all_.value_width : all_.query_width, all_.query_width);
    }
    ctxpar::head_view<const element> second_part(std::int64_t rows) const {
        if (!all_.is_mla()) return part(v.data(), rows, all_.value_width, all_.value_width);
        return part(k.data() + all_.value_width, rows, all_.query_width - all_.value_width, all_.query_width);
    }

    std::int64_t heads;
    std::vector<element> k, v;

private:
    ctxpar::head_view<const element> part(const element* base, std::int64_t rows, std::int64_t width,
                                          std::int64_t pitch) const {
        return {base, rows, heads, width, heads, 0, heads * pitch, pitch};
    }

    const problem& all_;
    std::vector<float> scratch_;
};

// A layer's pool as the library sees it, wherever it lies.
template <class Attention>
ctxpar::kv_view<typename Attention::kv_element> view_of_pool(const problem& all, typename Attention::kv_element* base) {
    const std::int64_t pages = all.blocks_per_request() * all.requests;
    auto cache = all.is_mla() ? ctxpar::latent_kv(base, pages, all.block_size, all.value_width,
                                                  all.query_width - all.value_width)
                              : ctxpar::joint_kv(base, pages, all.block_size, all.ranks().kv_heads_per_rank(),
                                                 all.query_width, all.value_width, ctxpar::page_order::hnd);
    cache.k_scale = ctxpar::per_tensor(all.k_scale);
    cache.v_scale = ctxpar::per_tensor(all.v_scale);
    return cache;
}

// The pools of one rank.
template <class Attention>
class rank_cache {
public:
    using stored = typename Attention::kv_element;

    void allocate(const problem& all) {
        const std::int64_t tokens = all.blocks_per_request() * all.requests * all.block_size;
        for (std::int64_t layer = 0; layer < all.layers; ++layer)
            pools_.emplace_back(static_cast<std::size_t>(tokens * all.token_bytes()));
    }

    const std::vector<pool>& pools() const { return pools_; }

    ctxpar::kv_view<stored> view(const problem& all, std::int64_t layer) const {
        return view_of_pool<Attention>(all, reinterpret_cast<stored*>(pools_[static_cast<std::size_t>(layer)].data()));
    }

private:
    std::vector<pool> pools_;
};

} // namespace demo
