// Packed rows, in which KV travels: every element and scale of a row has its own place inside it, and a row is found by
// its slot whatever the page size.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/kv_view.hpp>

namespace {

using ctxpar::kv_view;
using ctxpar::packed_kv;
using ctxpar::packed_row;

constexpr std::int64_t rows = 12;

// The bytes that the elements of a row take, and its scales, one after another.
std::int64_t element_bytes(const packed_row& row, std::int64_t size) {
    return row.kv_heads * (row.values_in_keys ? row.key_width : row.key_width + row.value_width) * size;
}
std::int64_t scale_count(const packed_row& row) {
    return row.token_scales ? (row.values_in_keys ? row.kv_heads : 2 * row.kv_heads) : 0;
}

// Memory on 16 bytes, with a count for each byte.
struct marked_memory {
    struct alignas(16) unit {
        std::byte bytes[16];
    };
    std::vector<unit> memory;
    std::vector<int> marks;

    explicit marked_memory(std::int64_t bytes)
        : memory(static_cast<std::size_t>(bytes / 16)), marks(static_cast<std::size_t>(bytes), 0) {}

    template <class T>
    T* base() {
        return reinterpret_cast<T*>(memory.data());
    }
    // Where it lies, from the first byte.
    std::int64_t offset_of(const void* at) const {
        return static_cast<const std::byte*>(at) - reinterpret_cast<const std::byte*>(memory.data());
    }
    // Marks bytes that must lie in one row; whether they do.
    bool mark(const void* at, std::int64_t bytes, std::int64_t first, std::int64_t end) {
        const std::int64_t offset = offset_of(at);
        if (offset < first || offset + bytes > end) return false;
        for (std::int64_t i = 0; i < bytes; ++i) ++marks[static_cast<std::size_t>(offset + i)];
        return true;
    }
};

// Marks everything that a view's slot names; whether all of it lies in the slot's own row, scales on 4 bytes.
template <class T>
bool mark_row(marked_memory& memory, const kv_view<T>& view, const packed_row& row, std::int64_t slot) {
    const auto size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t first = slot * row.bytes(size);
    const std::int64_t end = first + row.bytes(size);
    bool inside = true;
    for (std::int64_t head = 0; head < row.kv_heads; ++head) {
        inside = memory.mark(view.key(slot, head), row.key_width * size, first, end) && inside;
        if (!row.values_in_keys)
            inside = memory.mark(view.value(slot, head), row.value_width * size, first, end) && inside;
        if (!row.token_scales) continue;
        for (const auto* scale : {&view.k_scale, &view.v_scale}) {
            if (row.values_in_keys && scale == &view.v_scale) continue;
            const float* at = scale->data + scale->offset(view.page_of(slot), view.token_of(slot), head);
            inside = inside && memory.offset_of(at) % 4 == 0 && memory.mark(at, 4, first, end);
        }
    }
    return inside;
}

template <class T>
void check_packed(const packed_row& row) {
    const auto size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t content = element_bytes(row, size) + 4 * scale_count(row);
    CHECK(row.elements() * size == element_bytes(row, size));
    CHECK(row.bytes(size) % 16 == 0);
    CHECK(row.scale_offset(size) % 4 == 0);
    CHECK(row.bytes(size) >= content);
    CHECK(row.bytes(size) < content + 16 + 3); // no more than both roundings
    for (const std::int64_t page_size : {1, 3, 4, 12}) {
        marked_memory memory(rows * row.bytes(size));
        const kv_view<T> view = packed_kv(memory.base<T>(), row, rows / page_size, page_size);
        ctxpar::check_kv_view(view);
        CHECK(view.slots() == rows);
        CHECK(view.kv_heads == row.kv_heads);
        CHECK(view.key_width == row.key_width);
        CHECK(view.value_width == row.value_width);
        int outside = 0;
        for (std::int64_t slot = 0; slot < rows; ++slot) outside += mark_row(memory, view, row, slot) ? 0 : 1;
        CHECK(outside == 0);
        std::int64_t reached = 0;
        int twice = 0;
        for (const int mark : memory.marks) {
            reached += mark > 0 ? 1 : 0;
            twice += mark > 1 ? 1 : 0;
        }
        CHECK(twice == 0);
        CHECK(reached == rows * content);
    }
}

} // namespace

