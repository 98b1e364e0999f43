// How an engine's KV cache lies in memory, stated by strides, so that it is read and written where it is.
//
// A rank's pool is a row of pages of page_size tokens; a slot is a token's row in it: page slot / page_size, token slot
// mod page_size. The page size may differ from the block table's block size (kernels may use smaller blocks): slots are
// the same. All strides count elements of T; the `width` elements of one (token, head) are contiguous.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <ctxpar/core/config.hpp>
#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1 {

enum class scale_kind : std::uint8_t { tensor, head, token };

// Dequantisation factors of one plane: value = stored * scale.
struct kv_scale {
    float* data = nullptr;         // null: `uniform` for the whole tensor
    float uniform = 1.0F;          // used where data is null
    std::int64_t page_stride = 0;  // floats; 0 where the scale does not depend on the page
    std::int64_t token_stride = 0; // floats; 0 where it does not depend on the token in its page
    std::int64_t head_stride = 0;  // floats; 0 where it does not depend on the head
    scale_kind kind = scale_kind::tensor;

    CTXPAR_HD constexpr float at(std::int64_t page, std::int64_t token, std::int64_t head) const {
        return data == nullptr ? uniform : data[offset(page, token, head)];
    }
    CTXPAR_HD constexpr std::int64_t offset(std::int64_t page, std::int64_t token, std::int64_t head) const {
        return page * page_stride + token * token_stride + head * head_stride;
    }
};

// One factor for the whole tensor.
CTXPAR_HD constexpr kv_scale per_tensor(float scale) {
    return {nullptr, scale, 0, 0, 0, scale_kind::tensor};
}
// One factor a KV head: [heads].
CTXPAR_HD constexpr kv_scale per_head(float* scales) {
    return {scales, 1.0F, 0, 0, 1, scale_kind::head};
}
// One factor a token (head_stride 0) or a token and head, in the pool's pages.
CTXPAR_HD constexpr kv_scale per_token(float* scales, std::int64_t page_stride, std::int64_t token_stride,
                                       std::int64_t head_stride) {
    return {scales, 1.0F, page_stride, token_stride, head_stride, scale_kind::token};
}

// One plane of a pool, its keys or its values: one array of pages, or an array of page pointers.
template <class T>
struct kv_plane {
    T* base = nullptr;                 // element (0, 0, 0); unused with page pointers
    void* const* pages = nullptr;      // [pages] start of each page; null: page p starts at base + p * page_stride
    std::int64_t page_byte_offset = 0; // bytes from a page pointer to the plane's first element in that page
    std::int64_t page_stride = 0;      // unused with page pointers
    std::int64_t token_stride = 0;
    std::int64_t head_stride = 0;

    // The first of the `width` elements of one token and head.
    CTXPAR_HD constexpr T* at(std::int64_t page, std::int64_t token, std::int64_t head) const {
        if (pages == nullptr) return base + offset(page, token, head);
        void* const start = static_cast<std::byte*>(pages[page]) + page_byte_offset;
        return static_cast<T*>(start) + offset(0, token, head);
    }

    // Elements from `base`, or with page 0 from the start of any page, to that element.
    CTXPAR_HD constexpr std::int64_t offset(std::int64_t page, std::int64_t token, std::int64_t head) const {
        return page * page_stride + token * token_stride + head * head_stride;
    }

    template <class Const>
        requires(std::is_same_v<Const, const T> && !std::is_const_v<T>)
    CTXPAR_HD constexpr operator kv_plane<Const>() const {
        return {base, pages, page_byte_offset, page_stride, token_stride, head_stride};
    }
};

// The KV cache of one layer on one rank. Keys and values may lie in one pool, and values may be a part of the keys'
// rows (MLA).
template <class T>
struct kv_view {
    kv_plane<T> k;
    kv_plane<T> v;
    std::int64_t pages = 0;
    std::int64_t page_size = 1;   // tokens
    std::int64_t kv_heads = 1;    // on this rank
    std::int64_t key_width = 0;   // elements of a key of one head
    std::int64_t value_width = 0; // elements of a value of one head
    kv_scale k_scale;
    kv_scale v_scale;

    CTXPAR_HD constexpr std::int64_t slots() const { return pages * page_size; }
    CTXPAR_HD constexpr std::int64_t page_of(std::int64_t slot) const { return slot / page_size; }
    CTXPAR_HD constexpr std::int64_t token_of(std::int64_t slot) const { return slot % page_size; }

