// Writing new K and V rows into their slots on the CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cpu {

// The largest finite number of a storage type.
template <class T>
constexpr float largest_number() {
    if constexpr (std::is_same_v<T, float>) {
        return std::numeric_limits<float>::max();
    } else {
        return static_cast<float>(T::from_bits(T::largest_bits));
    }
}

// The scale for a row whose cache has one a token: its largest magnitude becomes the type's largest number. Rows of
// zeros, and rows that are not finite, are stored unscaled.
template <class Kv>
float scale_for(float largest) {
    if (!(largest > 0.0F) || !(largest <= std::numeric_limits<float>::max())) return 1.0F;
    const float scale = largest / largest_number<Kv>();
    return scale > 0.0F ? scale : 1.0F;
}

template <class E>
float largest_magnitude(const E* row, std::int64_t width, float so_far) {
    for (std::int64_t d = 0; d < width; ++d) {
        const float magnitude = std::fabs(static_cast<float>(row[d]));
        if (magnitude > so_far || magnitude != magnitude) so_far = magnitude;
    }
    return so_far;
}

template <class E, class Kv>
void store_row(const E* from, std::int64_t width, float scale, Kv* to) {
    if constexpr (std::is_same_v<E, Kv>) {
        if (scale == 1.0F) {
            std::copy_n(from, width, to);
            return;
        }
    }
    for (std::int64_t d = 0; d < width; ++d) to[d] = static_cast<Kv>(static_cast<float>(from[d]) / scale);
}

// One head of one row into one plane; `second` (may be null) follows `first` in the same cached row.
template <class E, class Kv>
void append_vector(const E* first, std::int64_t first_width, const E* second, std::int64_t second_width,
                   const kv_plane<Kv>& plane, const kv_scale& scale, std::int64_t page, std::int64_t token,
                   std::int64_t head) {
    float factor = 0.0F;
    if (scale.kind == scale_kind::token && scale.data != nullptr) {
        float largest = largest_magnitude(first, first_width, 0.0F);
        if (second != nullptr) largest = largest_magnitude(second, second_width, largest);
        factor = scale_for<Kv>(largest);
        scale.data[scale.offset(page, token, head)] = factor;
    } else {
        factor = scale.at(page, token, head);
    }
    Kv* to = plane.at(page, token, head);
    store_row(first, first_width, factor, to);
    if (second != nullptr) store_row(second, second_width, factor, to + first_width);
}

template <class E, class Kv>
void append_row(const append_args<E, Kv>& args, std::int64_t row) {
    const std::int64_t slot = args.slots.at(row);
    if (slot < 0) return;
    const std::int64_t page = args.cache.page_of(slot);
    const std::int64_t token = args.cache.token_of(slot);
    for (std::int64_t head = 0; head < args.cache.kv_heads; ++head) {
        const E* k = args.k.at(row, head);
        const E* v = args.v.at(row, head);
        if (args.values_in_keys) {
            append_vector(k, args.k.width, v, args.v.width, args.cache.k, args.cache.k_scale, page, token, head);
        } else {
            const E* none = nullptr;
            append_vector(k, args.k.width, none, 0, args.cache.k, args.cache.k_scale, page, token, head);
            append_vector(v, args.v.width, none, 0, args.cache.v, args.cache.v_scale, page, token, head);
        }
    }
}

} // namespace ctxpar::inline v0_1::cpu
