// The KV cache on a device: new rows are written, cached rows are copied. A warp takes a row.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/pieces.cuh>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cuda {

// The larger magnitude; NaN beats every number.
CTXPAR_DEVICE float larger_magnitude(float a, float b) {
    const float other = b < 0.0F ? -b : b;
    return other > a || other != other ? other : a;
}

// The largest magnitude of a vector; every lane of the warp gets it.
template <class E>
CTXPAR_DEVICE float largest_of(const E* vector, std::int64_t width, float so_far) {
    for (std::int64_t d = lane_index(); d < width; d += warp_size)
        so_far = larger_magnitude(so_far, widened(vector[d]));
    for (unsigned step = warp_size / 2; step > 0; step /= 2)
        so_far = larger_magnitude(so_far, from_lane_xor(so_far, step));
    return so_far;
}

template <class E, class Kv>
CTXPAR_DEVICE void store_vector(const E* from, std::int64_t width, float scale, Kv* to) {
    if constexpr (std::is_same_v<E, Kv>) {
        if (scale == 1.0F) return copy_vector(from, width, to);
    }
    each_piece_of<sizeof(E)>(width, address_bits(from, to), [&](auto size, std::int64_t d) {
        auto piece = read_piece<decltype(size)::value>(from + d);
        for (float& x : piece.at) x = x / scale;
        write_piece(to + d, piece);
    });
}

// One row, all heads, into one plane; `second`, of which second_width elements are taken, follows `first` in the same
// cached row. Loops are not unrolled: the code for a vector is long. What differs between planes comes by value: a
// reference to one of two kernel arguments would put both into local memory.
template <class E, class Kv>
CTXPAR_DEVICE void append_plane(head_view<const E> first, const head_view<const E>& second, std::int64_t second_width,
                                std::int64_t row, const kv_view<Kv>& cache, kv_plane<Kv> plane, kv_scale scale,
                                std::int64_t slot) {
    const std::int64_t page = cache.page_of(slot);
    const std::int64_t token = cache.token_of(slot);
    const bool own_scale = scale.kind == scale_kind::token && scale.data != nullptr;
    const bool shared = scale.head_stride == 0;
    const int parts = second_width > 0 ? 2 : 1;
    const auto vector = [&](std::int64_t head, int part) {
        return part == 0 ? first.at(row, head) : second.at(row, head);
    };
    const auto width = [&](int part) { return part == 0 ? first.width : second_width; };
    float factor = 1.0F;
    for (std::int64_t head = 0; head < cache.kv_heads; ++head) {
        if (!own_scale) {
            factor = scale.at(page, token, head);
        } else if (head == 0 || !shared) {
            float largest = 0.0F;
            for (std::int64_t h = head; h < (shared ? cache.kv_heads : head + 1); ++h) {
                CTXPAR_ROLLED
                for (int part = 0; part < parts; ++part) largest = largest_of(vector(h, part), width(part), largest);
            }
            factor = fitting_scale<Kv>(largest);
            if (lane_index() == 0) scale.data[scale.offset(page, token, head)] = factor;
        }
        Kv* to = plane.at(page, token, head);
        CTXPAR_ROLLED
        for (int part = 0; part < parts; ++part) {
            store_vector(vector(head, part), width(part), factor, to);
            to += width(part);
        }
    }
}

template <class E, class Kv>
CTXPAR_KERNEL void append_kernel(append_args<E, Kv> args) {
    const std::int64_t warps = block_threads() / warp_size;
    for (std::int64_t row = block_x() * warps + thread_index() / warp_size; row < args.k.rows;
         row += grid_x() * warps) {
        const std::int64_t slot = args.slots.at(row);
        if (slot < 0) continue;
        CTXPAR_ROLLED
        for (int plane = 0; plane < (args.values_in_keys ? 1 : 2); ++plane) {
            const bool values = plane == 1;
            append_plane(values ? args.v : args.k, args.v, args.values_in_keys ? args.v.width : 0, row, args.cache,
                         values ? args.cache.v : args.cache.k, values ? args.cache.v_scale : args.cache.k_scale, slot);
        }
    }
}

// One plane of one cached row.
template <class From, class To>
CTXPAR_DEVICE void copy_plane(const kv_view<const From>& from, const kv_plane<const From>& from_plane,
                              const kv_scale& from_scale, std::int64_t slot, const kv_view<To>& to,
                              const kv_plane<To>& to_plane, const kv_scale& to_scale, std::int64_t row,
                              std::int64_t width, bool dequantise) {
    const bool kept = to_scale.kind == scale_kind::token && to_scale.data != nullptr && !(dequantise && slot >= 0);
    const std::int64_t page = to.page_of(row);
    const std::int64_t token = to.token_of(row);
    for (std::int64_t head = 0; head < to.kv_heads; ++head) {
        To* const target = to_plane.at(page, token, head);
        float scale = 0.0F;
        if (slot < 0) {
            for (std::int64_t d = lane_index(); d < width; d += warp_size) target[d] = To{};
        } else {
            const From* const source = from_plane.at(from.page_of(slot), from.token_of(slot), head);
            scale = from_scale.at(from.page_of(slot), from.token_of(slot), head);
            if constexpr (std::is_same_v<From, To>) {
                if (!dequantise) copy_vector(source, width, target);
            }
            if (dequantise || !std::is_same_v<From, To>) {
                each_piece_of<sizeof(From)>(width, address_bits(source, target), [&](auto size, std::int64_t d) {
                    auto piece = read_piece<decltype(size)::value>(source + d);
                    for (float& x : piece.at) x = x * scale;
                    write_piece(target + d, piece);
                });
            }
        }
        if (kept && lane_index() == 0) to_scale.data[to_scale.offset(page, token, head)] = scale;
    }
}

template <class From, class To>
CTXPAR_KERNEL void copy_kv_kernel(copy_kv_args<From, To> args) {
    const std::int64_t warps = block_threads() / warp_size;
    for (std::int64_t row = block_x() * warps + thread_index() / warp_size; row < args.rows; row += grid_x() * warps) {
        const std::int64_t slot = args.slots.data == nullptr ? row : args.slots.at(row);
        const std::int64_t place = args.to_slots.data == nullptr ? row : args.to_slots.at(row);
        if (place < 0) continue;
        copy_plane(args.from, args.from.k, args.from.k_scale, slot, args.to, args.to.k, args.to.k_scale, place,
                   args.to.key_width, args.dequantise);
        if (!args.values_in_keys)
            copy_plane(args.from, args.from.v, args.from.v_scale, slot, args.to, args.to.v, args.to.v_scale, place,
                       args.to.value_width, args.dequantise);
    }
}

} // namespace ctxpar::inline v0_1::cuda
