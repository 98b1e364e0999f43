// Head views against arrays that are numbered by the loops that define their layout.
#include <cstdint>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/view.hpp>

namespace {

using ctxpar::head_view;

// Where (row, head, 0) lies, by [row * heads + head]; filled by a layout's own loops.
using places = std::vector<std::int64_t>;

std::vector<int> counted(std::int64_t size) {
    std::vector<int> memory(static_cast<std::size_t>(size));
    std::iota(memory.begin(), memory.end(), 0);
    return memory;
}

bool lies_at(const head_view<const int>& view, const int* memory, const places& expected) {
    if (static_cast<std::int64_t>(expected.size()) != view.rows * view.heads) return false;
    for (std::int64_t row = 0; row < view.rows; ++row)
        for (std::int64_t head = 0; head < view.heads; ++head)
            if (view.at(row, head) - memory != expected[static_cast<std::size_t>(row * view.heads + head)])
                return false;
    return true;
}

// The places of [blocks][rows][heads_per_block] vectors, `pitch` elements each.
places blocked_places(std::int64_t blocks, std::int64_t rows, std::int64_t heads_per_block, std::int64_t pitch) {
    places result(static_cast<std::size_t>(blocks * rows * heads_per_block));
    std::int64_t next = 0;
    for (std::int64_t block = 0; block < blocks; ++block)
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t head = 0; head < heads_per_block; ++head, next += pitch)
                result[static_cast<std::size_t>((row * blocks + block) * heads_per_block + head)] = next;
    return result;
}

} // namespace

TEST_CASE("a dense view is a plain array: rows, heads, elements") {
    const std::vector<int> memory = counted(3 * 5 * 7);
    const auto view = ctxpar::dense_view(memory.data(), 3, 5, 7);
    CHECK(view.width == 7);
    CHECK(lies_at(view, memory.data(), blocked_places(1, 3, 5, 7)));
    CHECK(*view.at(2, 4) == (2 * 5 + 4) * 7);
    CHECK(view.offset(2, 4) == (2 * 5 + 4) * 7);
    CHECK(view.is_dense());
}

TEST_CASE("a blocked view is an array of blocks: blocks, rows, heads of a block, elements") {
    const std::vector<int> memory = counted(4 * 3 * 2 * 7);
    const auto view = ctxpar::blocked_view(memory.data(), 4, 3, 2, 7);
    CHECK(view.heads == 8);
    CHECK(lies_at(view, memory.data(), blocked_places(4, 3, 2, 7)));
    CHECK(!view.is_dense());
    CHECK(ctxpar::blocked_view(memory.data(), 1, 3, 2, 7).is_dense());
    CHECK(ctxpar::blocked_view(memory.data(), 4, 1, 2, 7).is_dense()); // blocks of one row follow one another
}

TEST_CASE("a packed row keeps its LSE behind each vector") {
    constexpr std::int64_t blocks = 3, rows = 2, heads = 2, width = 5, pitch = 6;
    std::vector<int> memory = counted(blocks * rows * heads * pitch);
    const auto output = ctxpar::blocked_view(memory.data(), blocks, rows, heads, width, pitch);
    const auto lse = ctxpar::blocked_view(memory.data() + width, blocks, rows, heads, 1, pitch);
    CHECK(lies_at(output, memory.data(), blocked_places(blocks, rows, heads, pitch)));
    CHECK(!output.is_dense());
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t head = 0; head < blocks * heads; ++head) {
            for (std::int64_t i = 0; i < width; ++i) output.at(row, head)[i] = -1;
            lse.at(row, head)[0] = -2;
        }
    for (std::size_t i = 0; i < memory.size(); ++i) CHECK(memory[i] == (i % 6 == 5 ? -2 : -1));
}

TEST_CASE("an LSE may be stored head-major or row-major") {
    // Three heads, two rows, the value of (row, head) being 10 * row + head.
    const std::vector<float> head_major = {0, 10, 1, 11, 2, 12};
    const std::vector<float> row_major = {0, 1, 2, 10, 11, 12};
    const auto by_head = ctxpar::head_major_view(head_major.data(), 2, 3);
    const auto by_row = ctxpar::dense_view(row_major.data(), 2, 3, 1);
    for (std::int64_t row = 0; row < 2; ++row)
        for (std::int64_t head = 0; head < 3; ++head) {
            CHECK(*by_head.at(row, head) == static_cast<float>(10 * row + head));
            CHECK(*by_row.at(row, head) == static_cast<float>(10 * row + head));
        }
    CHECK(by_row.is_dense());
    CHECK(!by_head.is_dense());
}

TEST_CASE("any strides are legal: heads padded, rows interleaved, order reversed") {
    std::vector<int> memory = counted(400);
    const head_view<int> view{memory.data() + 200, 3, 6, 4, 2, -60, 9, 100};
    for (std::int64_t row = 0; row < 3; ++row)
        for (std::int64_t head = 0; head < 6; ++head)
            CHECK(*view.at(row, head) == 200 - 60 * (head / 2) + 9 * row + 100 * (head % 2));
    CHECK(!view.is_dense());
}

