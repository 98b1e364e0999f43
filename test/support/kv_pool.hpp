// A rank's KV cache, in every layout that engines use: memory that holds nothing but NaN until it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "deployment.hpp"

namespace ctxpar_test {

// Bytes that are all ones, which is NaN in every type. With `pages_alone` they fill whole pages of memory.
class raw_memory {
public:
    static constexpr std::size_t page = 4096;

    raw_memory(std::size_t bytes, bool pages_alone)
        : alignment_(pages_alone ? page : 64), bytes_(pages_alone ? (bytes + page - 1) / page * page : bytes),
          data_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t(alignment_)))) {
        std::memset(data_, 0xff, bytes_);
    }
    raw_memory(raw_memory&& other) noexcept
        : alignment_(other.alignment_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
    raw_memory& operator=(raw_memory&&) = delete;
    ~raw_memory() { ::operator delete(data_, std::align_val_t(alignment_)); }

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::size_t alignment_;
    std::size_t bytes_;
    std::byte* data_;
};

// The pool of one rank. Its view, its scales and its page pointers all lie in one piece of memory.
template <class Kv>
class kv_pool {
public:
    // `heads` are the KV heads held, `scales_of_heads` their factors [2][all heads of the model].
    kv_pool(const deployment& d, heads_held heads, std::int64_t slots, const std::vector<float>& scales_of_heads)
        : mla_(d.is_mla), heads_(heads.count), key_width_(d.key_width), value_width_(d.value_width),
          page_size_(d.page_size == 0 ? d.block_size : d.page_size), pages_((slots + page_size_ - 1) / page_size_),
          memory_(bytes_needed(), d.pages_alone) {
        view_ = mla_ ? latent_view(d) : split_view(d);
        set_scales(d, heads, scales_of_heads);
    }

    const kv_view<Kv>& view() const { return view_; }
    std::byte* data() const { return memory_.data(); }
    std::size_t bytes() const { return memory_.bytes(); }

private:
    static constexpr std::int64_t gap = 3; // unused elements behind a token, with gaps

    std::int64_t key_elements() const { return page_size_ * heads_ * key_width_; }
    std::int64_t value_elements() const { return mla_ ? 0 : page_size_ * heads_ * value_width_; }

    // Elements first, with room for gaps, then page pointers, then two factors a token and head.
    std::size_t elements() const {
        const std::int64_t gaps = 2 * (page_size_ + 1) * gap;
        return static_cast<std::size_t>(pages_ * (key_elements() + value_elements() + gaps));
    }
    std::size_t pointers_at() const { return (elements() * sizeof(Kv) + 15) / 16 * 16; }
    std::size_t scales_at() const { return pointers_at() + static_cast<std::size_t>(pages_) * sizeof(void*); }
    std::size_t bytes_needed() const {
        return scales_at() + static_cast<std::size_t>(2 * (pages_ * page_size_ + 1) * heads_) * sizeof(float);
    }

    Kv* base() const { return reinterpret_cast<Kv*>(memory_.data()); }

    // Pages in reverse order, so that page pointers are more than a stride.
    void* const* page_pointers(std::int64_t page_elements) const {
        void** const pointers = reinterpret_cast<void**>(memory_.data() + pointers_at());
        for (std::int64_t page = 0; page < pages_; ++page)
            pointers[page] = base() + (pages_ - 1 - page) * page_elements;
        return pointers;
    }

    kv_view<Kv> latent_view(const deployment& d) const {
        auto view = latent_kv(base(), pages_, page_size_, value_width_, key_width_ - value_width_);
        if (d.layout == pool_layout::page_pointers) {
            view.k.pages = page_pointers(key_elements());
            view.k.base = nullptr;
        } else if (d.layout == pool_layout::gaps) {
            view.k.token_stride += gap;
            view.k.page_stride = page_size_ * view.k.token_stride + gap;
        }
        view.v = view.k;
        return view;
    }

    kv_view<Kv> split_view(const deployment& d) const {
        Kv* const k = base();
        Kv* const v = k + pages_ * key_elements();
        switch (d.layout) {
        case pool_layout::hnd:
            return hnd_kv(k, v, pages_, page_size_, heads_, key_width_, value_width_);
        case pool_layout::joint_nhd:
        case pool_layout::joint_hnd:
            return joint_kv(k, pages_, page_size_, heads_, key_width_, value_width_,
                            d.layout == pool_layout::joint_nhd ? page_order::nhd : page_order::hnd);
        case pool_layout::stacked_nhd:
        case pool_layout::stacked_hnd:
            return stacked_kv(k, pages_, page_size_, heads_, key_width_, value_width_,
                              d.layout == pool_layout::stacked_nhd ? page_order::nhd : page_order::hnd);
        case pool_layout::page_pointers:
            return paged_pointers_kv<Kv>(page_pointers(key_elements() + value_elements()), pages_, 0, 0,
                                         key_elements() * static_cast<std::int64_t>(sizeof(Kv)), page_size_, heads_,
                                         key_width_, value_width_);
        case pool_layout::contiguous:
            return contiguous_kv(k, v, pages_, page_size_, heads_, key_width_, value_width_);
        default:
            break;
        }
        auto view = nhd_kv(k, v, pages_, page_size_, heads_, key_width_, value_width_);
        if (d.layout == pool_layout::gaps) {
            for (kv_plane<Kv>* plane : {&view.k, &view.v}) {
                plane->token_stride += gap;
                plane->page_stride = page_size_ * plane->token_stride + gap;
            }
            view.v.base = k + pages_ * view.k.page_stride;
        }
        return view;
    }

    // Factors of keys and of values; MLA has one row, whose values are read with the factor of its key.
    void set_scales(const deployment& d, heads_held heads, const std::vector<float>& of_heads) {
        float* const place = reinterpret_cast<float*>(memory_.data() + scales_at());
        const auto set_both = [&](const kv_scale& keys, const kv_scale& values) {
            view_.k_scale = keys;
            if (!mla_) view_.v_scale = values;
        };
        const std::int64_t tokens = pages_ * page_size_;
        switch (d.scales) {
        case scale_choice::none:
            return;
        case scale_choice::tensor:
            return set_both(per_tensor(0.05F), per_tensor(0.03F));
        case scale_choice::head:
            for (std::int64_t i = 0; i < heads_; ++i) {
                place[i] = of_heads[static_cast<std::size_t>(heads.first + i)];
                place[heads_ + i] = of_heads[static_cast<std::size_t>(d.kv_heads + heads.first + i)];
            }
            return set_both(per_head(place), per_head(place + heads_));
        case scale_choice::token:
            return set_both(per_token(place, page_size_ * heads_, heads_, 1),
                            per_token(place + tokens * heads_, page_size_ * heads_, heads_, 1));
        case scale_choice::shared_token:
            return set_both(per_token(place, page_size_, 1, 0), per_token(place + tokens, page_size_, 1, 0));
        }
    }

    bool mla_;
    std::int64_t heads_;
    std::int64_t key_width_;
    std::int64_t value_width_;
    std::int64_t page_size_;
    std::int64_t pages_;
    raw_memory memory_;
    kv_view<Kv> view_;
};

} // namespace ctxpar_test
