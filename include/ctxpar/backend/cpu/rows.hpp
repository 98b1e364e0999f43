// Moving rows on the CPU: of activations by index, and of the KV cache by slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>

namespace ctxpar::inline v0_1::cpu {

template <class T>
void copy_vectors(const head_view<const T>& from, std::int64_t from_row, const head_view<T>& to, std::int64_t to_row) {
    for (std::int64_t head = 0; head < to.heads; ++head)
        std::copy_n(from.at(from_row, head), to.width, to.at(to_row, head));
}

template <class T>
void clear_row(const head_view<T>& to, std::int64_t row) {
    for (std::int64_t head = 0; head < to.heads; ++head) std::fill_n(to.at(row, head), to.width, T{});
}

// One cached vector: its bits, or what it stands for.
template <class From, class To>
void copy_stored(const From* from, bool dequantise, float scale, std::int64_t width, To* to) {
    if constexpr (std::is_same_v<From, To>) {
        if (!dequantise) {
            std::copy_n(from, width, to);
            return;
        }
    }
    for (std::int64_t d = 0; d < width; ++d) to[d] = static_cast<To>(static_cast<float>(from[d]) * scale);
}

// Where a plane's own scales of each token are, if its cache has such.
inline float* scale_place(const kv_scale& scale, std::int64_t page, std::int64_t token, std::int64_t head) {
    const bool own = scale.kind == scale_kind::token && scale.data != nullptr;
    return own ? scale.data + scale.offset(page, token, head) : nullptr;
}

// A plane of a cache, at one of its rows.
template <class T>
struct plane_row {
    const kv_plane<T>& plane;
    const kv_scale& scale;
    std::int64_t page;
    std::int64_t token;

    T* at(std::int64_t head) const { return plane.at(page, token, head); }
    float factor(std::int64_t head) const { return scale.at(page, token, head); }
    float* kept_factor(std::int64_t head) const { return scale_place(scale, page, token, head); }
};

template <class From, class To>
void copy_plane(const plane_row<const From>& from, const plane_row<To>& to, bool dequantise, std::int64_t heads,
                std::int64_t width) {
    // Heads that lie one behind another on both sides are one long vector.
    const bool together =
        std::is_same_v<From, To> && !dequantise && from.plane.head_stride == width && to.plane.head_stride == width;
    if (together) copy_stored(from.at(0), false, 1.0F, heads * width, to.at(0));
    for (std::int64_t head = 0; head < heads; ++head) {
        if (!together) copy_stored(from.at(head), dequantise, from.factor(head), width, to.at(head));
        float* const kept = to.kept_factor(head);
        if (!dequantise && kept != nullptr) *kept = from.factor(head);
    }
}

template <class To>
void clear_plane(const plane_row<To>& to, std::int64_t heads, std::int64_t width) {
    for (std::int64_t head = 0; head < heads; ++head) {
        std::fill_n(to.at(head), width, To{});
        if (float* const kept = to.kept_factor(head)) *kept = 0.0F;
    }
}

template <class From, class To>
void copy_kv_row(const copy_kv_args<From, To>& args, std::int64_t row) {
    const kv_view<const From>& from = args.from;
    const kv_view<To>& to = args.to;
    const std::int64_t slot = args.slots.data == nullptr ? row : args.slots.at(row);
    const std::int64_t place = args.to_slots.data == nullptr ? row : args.to_slots.at(row);
    if (place < 0) return;
    const plane_row<To> keys{to.k, to.k_scale, to.page_of(place), to.token_of(place)};
    const plane_row<To> values{to.v, to.v_scale, to.page_of(place), to.token_of(place)};
    if (slot < 0) {
        clear_plane(keys, to.kv_heads, to.key_width);
        if (!args.values_in_keys) clear_plane(values, to.kv_heads, to.value_width);
        return;
    }
    const plane_row<const From> stored_keys{from.k, from.k_scale, from.page_of(slot), from.token_of(slot)};
    copy_plane(stored_keys, keys, args.dequantise, to.kv_heads, to.key_width);
    if (args.values_in_keys) return;
    const plane_row<const From> stored_values{from.v, from.v_scale, from.page_of(slot), from.token_of(slot)};
    copy_plane(stored_values, values, args.dequantise, to.kv_heads, to.value_width);
}

} // namespace ctxpar::inline v0_1::cpu