TEST_CASE_TEMPLATE("Every element and scale has one place in its row, and rows do not overlap", T, float, ctxpar::bf16,
                   ctxpar::fp8_e4m3) {
    for (const std::int64_t heads : {1, 2, 3})
        for (const std::int64_t key_width : {1, 7, 8, 20})
            for (const std::int64_t value_width : {1, 5, 16})
                for (const bool token_scales : {false, true})
                    check_packed<T>({heads, key_width, value_width, false, token_scales});
}

TEST_CASE_TEMPLATE("A latent row is its key alone, whose first part is the value, with one scale", T, float,
                   ctxpar::bf16, ctxpar::fp8_e4m3) {
    for (const std::int64_t latent : {1, 6, 15, 32})
        for (const std::int64_t rope : {1, 2, 8})
            for (const bool token_scales : {false, true}) {
                const packed_row row{1, latent + rope, latent, true, token_scales};
                check_packed<T>(row);
                marked_memory memory(rows * row.bytes(sizeof(T)));
                const kv_view<T> view = packed_kv(memory.base<T>(), row, rows, 1);
                for (std::int64_t slot = 0; slot < rows; ++slot) {
                    CHECK(view.value(slot, 0) == view.key(slot, 0));
                    CHECK(view.v_scale.data == view.k_scale.data);
                    CHECK(view.v_scale.offset(slot, 0, 0) == view.k_scale.offset(slot, 0, 0));
                }
            }
}

TEST_CASE("A row is the keys of all heads, then their values, then the scales of the keys and of the values") {
    const packed_row row{2, 3, 5, false, true}; // 16 elements
    marked_memory memory(2 * row.bytes(2));
    CHECK(row.bytes(2) == 48);
    const kv_view<ctxpar::bf16> view = packed_kv(memory.base<ctxpar::bf16>(), row, 2, 1);
    const auto at = [&](const void* place) { return memory.offset_of(place); };
    CHECK(at(view.key(1, 0)) == 48);
    CHECK(at(view.key(1, 1)) == 48 + 6);
    CHECK(at(view.value(1, 0)) == 48 + 12);
    CHECK(at(view.value(1, 1)) == 48 + 22);
    CHECK(at(view.k_scale.data + view.k_scale.offset(1, 0, 1)) == 48 + 32 + 4);
    CHECK(at(view.v_scale.data + view.v_scale.offset(1, 0, 0)) == 48 + 32 + 8);
    CHECK(view.k_scale.kind == ctxpar::scale_kind::token);
    CHECK(view.v_scale.kind == ctxpar::scale_kind::token);
}

TEST_CASE("Rows of usual models waste nothing, and a scale costs at most 16 bytes") {
    CHECK(packed_row{8, 128, 128, false, false}.bytes(2) == 8 * 256 * 2);
    CHECK(packed_row{1, 128, 128, false, false}.bytes(1) == 256);
    CHECK(packed_row{1, 128, 128, false, true}.bytes(1) == 256 + 16);
    CHECK(packed_row{1, 576, 512, true, false}.bytes(2) == 1152);
    CHECK(packed_row{1, 576, 512, true, true}.bytes(1) == 576 + 16);
    CHECK(packed_row{1, 576, 512, true, true}.scale_offset(1) == 576);
    CHECK(packed_row{std::int64_t{1} << 32, 128, 128, false, false}.bytes(4) == std::int64_t{1} << 42);
}

TEST_CASE("Without scales of its own a row has the factor 1 until it is given those of its cache") {
    marked_memory memory(32);
    kv_view<ctxpar::fp8_e4m3> view = packed_kv(memory.base<ctxpar::fp8_e4m3>(), {2, 4, 4, false, false}, 2, 1);
    CHECK(view.key_scale(1, 1) == 1.0F);
    CHECK(view.value_scale(1, 1) == 1.0F);
    CHECK(view.k_scale.kind == ctxpar::scale_kind::tensor);
    std::vector<float> heads = {2, 3};
    view.k_scale = ctxpar::per_head(heads.data());
    CHECK(view.key_scale(1, 1) == 3.0F);
}

TEST_CASE("No rows need no memory") {
    for (const bool token_scales : {false, true}) {
        const kv_view<float> view = packed_kv<float>(nullptr, {2, 4, 4, false, token_scales}, 0, 1);
        CHECK(view.slots() == 0);
        CHECK(view.k.base == nullptr);
        CHECK(view.v.base == nullptr);
    }
}
