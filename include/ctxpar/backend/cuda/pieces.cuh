// Vectors of a warp, read and written in pieces as wide as their addresses allow: 16 bytes of the smallest
// elements, else 4, else one element. What is done to an element does not depend on the piece.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cuda {

// The bits of addresses, put together by |.
template <class... T>
CTXPAR_DEVICE std::uintptr_t address_bits(const T*... places) {
    return (reinterpret_cast<std::uintptr_t>(places) | ... | std::uintptr_t{0});
}

// Calls use(V as a type, d) for the pieces [d, d + V) of this lane of vectors of `width` elements, the sizes of which
// in bytes are Size and OtherSize; `bits` are those of all addresses at which vectors begin. The smallest elements
// decide: a wide piece is 16 bytes of them, and several times that of others.
template <int Size, int OtherSize = Size, class Use>
CTXPAR_DEVICE void each_piece_of(std::int64_t width, std::uintptr_t bits, const Use& use) {
    constexpr int size = Size < OtherSize ? Size : OtherSize;
    constexpr int wide = 16 / size;
    if (bits % 16 == 0 && width % wide == 0) {
        for (std::int64_t d = std::int64_t{lane_index()} * wide; d < width; d += warp_size * wide)
            use(std::integral_constant<int, wide>{}, d);
        return;
    }
    if constexpr (size == 2) {
        if (bits % 4 == 0 && width % 2 == 0) {
            for (std::int64_t d = std::int64_t{lane_index()} * 2; d < width; d += warp_size * 2)
                use(std::integral_constant<int, 2>{}, d);
            return;
        }
    }
    for (std::int64_t d = lane_index(); d < width; d += warp_size) use(std::integral_constant<int, 1>{}, d);
}

// One number in fp32, and rounded to T, by the machine's own conversions where it has them: they are much shorter than
// those in plain C++. A NaN stays one, its other bits may change.
template <class T>
CTXPAR_DEVICE float widened(T number) {
    if constexpr (sizeof(T) == 2) {
        return unpack_pair<T>(number.bits).low;
    } else if constexpr (sizeof(T) == 1) {
        return unpack_pair<f16>(widen_pair<f16, T>(number.bits)).low;
    } else {
        return number;
    }
}
template <class T>
CTXPAR_DEVICE T rounded_to(float number) {
    if constexpr (sizeof(T) == 2) {
        return T::from_bits(static_cast<std::uint16_t>(pack_pair<T>(number, 0.0F) & 0xffffU));
    } else {
        return static_cast<T>(number);
    }
}

// V elements as fp32 numbers.
template <int V>
struct piece_of_floats {
    float at[V];
};

// Element i of what lies in a chunk.
template <class T>
CTXPAR_DEVICE float element_of(const chunk16& chunk, int i) {
    if constexpr (sizeof(T) == 4) {
        return bits_as<float>(chunk.words[i]);
    } else if constexpr (sizeof(T) == 2) {
        const float_pair pair = unpack_pair<T>(chunk.words[i / 2]);
        return i % 2 == 0 ? pair.low : pair.high;
    } else {
        const float_pair pair = unpack_pair<f16>(widen_pair<f16, T>(chunk.words[i / 4] >> (i % 4 / 2 * 16) & 0xffffU));
        return i % 2 == 0 ? pair.low : pair.high;
    }
}

template <int V, class T>
CTXPAR_DEVICE piece_of_floats<V> read_piece(const T* place) {
    constexpr int bytes = V * static_cast<int>(sizeof(T));
    piece_of_floats<V> piece;
    if constexpr (bytes % 16 == 0) {
        constexpr int wide = 16 / static_cast<int>(sizeof(T));
        CTXPAR_UNROLL_ALL
        for (int i = 0; i < V; i += wide) {
            const chunk16 chunk = read_chunk(place + i);
            CTXPAR_UNROLL_ALL
            for (int j = 0; j < wide; ++j) piece.at[i + j] = element_of<T>(chunk, j);
        }
    } else if constexpr (sizeof(T) == 2 && V == 2) {
        const float_pair pair = unpack_pair<T>(*reinterpret_cast<const std::uint32_t*>(place));
        piece.at[0] = pair.low;
        piece.at[1] = pair.high;
    } else {
        CTXPAR_UNROLL_ALL
        for (int i = 0; i < V; ++i) piece.at[i] = widened(place[i]);
    }
    return piece;
}

template <int V, class T>
CTXPAR_DEVICE void write_piece(T* place, const piece_of_floats<V>& piece) {
    constexpr int bytes = V * static_cast<int>(sizeof(T));
    if constexpr (bytes % 16 == 0 && sizeof(T) >= 2) {
        constexpr int wide = 16 / static_cast<int>(sizeof(T));
        CTXPAR_UNROLL_ALL
        for (int i = 0; i < V; i += wide) {
            chunk16 chunk;
            CTXPAR_UNROLL_ALL
            for (int word = 0; word < 4; ++word) {
                if constexpr (sizeof(T) == 4) {
                    chunk.words[word] = bits_as<std::uint32_t>(piece.at[i + word]);
                } else {
                    chunk.words[word] = pack_pair<T>(piece.at[i + 2 * word], piece.at[i + 2 * word + 1]);
                }
            }
            store_chunk(place + i, chunk);
        }
    } else if constexpr (sizeof(T) == 2 && V % 2 == 0) {
        CTXPAR_UNROLL_ALL
        for (int i = 0; i < V; i += 2)
            *reinterpret_cast<std::uint32_t*>(place + i) = pack_pair<T>(piece.at[i], piece.at[i + 1]);
    } else {
        CTXPAR_UNROLL_ALL
        for (int i = 0; i < V; ++i) place[i] = rounded_to<T>(piece.at[i]);
    }
}

// A vector to another place, bit by bit.
template <class T>
CTXPAR_DEVICE void copy_vector(const T* from, std::int64_t width, T* to) {
    each_piece_of<sizeof(T)>(width, address_bits(from, to), [&](auto size, std::int64_t d) {
        constexpr int count = decltype(size)::value;
        if constexpr (count * sizeof(T) == 16) {
            store_chunk(to + d, read_chunk(from + d));
        } else {
            for (int x = 0; x < count; ++x) to[d + x] = from[d + x];
        }
    });
}

} // namespace ctxpar::inline v0_1::cuda
