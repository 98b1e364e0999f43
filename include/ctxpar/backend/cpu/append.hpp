// Writing new K and V rows into their slots on the CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cpu {

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

// One row, all heads, into one plane; `second` (may be null) follows `first` in the same cached row. A token scale that
// heads share fits the largest magnitude of all of them.
template <class E, class Kv>
void append_vectors(const head_view<const E>& first, const head_view<const E>* second, std::int64_t row,
                    std::int64_t heads, const kv_plane<Kv>& plane, const kv_scale& scale, std::int64_t page,
                    std::int64_t token) {
    for (std::int64_t head = 0; head < heads; ++head) {
        const bool shared = scale.head_stride == 0;
        if (scale.kind == scale_kind::token && scale.data != nullptr && (head == 0 || !shared)) {
            float largest = 0.0F;
            for (std::int64_t h = head; h < (shared ? heads : head + 1); ++h) {
                largest = largest_magnitude(first.at(row, h), first.width, largest);
                if (second != nullptr) largest = largest_magnitude(second->at(row, h), second->width, largest);
            }
            scale.data[scale.offset(page, token, head)] = fitting_scale<Kv>(largest);
        }
        const float factor = scale.at(page, token, head);
        Kv* to = plane.at(page, token, head);
        store_row(first.at(row, head), first.width, factor, to);
        if (second != nullptr) store_row(second->at(row, head), second->width, factor, to + first.width);
    }
}

template <class E, class Kv>
void append_row(const append_args<E, Kv>& args, std::int64_t row) {
    const std::int64_t slot = args.slots.at(row);
    if (slot < 0) return;
    const std::int64_t page = args.cache.page_of(slot);
    const std::int64_t token = args.cache.token_of(slot);
    const kv_view<Kv>& cache = args.cache;
    if (args.values_in_keys) {
        append_vectors(args.k, &args.v, row, cache.kv_heads, cache.k, cache.k_scale, page, token);
    } else {
        const head_view<const E>* none = nullptr;
        append_vectors(args.k, none, row, cache.kv_heads, cache.k, cache.k_scale, page, token);
        append_vectors(args.v, none, row, cache.kv_heads, cache.v, cache.v_scale, page, token);
    }
}

} // namespace ctxpar::inline v0_1::cpu
