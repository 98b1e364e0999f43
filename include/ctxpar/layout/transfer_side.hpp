// What the two sides of a KV transfer tell each other: where the rows of a deployment's caches lie, as plain numbers.
//
// A prefill deployment fills caches that a decode deployment goes on with. Every rank describes itself by a
// transfer_rank: its part of the tokens, of the KV heads and of the layers, the strides of its pools in bytes, and
// where they begin inside the memory regions that it has registered with the transport. No description holds a pointer
// into a cache: a place is a region's number and a byte offset, which mean the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace ctxpar::inline v0_1 {

// Memory of one rank that its transport knows.
struct memory_region {
    std::uint64_t base = 0; // address on its own machine; used by address_of() and by copies only
    std::int64_t bytes = 0;

    friend constexpr bool operator==(const memory_region&, const memory_region&) = default;
};

struct memory_place {
    std::int64_t region = 0; // among the rank's regions
    std::int64_t offset = 0; // bytes from its start

    friend constexpr bool operator==(const memory_place&, const memory_place&) = default;
};

// The address of a place on its own machine. Unchecked.
constexpr std::uint64_t address_of(std::span<const memory_region> regions, const memory_place& place) {
    return regions[static_cast<std::size_t>(place.region)].base + static_cast<std::uint64_t>(place.offset);
}

// The arrays of rows that a cache is made of. Scales are those of a cache with one a token; others do not travel.
enum class kv_part : std::uint8_t { keys, values, key_scales, value_scales };
inline constexpr std::size_t num_kv_parts = 4;

// One of them, in bytes. Row (page, token, head) lies page * page_stride + token * token_stride + head * head_stride
// behind the first, or without the first term behind the start of its page.
struct transfer_plane {
    std::int64_t row_bytes = 0;    // of one token and head, contiguous; 0: the cache has no such part
    std::int64_t page_stride = 0;  // unused where pages have places of their own
    std::int64_t token_stride = 0; // inside a page
    std::int64_t head_stride = 0;  // 0 with several heads: one scale a token for all heads of the rank

    friend constexpr bool operator==(const transfer_plane&, const transfer_plane&) = default;
};

// How one rank's cache lies in memory, the same for each of its layers.
struct transfer_geometry {
    scalar_type element = scalar_type::bytes;
    bool values_in_keys = false; // MLA: one row a token, which is sent once
    std::int64_t key_width = 0;  // elements of one head
    std::int64_t value_width = 0;
    std::int64_t pages = 0;
    std::int64_t page_size = 1; // tokens
    scale_kind key_scale = scale_kind::tensor;
    scale_kind value_scale = scale_kind::tensor;
    float key_factor = 1.0F; // the factor of the whole tensor; NaN where factors lie in memory
    float value_factor = 1.0F;
    std::array<transfer_plane, num_kv_parts> planes; // by kv_part

    constexpr const transfer_plane& plane(kv_part part) const { return planes[static_cast<std::size_t>(part)]; }
};

// Where the planes of one layer begin: row (0, 0, 0), or with places of pages the bytes from a page's start (the region
// is then the page's). By kv_part; planes that the cache does not have are not looked at.
struct transfer_layer {
    std::array<memory_place, num_kv_parts> planes;

    constexpr const memory_place& plane(kv_part part) const { return planes[static_cast<std::size_t>(part)]; }
};

// One rank of a deployment. It refers to arrays of plain numbers, which must outlive it; a message to the other side is
// its own numbers and those arrays.
struct transfer_rank {
    shard part;                   // which of the N ranks that share the KV, and their interleave
    std::int64_t block_size = 1;  // B, tokens
    head_range heads;             // KV heads of the model that it holds, head heads.first first
    std::int64_t first_layer = 0; // layers of the model that it holds: from here on, layers.size() of them
    transfer_geometry geometry;
    std::span<const transfer_layer> layers;
    std::span<const memory_place> key_pages;   // [pages] start of each page; empty: pages are page_stride apart
    std::span<const memory_place> value_pages; // the same for values; empty: those of the keys
    std::span<const memory_region> regions;

    constexpr bool holds_layer(std::int64_t layer) const {
        return layer >= first_layer && layer - first_layer < static_cast<std::int64_t>(layers.size());
    }
    constexpr bool holds_head(std::int64_t head) const { return head >= heads.first && head < heads.last; }
    constexpr const transfer_layer& layer(std::int64_t number) const {
        return layers[static_cast<std::size_t>(number - first_layer)];
    }
    // The places of a part's pages, empty where they are a stride apart.
    constexpr std::span<const memory_place> pages_of(kv_part which) const {
        if (which == kv_part::keys || (which == kv_part::values && value_pages.empty())) return key_pages;
        return which == kv_part::values ? value_pages : std::span<const memory_place>{};
    }
};