    CTXPAR_HD constexpr T* key(std::int64_t slot, std::int64_t head) const {
        return k.at(page_of(slot), token_of(slot), head);
    }
    CTXPAR_HD constexpr T* value(std::int64_t slot, std::int64_t head) const {
        return v.at(page_of(slot), token_of(slot), head);
    }
    CTXPAR_HD constexpr float key_scale(std::int64_t slot, std::int64_t head) const {
        return k_scale.at(page_of(slot), token_of(slot), head);
    }
    CTXPAR_HD constexpr float value_scale(std::int64_t slot, std::int64_t head) const {
        return v_scale.at(page_of(slot), token_of(slot), head);
    }

    template <class Const>
        requires(std::is_same_v<Const, const T> && !std::is_const_v<T>)
    CTXPAR_HD constexpr operator kv_view<Const>() const {
        return {k, v, pages, page_size, kv_heads, key_width, value_width, k_scale, v_scale};
    }
};

static_assert(std::is_trivially_copyable_v<kv_scale> && std::is_trivially_copyable_v<kv_view<float>>);

// Whether the values are the first elements of the keys' rows (MLA): the two planes are one, and so are their scales.
template <class T>
CTXPAR_HD constexpr bool values_in_keys(const kv_view<T>& cache) {
    const kv_plane<T>& k = cache.k;
    const kv_plane<T>& v = cache.v;
    return v.base == k.base && v.pages == k.pages && v.page_byte_offset == k.page_byte_offset &&
           v.page_stride == k.page_stride && v.token_stride == k.token_stride && v.head_stride == k.head_stride;
}

// The order of tokens and heads inside a page: nhd [token][head][width], hnd [head][token][width].
enum class page_order : std::uint8_t { nhd, hnd };

namespace detail {
// `count` elements behind `base`; null stays null, so that it is found.
template <class T>
CTXPAR_HD constexpr T* behind(T* base, std::int64_t count) {
    return base == nullptr ? nullptr : base + count;
}

// A dense plane whose pages start `page_stride` elements apart.
template <class T>
CTXPAR_HD constexpr kv_plane<T> dense_plane(T* base, page_order order, std::int64_t page_stride, std::int64_t page_size,
                                            std::int64_t kv_heads, std::int64_t width) {
    const bool by_token = order == page_order::nhd;
    return {base, nullptr, 0, page_stride, by_token ? kv_heads * width : width, by_token ? width : page_size * width};
}

template <class T>
CTXPAR_HD constexpr kv_view<T> two_pools(T* k, T* v, page_order order, std::int64_t pages, std::int64_t page_size,
                                         std::int64_t kv_heads, std::int64_t key_width, std::int64_t value_width) {
    const std::int64_t rows = page_size * kv_heads;
    return {dense_plane(k, order, rows * key_width, page_size, kv_heads, key_width),
            dense_plane(v, order, rows * value_width, page_size, kv_heads, value_width),
            pages,
            page_size,
            kv_heads,
            key_width,
            value_width,
            {},
            {}};
}
} // namespace detail

// The usual layouts, dense. For pools with gaps assign the strides afterwards; for quantised ones the scales.

// Two pools of pages [page][token][head][width].
template <class T>
CTXPAR_HD constexpr kv_view<T> nhd_kv(T* k, T* v, std::int64_t pages, std::int64_t page_size, std::int64_t kv_heads,
                                      std::int64_t key_width, std::int64_t value_width) {
    return detail::two_pools(k, v, page_order::nhd, pages, page_size, kv_heads, key_width, value_width);
}

// Two pools of pages [page][head][token][width].
template <class T>
CTXPAR_HD constexpr kv_view<T> hnd_kv(T* k, T* v, std::int64_t pages, std::int64_t page_size, std::int64_t kv_heads,
                                      std::int64_t key_width, std::int64_t value_width) {
    return detail::two_pools(k, v, page_order::hnd, pages, page_size, kv_heads, key_width, value_width);
}

// One pool whose pages hold the page's keys and then its values: [page][2][token][head][width], or with hnd
// [page][2][head][token][width].
template <class T>
CTXPAR_HD constexpr kv_view<T> joint_kv(T* pool, std::int64_t pages, std::int64_t page_size, std::int64_t kv_heads,
                                        std::int64_t key_width, std::int64_t value_width,
                                        page_order order = page_order::nhd) {
    const std::int64_t key_elements = page_size * kv_heads * key_width;
    auto view = detail::two_pools(pool, detail::behind(pool, key_elements), order, pages, page_size, kv_heads,
                                  key_width, value_width);
    view.k.page_stride = view.v.page_stride = key_elements + page_size * kv_heads * value_width;
    return view;
}