TEST_CASE("a slice of heads names the same elements, in one block or over whole blocks") {
    const std::vector<int> memory = counted(4 * 3 * 6 * 5);
    const auto view = ctxpar::blocked_view(memory.data(), 4, 3, 6, 5);
    for (std::int64_t first = 0; first < view.heads; ++first) {
        for (std::int64_t count = 0; first + count <= view.heads; ++count) {
            const bool one_block = first % 6 + count <= 6;
            const bool whole_blocks = first % 6 == 0 && count % 6 == 0;
            if (!one_block && !whole_blocks) continue;
            const auto part = view.slice_heads(first, count);
            REQUIRE(part.heads == count);
            REQUIRE(part.rows == 3);
            REQUIRE(part.width == 5);
            REQUIRE(part.heads_per_block >= 1);
            for (std::int64_t row = 0; row < 3; ++row)
                for (std::int64_t head = 0; head < count; ++head)
                    REQUIRE(part.at(row, head) == view.at(row, first + head));
        }
    }
    // A slice of a slice, and of a dense view.
    const auto inner = view.slice_heads(6, 12).slice_heads(7, 3);
    CHECK(inner.at(2, 2) == view.at(2, 6 + 7 + 2));
    const auto dense = ctxpar::dense_view(memory.data(), 3, 8, 5).slice_heads(2, 4);
    CHECK(dense.at(1, 3) == memory.data() + (8 + 5) * 5);
    CHECK(!dense.is_dense());
}

TEST_CASE("a slice of rows names the same elements") {
    const std::vector<int> memory = counted(2 * 5 * 3 * 4);
    const auto view = ctxpar::blocked_view(memory.data(), 2, 5, 3, 4);
    for (std::int64_t first = 0; first <= 5; ++first)
        for (std::int64_t count = 0; first + count <= 5; ++count) {
            const auto part = view.slice_rows(first, count);
            REQUIRE(part.rows == count);
            REQUIRE(part.heads == 6);
            for (std::int64_t row = 0; row < count; ++row)
                for (std::int64_t head = 0; head < 6; ++head) REQUIRE(part.at(row, head) == view.at(first + row, head));
        }
    CHECK(ctxpar::dense_view(memory.data(), 5, 6, 4).slice_rows(1, 3).is_dense());
}

TEST_CASE("is_dense says whether the elements are one gapless array in order") {
    int memory[1] = {};
    const auto dense = ctxpar::dense_view(memory, 3, 4, 5);
    const auto changed = [&](auto change) {
        auto view = dense;
        change(view);
        return view.is_dense();
    };
    CHECK(changed([](auto&) {}));
    CHECK(!changed([](auto& view) { view.head_stride = 6; }));
    CHECK(!changed([](auto& view) { view.row_stride = 21; }));
    CHECK(!changed([](auto& view) { view.heads_per_block = 2, view.block_stride = 11; }));
    CHECK(changed([](auto& view) { view.heads_per_block = 2, view.block_stride = 10; }));
    CHECK(changed([](auto& view) { view.rows = 1, view.row_stride = 999; }));
}

TEST_CASE("views of no rows or no heads are legal") {
    int* const none = nullptr;
    CHECK(ctxpar::dense_view(none, 0, 4, 5).is_dense());
    const auto empty = ctxpar::dense_view(none, 3, 0, 5);
    CHECK(empty.heads == 0);
    CHECK(empty.heads_per_block == 1);
    CHECK(empty.slice_heads(0, 0).base == nullptr);
    CHECK(ctxpar::head_major_view(none, 3, 0).heads_per_block == 1);
}

TEST_CASE("a view of mutable elements is a view of constant ones") {
    std::vector<int> memory = counted(2 * 3 * 2 * 4);
    const auto view = ctxpar::blocked_view(memory.data(), 2, 3, 2, 4);
    const head_view<const int> constant = view;
    CHECK(constant.rows == view.rows);
    CHECK(constant.heads == view.heads);
    CHECK(constant.width == view.width);
    for (std::int64_t head = 0; head < 4; ++head) CHECK(constant.at(2, head) == view.at(2, head));
}

// Offsets are 64-bit and usable in constant expressions.
static_assert(ctxpar::dense_view<float>(nullptr, 1 << 20, 128, 576).offset((1 << 20) - 1, 127) + 576 ==
              (std::int64_t{1} << 27) * 576);
static_assert(ctxpar::blocked_view<float>(nullptr, 8, 4, 16, 512).offset(3, 127) == 8 * 4 * 16 * 512 - 512);
static_assert(ctxpar::dense_view<float>(nullptr, 2, 3, 4).is_dense());