// The ranks that hold a request in one deployment: those of every shard, of all KV heads and layers. Several may hold
// the same (heads that are replicated).
struct transfer_side {
    ownership law;
    std::int64_t block_size = 1; // B, tokens
    std::span<const transfer_rank> ranks;
};

static_assert(std::is_trivially_copyable_v<memory_region> && std::is_trivially_copyable_v<memory_place> &&
              std::is_trivially_copyable_v<transfer_geometry> && std::is_trivially_copyable_v<transfer_layer> &&
              std::is_trivially_copyable_v<transfer_rank> && std::is_trivially_copyable_v<transfer_side>);

namespace detail {

inline memory_place place_in(std::span<const memory_region> regions, const void* at, const char* what) {
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(at);
    for (std::size_t i = 0; i < regions.size(); ++i) {
        const memory_region& region = regions[i];
        if (address >= region.base && address - region.base < static_cast<std::uint64_t>(region.bytes))
            return {static_cast<std::int64_t>(i), static_cast<std::int64_t>(address - region.base)};
    }
    refuse("region", {"the ", what, " of a cache begin at address ", address, ", which lies in none of the ",
                      regions.size(), " memory regions of its rank"});
}

constexpr transfer_plane scale_plane(const kv_scale& scale) {
    if (scale.kind != scale_kind::token) return {};
    return {4, 4 * scale.page_stride, 4 * scale.token_stride, 4 * scale.head_stride};
}

constexpr float known_factor(const kv_scale& scale) {
    return scale.data == nullptr && scale.kind == scale_kind::tensor ? scale.uniform : float_nan;
}

} // namespace detail

// The geometry of a layer's cache. Throws config_error as check_kv_view.
template <element_type T>
transfer_geometry transfer_geometry_of(const kv_view<T>& cache) {
    check_kv_view(cache);
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    const auto plane = [](const kv_plane<T>& of, std::int64_t width) {
        return transfer_plane{width * size, of.page_stride * size, of.token_stride * size, of.head_stride * size};
    };
    transfer_geometry geometry;
    geometry.element = scalar_type_of<T>;
    geometry.values_in_keys = values_in_keys(cache);
    geometry.key_width = cache.key_width;
    geometry.value_width = cache.value_width;
    geometry.pages = cache.pages;
    geometry.page_size = cache.page_size;
    geometry.key_scale = cache.k_scale.kind;
    geometry.key_factor = detail::known_factor(cache.k_scale);
    geometry.planes[0] = plane(cache.k, cache.key_width);
    geometry.planes[2] = detail::scale_plane(cache.k_scale);
    if (geometry.values_in_keys) { // read with the scales of their keys
        geometry.value_scale = geometry.key_scale;
        geometry.value_factor = geometry.key_factor;
        return geometry;
    }
    geometry.value_scale = cache.v_scale.kind;
    geometry.value_factor = detail::known_factor(cache.v_scale);
    geometry.planes[1] = plane(cache.v, cache.value_width);
    geometry.planes[3] = detail::scale_plane(cache.v_scale);
    return geometry;
}

// Where that layer's planes begin. config_error "region" where one lies in no region.
template <element_type T>
transfer_layer transfer_layer_of(const kv_view<T>& cache, std::span<const memory_region> regions) {
    const auto begin = [&](const kv_plane<T>& plane, const char* what) {
        if (plane.pages != nullptr) return memory_place{0, plane.page_byte_offset};
        return detail::place_in(regions, plane.base, what);
    };
    const bool apart = !values_in_keys(cache);
    transfer_layer layer;
    layer.planes[0] = begin(cache.k, "keys");
    if (apart) layer.planes[1] = begin(cache.v, "values");
    if (cache.k_scale.kind == scale_kind::token)
        layer.planes[2] = detail::place_in(regions, cache.k_scale.data, "scales of the keys");
    if (apart && cache.v_scale.kind == scale_kind::token)
        layer.planes[3] = detail::place_in(regions, cache.v_scale.data, "scales of the values");
    return layer;
}

// Where the pages of an array of page pointers begin; the array is read on the host. config_error "region".
inline std::vector<memory_place> transfer_pages_of(std::span<void* const> page_pointers,
                                                   std::span<const memory_region> regions) {
    std::vector<memory_place> places;
    places.reserve(page_pointers.size());
    for (void* const page : page_pointers) places.push_back(detail::place_in(regions, page, "pages"));
    return places;
}

} // namespace ctxpar::inline v0_1