// One pool with all key pages before all value pages: [2][page][token][head][width], or with hnd
// [2][page][head][token][width].
template <class T>
CTXPAR_HD constexpr kv_view<T> stacked_kv(T* pool, std::int64_t pages, std::int64_t page_size, std::int64_t kv_heads,
                                          std::int64_t key_width, std::int64_t value_width,
                                          page_order order = page_order::nhd) {
    T* const values = detail::behind(pool, pages * page_size * kv_heads * key_width);
    return detail::two_pools(pool, values, order, pages, page_size, kv_heads, key_width, value_width);
}

// An array of `pages` page pointers, shared by the layers of a model. A layer's keys lie layer_byte_offset +
// k_byte_offset bytes behind a page's start, its values layer_byte_offset + v_byte_offset. Where keys and values have
// arrays of their own, assign v.pages.
template <class T>
CTXPAR_HD constexpr kv_view<T>
paged_pointers_kv(void* const* page_pointers, std::int64_t pages, std::int64_t layer_byte_offset,
                  std::int64_t k_byte_offset, std::int64_t v_byte_offset, std::int64_t page_size, std::int64_t kv_heads,
                  std::int64_t key_width, std::int64_t value_width, page_order order = page_order::nhd) {
    T* const none = nullptr;
    auto view = detail::two_pools(none, none, order, pages, page_size, kv_heads, key_width, value_width);
    view.k.pages = view.v.pages = page_pointers;
    view.k.page_stride = view.v.page_stride = 0;
    view.k.page_byte_offset = layer_byte_offset + k_byte_offset;
    view.v.page_byte_offset = layer_byte_offset + v_byte_offset;
    return view;
}

// Contiguous KV [request][token][head][width] with room for `capacity` tokens a request: one page a request, to be used
// with identity_table(requests, capacity).
template <class T>
CTXPAR_HD constexpr kv_view<T> contiguous_kv(T* k, T* v, std::int64_t requests, std::int64_t capacity,
                                             std::int64_t kv_heads, std::int64_t key_width, std::int64_t value_width) {
    return nhd_kv(k, v, requests, capacity, kv_heads, key_width, value_width);
}

// MLA: rows of latent + rope elements, one KV head. A key is the whole row, its value the first `latent` elements of
// the same row.
template <class T>
CTXPAR_HD constexpr kv_view<T> latent_kv(T* pool, std::int64_t pages, std::int64_t page_size, std::int64_t latent,
                                         std::int64_t rope) {
    auto view = nhd_kv(pool, pool, pages, page_size, 1, latent + rope, latent);
    view.v = view.k;
    return view;
}

// Rows as KV travels between ranks: the keys of all heads, then their values, then, for a cache with a scale a token,
// the fp32 scales of the keys and of the values. MLA rows have no values beside their keys.
struct packed_row {
    std::int64_t kv_heads = 1;
    std::int64_t key_width = 0;
    std::int64_t value_width = 0;
    bool values_in_keys = false;
    bool token_scales = false;

    CTXPAR_HD constexpr std::int64_t elements() const {
        return kv_heads * (key_width + (values_in_keys ? 0 : value_width));
    }
    // Bytes before the scales of a row of elements of some size, and of the whole row: a multiple of 16.
    CTXPAR_HD constexpr std::int64_t scale_offset(std::int64_t element_bytes) const {
        return (elements() * element_bytes + 3) / 4 * 4;
    }
    CTXPAR_HD constexpr std::int64_t bytes(std::int64_t element_bytes) const {
        const std::int64_t scales = token_scales ? kv_heads * (values_in_keys ? 1 : 2) * 4 : 0;
        return (scale_offset(element_bytes) + scales + 15) / 16 * 16;
    }
};

// `pages` pages of such rows at `base`, which is aligned to 16 bytes. Scales that do not travel are assigned
// afterwards.
template <class T>
kv_view<T> packed_kv(T* base, const packed_row& row, std::int64_t pages, std::int64_t page_size) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t pitch = row.bytes(size) / size;
    kv_view<T> view;
    view.k = {base, nullptr, 0, page_size * pitch, pitch, row.key_width};
    view.v = view.k;
    if (!row.values_in_keys) {
        view.v.base = detail::behind(base, row.kv_heads * row.key_width);
        view.v.head_stride = row.value_width;
    }
    view.pages = pages;
    view.page_size = page_size;
    view.kv_heads = row.kv_heads;
    view.key_width = row.key_width;
    view.value_width = row.value_width;
    if (row.token_scales) {
        float* const scales = reinterpret_cast<float*>(detail::behind(base, row.scale_offset(size) / size));
        const std::int64_t step = row.bytes(size) / 4;
        view.k_scale = per_token(scales, page_size * step, step, 1);
        view.v_scale = row.values_in_keys ? view.k_scale
                                          : per_token(detail::behind(scales, row.kv_heads), page_size * step, step, 1);
    }
    return view;
}

