// Deployments with real bytes for tests of KV transfer: every rank's caches in every layout, described as the library
// wants them, and filled row by row through kv_view and tokens dealt out one by one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/transfer_side.hpp>

namespace ctxpar_test {

enum class pool_form {
    nhd,
    hnd,
    joint_nhd,
    joint_hnd,
    stacked_nhd,
    stacked_hnd,
    pointers_nhd,
    pointers_hnd,
    gaps,
    head_major,
    latent,
    latent_pointers
};
enum class pool_scales { none, tensor, head, token, shared_token };

struct transfer_case {
    std::int64_t ranks = 1, interleave = 1, block_size = 4; // N, I, B
    std::int64_t page_size = 0;                             // 0: B
    pool_form form = pool_form::nhd;
    pool_scales scales = pool_scales::none;
    std::int64_t head_groups = 1, replicas = 1; // per shard: groups of KV heads, ranks that hold each
    std::int64_t stages = 1;                    // pipeline stages, which split the layers
};

struct transfer_model {
    std::int64_t kv_heads = 4, layers = 3, key_width = 6, value_width = 4; // latent forms: one head
};

inline std::size_t at(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

// A byte of a row that names everything there is to mix up.
inline std::byte row_byte(std::int64_t token, std::int64_t layer, std::int64_t head, std::size_t part, std::size_t i) {
    std::uint64_t mixed = static_cast<std::uint64_t>(token) * 1000003 + static_cast<std::uint64_t>(layer) * 7919 +
                          static_cast<std::uint64_t>(head) * 613 + part * 53 + i;
    mixed *= 0x9e3779b97f4a7c15ULL;
    return static_cast<std::byte>(mixed >> 40);
}

// A row of one part: where it is, and how long.
struct row_at {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
};

// One rank's caches. Nothing moves after it has been made.
template <class Kv>
class transfer_pool {
public:
    static constexpr std::byte unused{0xEE};

    transfer_pool(const transfer_case& c, const transfer_model& model, ctxpar::shard part, ctxpar::head_range heads,
                  std::int64_t first_layer, std::int64_t layers, std::int64_t slots)
        : model_(model), form_(c.form), scales_(c.scales), heads_(heads.count()),
          page_size_(c.page_size == 0 ? c.block_size : c.page_size), pages_((slots + page_size_ - 1) / page_size_) {
        new_region(64); // nobody's
        if (form_ == pool_form::pointers_nhd || form_ == pool_form::pointers_hnd || form_ == pool_form::latent_pointers)
            make_pages(layers);
        for (std::int64_t layer = 0; layer < layers; ++layer) views_.push_back(make_view(layer));
        for (const auto& memory : memories_)
            regions_.push_back(
                {reinterpret_cast<std::uintptr_t>(memory->data()), static_cast<std::int64_t>(memory->size())});
        for (const auto& view : views_) places_.push_back(ctxpar::transfer_layer_of(view, regions_));
        pages_at_ = ctxpar::transfer_pages_of(pointers_, regions_);
        rank.part = part;
        rank.block_size = c.block_size;
        rank.heads = heads;
        rank.first_layer = first_layer;
        if (layers > 0) rank.geometry = ctxpar::transfer_geometry_of(views_[0]);
        rank.layers = places_;
        rank.key_pages = pages_at_;
        rank.regions = regions_;
    }
    transfer_pool(const transfer_pool&) = delete;
    transfer_pool& operator=(const transfer_pool&) = delete;

    // The row of a part (keys, values and their scales), by the view's own functions; no bytes where there is none.
    // `layer` and `head` are the model's.
    row_at row(std::size_t part, std::int64_t layer, std::int64_t slot, std::int64_t head) const {
        const ctxpar::kv_view<Kv>& view = views_[at(layer - rank.first_layer)];
        const std::int64_t own = head - rank.heads.first;
        const auto bytes = [](auto* data) { return reinterpret_cast<std::byte*>(data); };
        const auto size = static_cast<std::int64_t>(sizeof(Kv));
        const bool latent = ctxpar::values_in_keys(view);
        if (part == 0) return {bytes(view.key(slot, own)), view.key_width * size};
        if (part == 1) return latent ? row_at{} : row_at{bytes(view.value(slot, own)), view.value_width * size};
        const ctxpar::kv_scale& scale = part == 2 ? view.k_scale : view.v_scale;
        if (scale.kind != ctxpar::scale_kind::token || (part == 3 && latent)) return {};
        return {bytes(scale.data + scale.offset(view.page_of(slot), view.token_of(slot), own)), 4};
    }

    std::vector<std::vector<std::byte>> contents() const {
        std::vector<std::vector<std::byte>> all;
        for (const auto& memory : memories_) all.push_back(*memory);
        return all;
    }

    ctxpar::transfer_rank rank;

private:
    std::byte* new_region(std::int64_t bytes) {
        memories_.push_back(std::make_unique<std::vector<std::byte>>(at(bytes), unused));
        return memories_.back()->data();
    }
    Kv* new_elements(std::int64_t count) { return reinterpret_cast<Kv*>(new_region(count * std::int64_t{sizeof(Kv)})); }

    std::int64_t key_elements() const { return page_size_ * heads_ * model_.key_width; }
    std::int64_t value_elements() const {
        return form_ == pool_form::latent_pointers ? 0 : page_size_ * heads_ * model_.value_width;
    }

    // Pages of all layers, odd ones in a region of their own, in reverse order.
    void make_pages(std::int64_t layers) {
        const std::int64_t size = layers * (key_elements() + value_elements());
        Kv* const even = new_elements((pages_ + 1) * size);
        Kv* const odd = new_elements((pages_ + 1) * size);
        for (std::int64_t page = 0; page < pages_; ++page)
            pointers_.push_back((page % 2 == 0 ? even : odd) + (pages_ - 1 - page) * size);
    }

    ctxpar::kv_view<Kv> make_view(std::int64_t layer) {
        auto view = bare_view(layer);
        const bool latent = ctxpar::values_in_keys(view);
        const std::int64_t tokens = pages_ * page_size_;
        const auto both = [&](const ctxpar::kv_scale& keys, const ctxpar::kv_scale& values) {
            view.k_scale = keys;
            if (!latent) view.v_scale = values;
        };
        const auto floats = [&](std::int64_t count) { return reinterpret_cast<float*>(new_region(4 * count)); };
        switch (scales_) {
        case pool_scales::none:
            break;
        case pool_scales::tensor:
            both(ctxpar::per_tensor(0.5F), ctxpar::per_tensor(0.25F));
            break;
        case pool_scales::head:
            both(ctxpar::per_head(floats(heads_)), ctxpar::per_head(floats(heads_)));
            break;
        case pool_scales::token: {
            float* const keys = floats(tokens * heads_);
            both(ctxpar::per_token(keys, page_size_ * heads_, heads_, 1),
                 ctxpar::per_token(floats(tokens * heads_), page_size_ * heads_, heads_, 1));
            break;
        }
        case pool_scales::shared_token: {
            float* const keys = floats(tokens);
            both(ctxpar::per_token(keys, page_size_, 1, 0), ctxpar::per_token(floats(tokens), page_size_, 1, 0));
            break;
        }
        }
        return view;
    }

    ctxpar::kv_view<Kv> bare_view(std::int64_t layer) {
        using enum pool_form;
        const auto hnd_or_nhd = [&](pool_form hnd_form) {
            return form_ == hnd_form ? ctxpar::page_order::hnd : ctxpar::page_order::nhd;
        };
        const std::int64_t k = model_.key_width, v = model_.value_width;
        const std::int64_t page_bytes = (key_elements() + value_elements()) * std::int64_t{sizeof(Kv)};
        const std::int64_t key_bytes = key_elements() * std::int64_t{sizeof(Kv)};
        switch (form_) {
        case nhd:
        case hnd: {
            Kv* const keys = new_elements(pages_ * key_elements());
            Kv* const values = new_elements(pages_ * value_elements());
            return form_ == nhd ? ctxpar::nhd_kv(keys, values, pages_, page_size_, heads_, k, v)
                                : ctxpar::hnd_kv(keys, values, pages_, page_size_, heads_, k, v);
        }
        case joint_nhd:
        case joint_hnd:
            return ctxpar::joint_kv(new_elements(pages_ * (key_elements() + value_elements())), pages_, page_size_,
                                    heads_, k, v, hnd_or_nhd(joint_hnd));
        case stacked_nhd:
        case stacked_hnd:
            return ctxpar::stacked_kv(new_elements(pages_ * (key_elements() + value_elements())), pages_, page_size_,
                                      heads_, k, v, hnd_or_nhd(stacked_hnd));
        case pointers_nhd:
        case pointers_hnd:
            return ctxpar::paged_pointers_kv<Kv>(pointers_.data(), pages_, layer * page_bytes, 0, key_bytes, page_size_,
                                                 heads_, k, v, hnd_or_nhd(pointers_hnd));
        case gaps: {
            auto view =
                ctxpar::nhd_kv(new_elements(pages_ * (page_size_ * (heads_ * k + 3) + 5)),
                               new_elements(pages_ * (page_size_ * heads_ * v + 7)), pages_, page_size_, heads_, k, v);
            view.k.token_stride += 3;
            view.k.page_stride = page_size_ * view.k.token_stride + 5;
            view.v.page_stride += 7;
            return view;
        }
        case head_major: { // [head][page][token]
            auto view = ctxpar::nhd_kv(new_elements(pages_ * key_elements()), new_elements(pages_ * value_elements()),
                                       pages_, page_size_, heads_, k, v);
            view.k.token_stride = k, view.k.page_stride = page_size_ * k, view.k.head_stride = pages_ * page_size_ * k;
            view.v.token_stride = v, view.v.page_stride = page_size_ * v, view.v.head_stride = pages_ * page_size_ * v;
            return view;
        }
        case latent:
            return ctxpar::latent_kv(new_elements(pages_ * key_elements()), pages_, page_size_, v, k - v);
        case latent_pointers: {
            auto view = ctxpar::latent_kv(static_cast<Kv*>(nullptr), pages_, page_size_, v, k - v);
            view.k.pages = pointers_.data();
            view.k.page_stride = 0;
            view.k.page_byte_offset = layer * page_bytes;
            view.v = view.k;
            return view;
        }
        }
        return {};
    }

    transfer_model model_;
    pool_form form_;
    pool_scales scales_;
    std::int64_t heads_, page_size_, pages_;
    std::vector<std::unique_ptr<std::vector<std::byte>>> memories_;
    std::vector<void*> pointers_;
    std::vector<ctxpar::kv_view<Kv>> views_;
    std::vector<ctxpar::memory_region> regions_;
    std::vector<ctxpar::transfer_layer> places_;
    std::vector<ctxpar::memory_place> pages_at_;
};

// All ranks of one deployment and the table of one request, its row 1 of 2.
template <class Kv>
class transfer_deployment {
public:
    transfer_deployment(const transfer_case& c, const transfer_model& model, std::int64_t length, std::mt19937& random,
                        bool shuffled = true)
        : given(c), model_(model) {
        columns_ = (length + c.block_size - 1) / c.block_size + 2; // enough for any N
        const std::int64_t pool_blocks = 2 * columns_ + 2;
        ids_.resize(at(pool_blocks));
        std::iota(ids_.begin(), ids_.end(), 0);
        if (shuffled) std::shuffle(ids_.begin(), ids_.end(), random);
        for (std::int64_t stage = 0; stage < c.stages; ++stage)
            for (std::int64_t group = 0; group < c.head_groups; ++group)
                for (std::int64_t replica = 0; replica < c.replicas; ++replica)
                    for (std::int64_t part = 0; part < c.ranks; ++part) {
                        const std::int64_t first = model.layers * stage / c.stages;
                        const std::int64_t last = model.layers * (stage + 1) / c.stages;
                        const ctxpar::head_range heads{model.kv_heads * group / c.head_groups,
                                                       model.kv_heads * (group + 1) / c.head_groups};
                        pools.push_back(std::make_unique<transfer_pool<Kv>>(
                            c, model, ctxpar::shard{c.ranks, part, c.interleave}, heads, first, last - first,
                            pool_blocks * c.block_size));
                        ranks_.push_back(pools.back()->rank);
                    }
    }

    ctxpar::transfer_side side() const { return {{given.ranks, given.interleave}, given.block_size, ranks_}; }
    ctxpar::paged_request cache() const {
        return {{given.ranks, given.interleave}, ctxpar::table_2d(ids_.data(), 2, columns_, given.block_size), 1, -1};
    }

    // Shard and slot of each of the first `length` tokens: `interleave` of them to a shard, then the next one's turn.
    struct place {
        std::int64_t shard, slot;
    };
    std::vector<place> deal(std::int64_t length) const {
        std::vector<place> all;
        std::vector<std::int64_t> held(at(given.ranks), 0);
        std::int64_t rank = 0, left = given.interleave;
        for (std::int64_t token = 0; token < length; ++token) {
            if (left == 0) rank = (rank + 1) % given.ranks, left = given.interleave;
            --left;
            const std::int64_t local = held[at(rank)]++;
            all.push_back(
                {rank, ids_[at(columns_ + local / given.block_size)] * given.block_size + local % given.block_size});
        }
        return all;
    }

    // Writes the rows of the wanted tokens before `length` of the layers [first_layer, last_layer), on every rank that
    // holds them.
    template <class Wanted>
    void fill(std::int64_t length, std::int64_t first_layer, std::int64_t last_layer, const Wanted& wanted) {
        const std::vector<place> places = deal(length);
        for (auto& pool : pools)
            for (std::int64_t layer = first_layer; layer < last_layer; ++layer) {
                if (!pool->rank.holds_layer(layer)) continue;
                for (std::int64_t token = 0; token < length; ++token)
                    if (places[at(token)].shard == pool->rank.part.rank && wanted(token))
                        write(*pool, layer, token, places[at(token)].slot);
            }
    }

    std::vector<std::vector<std::vector<std::byte>>> contents() const {
        std::vector<std::vector<std::vector<std::byte>>> all;
        for (const auto& pool : pools) all.push_back(pool->contents());
        return all;
    }

    transfer_case given;
    std::vector<std::unique_ptr<transfer_pool<Kv>>> pools;

private:
    void write(const transfer_pool<Kv>& pool, std::int64_t layer, std::int64_t token, std::int64_t slot) const {
        for (std::size_t part = 0; part < 4; ++part)
            for (std::int64_t head = pool.rank.heads.first; head < pool.rank.heads.last; ++head) {
                const row_at row = pool.row(part, layer, slot, head);
                const bool shared = part >= 2 && given.scales == pool_scales::shared_token;
                for (std::size_t i = 0; i < at(row.bytes); ++i)
                    row.data[i] = row_byte(token, layer, shared ? -1 : head, part, i);
            }
    }

    transfer_model model_;
    std::int64_t columns_ = 0;
    std::vector<std::int64_t> ids_; // [2][columns], and two more blocks
    std::vector<ctxpar::transfer_rank> ranks_;
};

} // namespace ctxpar_test
