// The one view through which Q, O and LSE are passed: rows x heads of vectors, with heads in blocks.
//
//   element(row, head) = base + (head / heads_per_block) * block_stride + row * row_stride
//                             + (head mod heads_per_block) * head_stride
//
// A plain [rows][heads][width] array, a gathered Q [m][rows][heads/m][width], a send buffer [N][rows][heads/N][width],
// a packed row with its LSE behind it, and an LSE in [heads][rows] or [rows][heads] are all values of this view, so
// kernels read and write them where they lie. Strides count elements of T and may be anything.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/core/config.hpp>

namespace ctxpar::inline v0_1 {

template <class T>
struct head_view {
    T* base = nullptr;
    std::int64_t rows = 0;
    std::int64_t heads = 0;
    std::int64_t width = 0;           // elements of one (row, head), contiguous; 1 for an LSE
    std::int64_t heads_per_block = 1; // >= 1
    std::int64_t block_stride = 0;
    std::int64_t row_stride = 0;
    std::int64_t head_stride = 0;

    CTXPAR_HD constexpr T* at(std::int64_t row, std::int64_t head) const { return base + offset(row, head); }
    CTXPAR_HD constexpr std::int64_t offset(std::int64_t row, std::int64_t head) const {
        return (head / heads_per_block) * block_stride + row * row_stride + (head % heads_per_block) * head_stride;
    }

    // Whether the elements lie as a dense [rows][heads][width] array.
    CTXPAR_HD constexpr bool is_dense() const {
        const bool one_block = heads <= heads_per_block || block_stride == heads_per_block * head_stride;
        return (heads <= 1 || head_stride == width) && (rows <= 1 || row_stride == heads * width) && one_block;
    }

    // Heads [first, first + count) as a view of their own; the range must lie in one block or be whole blocks.
    CTXPAR_HD constexpr head_view slice_heads(std::int64_t first, std::int64_t count) const {
        head_view part = *this;
        part.base = count > 0 ? at(0, first) : base;
        part.heads = count;
        if (count <= heads_per_block - first % heads_per_block) part.heads_per_block = count > 0 ? count : 1;
        return part;
    }

    // Rows [first, first + count).
    CTXPAR_HD constexpr head_view slice_rows(std::int64_t first, std::int64_t count) const {
        head_view part = *this;
        part.base = base + first * row_stride;
        part.rows = count;
        return part;
    }

    template <class Const>
        requires(std::is_same_v<Const, const T> && !std::is_const_v<T>)
    CTXPAR_HD constexpr operator head_view<Const>() const {
        return {base, rows, heads, width, heads_per_block, block_stride, row_stride, head_stride};
    }
};

static_assert(std::is_trivially_copyable_v<head_view<float>>);

// A dense [rows][heads][width] array.
template <class T>
CTXPAR_HD constexpr head_view<T> dense_view(T* base, std::int64_t rows, std::int64_t heads, std::int64_t width) {
    return {base, rows, heads, width, heads > 0 ? heads : 1, 0, heads * width, width};
}

// [blocks][rows][heads_per_block][width], each vector taking `pitch` elements (>= width; 0 means width).
template <class T>
CTXPAR_HD constexpr head_view<T> blocked_view(T* base, std::int64_t blocks, std::int64_t rows,
                                              std::int64_t heads_per_block, std::int64_t width,
                                              std::int64_t pitch = 0) {
    const std::int64_t step = pitch > 0 ? pitch : width;
    return {base,
            rows,
            blocks * heads_per_block,
            width,
            heads_per_block,
            rows * heads_per_block * step,
            heads_per_block * step,
            step};
}

// One number a (row, head), stored head-major: [heads][rows].
template <class T>
CTXPAR_HD constexpr head_view<T> head_major_view(T* base, std::int64_t rows, std::int64_t heads) {
    return {base, rows, heads, 1, heads > 0 ? heads : 1, 0, 1, rows};
}

} // namespace ctxpar::inline v0_1