namespace detail {

// One dimension of a plane.
struct kv_extent {
    std::int64_t count = 0;
    std::int64_t stride = 0;
};

// Whether rows of `width` elements, counted over three dimensions in any order of nesting, are disjoint and their
// offsets fit 63 bits. Dimensions must nest: a stride spans all of the dimensions with smaller strides.
inline bool rows_are_disjoint(std::array<kv_extent, 3> dims, std::int64_t width) {
    std::sort(dims.begin(), dims.end(), [](const kv_extent& a, const kv_extent& b) { return a.stride < b.stride; });
    std::int64_t covered = width; // elements from the first to the last of the dimensions so far
    for (const kv_extent& dim : dims) {
        if (dim.count <= 1) continue;
        if (dim.stride < covered) return false;
        if (dim.count - 1 > (std::numeric_limits<std::int64_t>::max() - covered) / dim.stride) return false;
        covered += (dim.count - 1) * dim.stride;
    }
    return true;
}

template <class T>
void check_kv_plane(const kv_plane<T>& plane, const kv_view<T>& view, std::int64_t width, const char* name) {
    if (view.pages == 0) return;
    require(plane.base != nullptr || plane.pages != nullptr, "null", "the ", name,
            " of a KV view have neither a base pointer nor page pointers");
    const std::int64_t counted_pages = plane.pages == nullptr ? view.pages : 1;
    const bool disjoint = rows_are_disjoint({{{counted_pages, plane.page_stride},
                                              {view.page_size, plane.token_stride},
                                              {view.kv_heads, plane.head_stride}}},
                                            width);
    require(disjoint, "stride", "the ", name, " of a KV view have strides of ", plane.page_stride, " (page), ",
            plane.token_stride, " (token) and ", plane.head_stride, " (head) elements for ", view.pages, " pages of ",
            view.page_size, " tokens and ", view.kv_heads, " heads of ", width,
            " elements; rows must not overlap, so every stride must span at least ", width,
            " elements and all dimensions with smaller strides, within 63 bits");
    const auto size = static_cast<std::int64_t>(sizeof(T));
    require(plane.pages == nullptr || (plane.page_byte_offset >= 0 && plane.page_byte_offset % size == 0), "stride",
            "the ", name, " of a KV view lie ", plane.page_byte_offset,
            " bytes behind their page pointers; that must be a multiple of ", size, " bytes and at least 0");
}

inline void check_kv_scale(const kv_scale& scale, const char* name) {
    require(scale.data != nullptr || scale.kind == scale_kind::tensor, "null", "the scales of the ", name,
            " of a KV view are per head or per token and have a null pointer");
}

} // namespace detail

// Refuses a view that is null ("null"), has sizes that are not positive ("size"), or whose rows overlap or pass 63 bits
// ("stride"). A view of 0 pages is legal and its pointers are not looked at. Called once, before the first use.
template <class T>
void check_kv_view(const kv_view<T>& view) {
    require(view.pages >= 0, "size", "a KV view has ", view.pages, " pages; it must have at least 0");
    const std::int64_t smallest = std::min({view.page_size, view.kv_heads, view.key_width, view.value_width});
    require(smallest >= 1, "size", "a KV view has pages of ", view.page_size, " tokens, ", view.kv_heads,
            " KV heads, keys of ", view.key_width, " and values of ", view.value_width,
            " elements; all must be at least 1");
    require(view.pages <= std::numeric_limits<std::int64_t>::max() / view.page_size, "size", "a KV view has ",
            view.pages, " pages of ", view.page_size, " tokens; its slots do not fit 63 bits");
    detail::check_kv_plane(view.k, view, view.key_width, "keys");
    detail::check_kv_plane(view.v, view, view.value_width, "values");
    detail::check_kv_scale(view.k_scale, "keys");
    detail::check_kv_scale(view.v_scale, "values");
}

} // namespace ctxpar::inline v0_1
