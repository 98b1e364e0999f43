// Moving rows on a device: by index, by slot, and between views. Rows are bytes here; a thread moves as wide a piece as
// the views allow.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/core/view.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1::cuda {

// A view as bytes: the same vectors, strides and width counted in bytes.
template <class T>
constexpr auto bytes_of(const head_view<T>& view) {
    using byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    return head_view<byte>{reinterpret_cast<byte*>(view.base),
                           view.rows,
                           view.heads,
                           view.width * size,
                           view.heads_per_block,
                           view.block_stride * size,
                           view.row_stride * size,
                           view.head_stride * size};
}

// The widest piece, 16, 8, 4, 2 or 1 bytes, of which all vectors of a view begin at a multiple and are made.
template <class Byte>
std::int64_t widest_piece(const head_view<Byte>& view) {
    std::int64_t piece = 16;
    const auto base = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.base) % 16);
    const std::int64_t all[] = {base, view.width, view.block_stride, view.row_stride, view.head_stride};
    for (const std::int64_t value : all)
        while (value % piece != 0) piece /= 2;
    return piece;
}

// What becomes of row i: it is taken from row rows[i], goes to row rows[i], or (rows null) is row i itself.
enum class row_move : std::uint8_t { take, place };

struct move_args {
    head_view<const std::byte> from; // null base: nothing is read, all rows are filled
    head_view<std::byte> to;
    index_view rows; // [from.rows or to.rows], or null data
    row_move move = row_move::take;
    std::uint32_t fill = 0;      // of rows that are taken from nowhere, every 4 bytes
    std::int64_t count = 0;      // rows
    std::int64_t first_head = 0; // of `from`: its heads [first_head, first_head + to.heads) are moved
};

template <int Piece>
struct piece_type;
template <>
struct piece_type<16> {
    using type = chunk16;
};
template <>
struct piece_type<8> {
    using type = std::uint64_t;
};
template <>
struct piece_type<4> {
    using type = std::uint32_t;
};
template <>
struct piece_type<2> {
    using type = std::uint16_t;
};
template <>
struct piece_type<1> {
    using type = std::uint8_t;
};

template <int Piece>
CTXPAR_DEVICE void move_piece(const std::byte* from, std::byte* to, std::uint32_t fill) {
    using piece = typename piece_type<Piece>::type;
    if constexpr (Piece == 16) {
        store_chunk(to, from == nullptr ? chunk16{{fill, fill, fill, fill}} : load_chunk(from));
    } else {
        *reinterpret_cast<piece*>(to) = from == nullptr
                                            ? static_cast<piece>(fill | static_cast<std::uint64_t>(fill) << 32)
                                            : *reinterpret_cast<const piece*>(from);
    }
}

// A block a row, in turns where there are more rows than blocks.
template <int Piece>
CTXPAR_KERNEL void move_rows_kernel(move_args args) {
    const std::int64_t pieces = args.to.width / Piece;
    for (std::int64_t i = block_x(); i < args.count; i += grid_x()) {
        const std::int64_t other = args.rows.data == nullptr ? i : args.rows.at(i);
        if (other < 0 && args.move == row_move::place) continue;
        const std::int64_t to_row = args.move == row_move::take ? i : other;
        const std::int64_t from_row = args.move == row_move::take ? other : i;
        const bool reads = args.from.base != nullptr && other >= 0;
        for (std::int64_t p = thread_index(); p < args.to.heads * pieces; p += block_threads()) {
            const std::int64_t head = p / pieces;
            const std::int64_t at = p % pieces * Piece;
            move_piece<Piece>(reads ? args.from.at(from_row, args.first_head + head) + at : nullptr,
                              args.to.at(to_row, head) + at, args.fill);
        }
    }
}

} // namespace ctxpar::inline v0_1::cuda
