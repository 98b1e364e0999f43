// KV layouts: every (page, token, head, element) has its own place, and together they are the pool.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/paged.hpp>

namespace {

using ctxpar::kv_view;
using ctxpar::page_order;

constexpr std::int64_t pages = 3, page_size = 5, kv_heads = 2, key_width = 7, value_width = 4;

std::size_t elements(std::int64_t of_plane_width) {
    return static_cast<std::size_t>(pages * page_size * kv_heads * of_plane_width);
}

// Adds one to every element that a plane names, through a view over the pool.
template <class Plane>
void touch(const Plane& plane, std::int64_t width, std::int64_t page_count = pages, std::int64_t tokens = page_size,
           std::int64_t heads = kv_heads) {
    for (std::int64_t page = 0; page < page_count; ++page)
        for (std::int64_t token = 0; token < tokens; ++token)
            for (std::int64_t head = 0; head < heads; ++head)
                for (std::int64_t i = 0; i < width; ++i) plane.at(page, token, head)[i] += 1;
}

void touch(const kv_view<float>& view) {
    touch(view.k, view.key_width);
    touch(view.v, view.value_width);
}

bool all_are(const std::vector<float>& pool, float value) {
    for (const float element : pool)
        if (element != value) return false;
    return true;
}

// A pool whose element i holds i.
std::vector<float> counted(std::size_t size, float first = 0) {
    std::vector<float> pool(size);
    std::iota(pool.begin(), pool.end(), first);
    return pool;
}

template <class Body>
std::string code_of(Body body) {
    try {
        body();
    } catch (const ctxpar::config_error& problem) {
        return problem.code();
    }
    return "";
}

template <class T>
std::string check(const kv_view<T>& view) {
    return code_of([&] { ctxpar::check_kv_view(view); });
}

} // namespace

TEST_CASE("two pools: every element has one place, in nhd and hnd") {
    for (const bool by_head : {false, true}) {
        std::vector<float> keys(elements(key_width)), values(elements(value_width));
        const auto view =
            by_head ? ctxpar::hnd_kv(keys.data(), values.data(), pages, page_size, kv_heads, key_width, value_width)
                    : ctxpar::nhd_kv(keys.data(), values.data(), pages, page_size, kv_heads, key_width, value_width);
        CHECK(check(view) == "");
        touch(view);
        CHECK(all_are(keys, 1));
        CHECK(all_are(values, 1));
    }
}

TEST_CASE("one pool: every element has one place, with values behind each page or behind all pages") {
    for (const page_order order : {page_order::nhd, page_order::hnd}) {
        for (const bool stacked : {false, true}) {
            std::vector<float> pool(elements(key_width + value_width));
            const auto view =
                stacked ? ctxpar::stacked_kv(pool.data(), pages, page_size, kv_heads, key_width, value_width, order)
                        : ctxpar::joint_kv(pool.data(), pages, page_size, kv_heads, key_width, value_width, order);
            CHECK(check(view) == "");
            touch(view);
            CHECK(all_are(pool, 1));
        }
    }
}

TEST_CASE("page pointers: every element of one layer has one place and other layers are left alone") {
    // A page holds two layers; a layer holds its keys and then its values. Pages lie anywhere.
    constexpr std::int64_t k_elements = page_size * kv_heads * key_width;
    constexpr std::int64_t layer_elements = k_elements + page_size * kv_heads * value_width;
    constexpr std::int64_t bytes = sizeof(float);
    for (const page_order order : {page_order::nhd, page_order::hnd}) {
        std::vector<std::vector<float>> memory(pages, std::vector<float>(2 * layer_elements));
        const std::vector<void*> pointers = {memory[2].data(), memory[0].data(), memory[1].data()};
        const auto view =
            ctxpar::paged_pointers_kv<float>(pointers.data(), pages, layer_elements * bytes, 0, k_elements * bytes,
                                             page_size, kv_heads, key_width, value_width, order);
        CHECK(check(view) == "");
        touch(view);
        for (const auto& page : memory) {
            CHECK(all_are({page.begin(), page.begin() + layer_elements}, 0));
            CHECK(all_are({page.begin() + layer_elements, page.end()}, 1));
        }
        CHECK(view.k.at(0, 0, 0) == memory[2].data() + layer_elements);
        CHECK(view.v.at(1, 0, 0) == memory[0].data() + layer_elements + k_elements);
        CHECK(view.key(2 * page_size + 3, 1) == view.k.at(2, 3, 1));
    }
}

TEST_CASE("keys and values may have arrays of page pointers of their own") {
    std::vector<float> keys(elements(key_width)), values(elements(value_width));
    std::vector<void*> key_pages, value_pages;
    for (std::int64_t page = 0; page < pages; ++page) {
        key_pages.push_back(keys.data() + page * page_size * kv_heads * key_width);
        value_pages.push_back(values.data() + page * page_size * kv_heads * value_width);
    }
    auto view =
        ctxpar::paged_pointers_kv<float>(key_pages.data(), pages, 0, 0, 0, page_size, kv_heads, key_width, value_width);
    view.v.pages = value_pages.data();
    CHECK(check(view) == "");
    touch(view);
    CHECK(all_are(keys, 1));
    CHECK(all_are(values, 1));
}

TEST_CASE("elements lie where the layout's name says") {
    std::vector<float> pool = counted(elements(key_width + value_width));
    float* const k = pool.data();
    float* const v = pool.data() + elements(key_width);
    const auto place = [&](const float* element) { return static_cast<std::int64_t>(element - pool.data()); };
    constexpr std::int64_t page = 2, token = 3, head = 1;

    const auto nhd = ctxpar::nhd_kv(k, v, pages, page_size, kv_heads, key_width, value_width);
    CHECK(place(nhd.k.at(page, token, head)) == ((page * 5 + token) * 2 + head) * 7);
    CHECK(place(nhd.v.at(page, token, head)) == 3 * 5 * 2 * 7 + ((page * 5 + token) * 2 + head) * 4);
    const auto hnd = ctxpar::hnd_kv(k, v, pages, page_size, kv_heads, key_width, value_width);
    CHECK(place(hnd.k.at(page, token, head)) == ((page * 2 + head) * 5 + token) * 7);

    // Equal widths, as arrays [page][2][token][head][4], [page][2][head][token][4] and [2][page][token][head][4].
    const auto joint = ctxpar::joint_kv(k, pages, page_size, kv_heads, 4, 4);
    CHECK(place(joint.k.at(page, token, head)) == (((page * 2 + 0) * 5 + token) * 2 + head) * 4);
    CHECK(place(joint.v.at(page, token, head)) == (((page * 2 + 1) * 5 + token) * 2 + head) * 4);
    const auto joint_hnd = ctxpar::joint_kv(k, pages, page_size, kv_heads, 4, 4, page_order::hnd);
    CHECK(place(joint_hnd.v.at(page, token, head)) == (((page * 2 + 1) * 2 + head) * 5 + token) * 4);
    const auto stacked = ctxpar::stacked_kv(k, pages, page_size, kv_heads, 4, 4);
    CHECK(place(stacked.k.at(page, token, head)) == (((0 * 3 + page) * 5 + token) * 2 + head) * 4);
    CHECK(place(stacked.v.at(page, token, head)) == (((1 * 3 + page) * 5 + token) * 2 + head) * 4);
}

TEST_CASE("slots are token rows whatever the page size") {
    std::vector<float> pool = counted(24 * 3);
    const auto large = ctxpar::nhd_kv(pool.data(), pool.data(), 2, 12, 1, 3, 3);
    for (const std::int64_t size : {1, 2, 3, 4, 6, 12, 24}) {
        const auto view = ctxpar::nhd_kv(pool.data(), pool.data(), 24 / size, size, 1, 3, 3);
        CHECK(view.slots() == 24);
        for (std::int64_t slot = 0; slot < 24; ++slot) {
            CHECK(view.page_of(slot) * size + view.token_of(slot) == slot);
            CHECK(view.key(slot, 0) == large.key(slot, 0));
            CHECK(view.value(slot, 0) == large.value(slot, 0));
        }
    }
}

TEST_CASE("contiguous KV with its identity table reaches every token of every request once") {
    constexpr std::int64_t requests = 3, capacity = 5;
    std::vector<float> keys(elements(key_width)), values(elements(value_width));
    const auto view =
        ctxpar::contiguous_kv(keys.data(), values.data(), requests, capacity, kv_heads, key_width, value_width);
    const auto table = ctxpar::identity_table(requests, capacity);
    CHECK(check(view) == "");
    for (std::int64_t request = 0; request < requests; ++request) {
        for (std::int64_t token = 0; token < capacity; ++token) {
            const std::int64_t slot = table.slot(request, token);
            CHECK(slot < view.slots());
            CHECK(view.key(slot, 1) == keys.data() + ((request * capacity + token) * kv_heads + 1) * key_width);
            for (std::int64_t head = 0; head < kv_heads; ++head)
                for (std::int64_t i = 0; i < value_width; ++i) view.value(slot, head)[i] += 1;
        }
    }
    CHECK(all_are(values, 1));
}

TEST_CASE("latent rows: the value is the first part of the key's own row") {
    constexpr std::int64_t latent = 6, rope = 2;
    std::vector<float> pool(static_cast<std::size_t>(pages * page_size * (latent + rope)));
    const auto view = ctxpar::latent_kv(pool.data(), pages, page_size, latent, rope);
    CHECK(check(view) == "");
    CHECK(view.kv_heads == 1);
    CHECK(view.key_width == 8);
    CHECK(view.value_width == 6);
    for (std::int64_t slot = 0; slot < view.slots(); ++slot) {
        CHECK(view.key(slot, 0) == pool.data() + slot * 8);
        CHECK(view.value(slot, 0) == view.key(slot, 0));
    }
    touch(view.k, view.key_width, pages, page_size, 1);
    CHECK(all_are(pool, 1));
}

TEST_CASE("strides may leave gaps") {
    // Keys and values side by side in one row: [page][token][head][key, value], rows of 16 elements.
    std::vector<float> pool(static_cast<std::size_t>(pages * page_size * kv_heads * 16));
    auto view =
        ctxpar::nhd_kv(pool.data(), pool.data() + key_width, pages, page_size, kv_heads, key_width, value_width);
    for (auto* plane : {&view.k, &view.v}) {
        plane->head_stride = 16;
        plane->token_stride = kv_heads * 16;
        plane->page_stride = page_size * kv_heads * 16;
    }
    CHECK(check(view) == "");
    touch(view);
    for (std::size_t i = 0; i < pool.size(); ++i)
        REQUIRE(pool[i] == ((i % 16) < static_cast<std::size_t>(key_width + value_width) ? 1.0F : 0.0F));
}

TEST_CASE("offsets past 2^31 elements are 64-bit") {
    ctxpar::kv_plane<float> plane;
    plane.page_stride = 480 * 576;
    CHECK(plane.offset(7767, 0, 0) == 2'147'420'160);
    CHECK(plane.offset(7768, 0, 0) == 2'147'696'640);
    plane.page_stride = 1'039'680;
    CHECK(plane.offset(2066, 0, 0) == 2'147'978'880);
    float* const none = nullptr;
    const auto view = ctxpar::nhd_kv(none, none, 65'536, 16, 2 * 8, 128, 128);
    CHECK(view.k.offset(65'535, 15, 15) + 128 == std::int64_t{1} << 31);
    CHECK(view.k.offset(1 << 20, 15, 15) == (std::int64_t{1} << 35) + 32'768 - 128);
    CHECK(ctxpar::latent_kv(none, 1 << 20, 64, 512, 64).k.offset(1 << 20, 63, 0) == 1'048'576LL * 64 * 576 + 63 * 576);
    CHECK(ctxpar::per_token(none, 1 << 20, 1, 0).offset(1 << 14, 5, 3) == (std::int64_t{1} << 34) + 5);
    CHECK(ctxpar::nhd_kv(none, none, std::int64_t{1} << 34, 16, 1, 8, 8).slots() == std::int64_t{1} << 38);
}

TEST_CASE("scales per tensor, head and token") {
    std::vector<float> numbers = counted(64, 1);
    const auto whole = ctxpar::per_tensor(0.25F);
    CHECK(whole.kind == ctxpar::scale_kind::tensor);
    CHECK(whole.at(5, 6, 7) == 0.25F);
    CHECK(ctxpar::kv_scale{}.at(5, 6, 7) == 1.0F);
    const auto heads = ctxpar::per_head(numbers.data());
    CHECK(heads.kind == ctxpar::scale_kind::head);
    CHECK(heads.at(5, 6, 7) == 8.0F);
    CHECK(heads.at(0, 0, 7) == 8.0F);
    const auto tokens = ctxpar::per_token(numbers.data(), 8, 2, 1); // [page][4 tokens][2 heads]
    CHECK(tokens.kind == ctxpar::scale_kind::token);
    CHECK(tokens.at(3, 2, 1) == 3 * 8 + 2 * 2 + 1 + 1);
    CHECK(ctxpar::per_token(numbers.data(), 4, 1, 0).at(3, 2, 9) == 3 * 4 + 2 + 1);

    float* const none = nullptr;
    auto view = ctxpar::nhd_kv(none, none, 4, 4, 2, 8, 8);
    view.k_scale = tokens;
    view.v_scale = heads;
    CHECK(view.key_scale(3 * 4 + 2, 1) == 30.0F);
    CHECK(view.value_scale(3 * 4 + 2, 1) == 2.0F);
}

TEST_CASE("a view of mutable elements is a view of constant ones") {
    std::vector<ctxpar::fp8_e4m3> pool(1000);
    const std::vector<void*> pointers = {pool.data()};
    auto view = ctxpar::joint_kv(pool.data(), 2, 4, 3, 5, 6, page_order::hnd);
    view.k_scale = ctxpar::per_tensor(0.5F);
    view.v_scale = ctxpar::per_tensor(2.0F);
    const kv_view<const ctxpar::fp8_e4m3> constant = view;
    CHECK(constant.pages == 2);
    CHECK(constant.page_size == 4);
    CHECK(constant.kv_heads == 3);
    CHECK(constant.key_width == 5);
    CHECK(constant.value_width == 6);
    CHECK(constant.k_scale.uniform == 0.5F);
    CHECK(constant.v_scale.uniform == 2.0F);
    for (std::int64_t slot = 0; slot < 8; ++slot) {
        CHECK(constant.key(slot, 2) == view.key(slot, 2));
        CHECK(constant.value(slot, 2) == view.value(slot, 2));
    }
    view.k.pages = pointers.data();
    view.k.page_byte_offset = 9;
    const ctxpar::kv_plane<const ctxpar::fp8_e4m3> plane = view.k;
    CHECK(plane.pages == pointers.data());
    CHECK(plane.at(0, 1, 1) == pool.data() + 9 + view.k.offset(0, 1, 1));
}

// The layouts are usable in constant expressions.
static_assert(ctxpar::nhd_kv<float>(nullptr, nullptr, 3, 5, 2, 7, 4).k.offset(2, 3, 1) == ((2 * 5 + 3) * 2 + 1) * 7);
static_assert(ctxpar::per_tensor(0.5F).at(1, 2, 3) == 0.5F);

TEST_CASE("illegal views are refused") {
    std::vector<float> pool(1000);
    const auto legal = ctxpar::nhd_kv(pool.data(), pool.data(), pages, page_size, kv_heads, key_width, value_width);
    CHECK(check(legal) == "");
    const auto with = [&](auto change) {
        auto view = legal;
        change(view);
        return check(view);
    };
    using view = kv_view<float>;
    CHECK(with([](view& it) { it.k.base = nullptr; }) == "null");
    CHECK(with([](view& it) { it.v.base = nullptr; }) == "null");
    CHECK(with([](view& it) { it.pages = -1; }) == "size");
    CHECK(with([](view& it) { it.page_size = 0; }) == "size");
    CHECK(with([](view& it) { it.kv_heads = 0; }) == "size");
    CHECK(with([](view& it) { it.key_width = 0; }) == "size");
    CHECK(with([](view& it) { it.value_width = -3; }) == "size");
    CHECK(with([](view& it) { it.pages = std::numeric_limits<std::int64_t>::max() / 4; }) == "size");
    CHECK(with([](view& it) { it.k.token_stride = key_width - 1; }) == "stride");
    CHECK(with([](view& it) { it.k.token_stride = key_width; }) == "stride"); // tokens of one head over the next head
    CHECK(with([](view& it) { it.v.head_stride = value_width - 1; }) == "stride");
    CHECK(with([](view& it) { it.v.page_stride -= 1; }) == "stride");
    CHECK(with([](view& it) { it.k.page_stride = 0; }) == "stride");
    CHECK(with([](view& it) { it.k.head_stride = -key_width; }) == "stride");
    CHECK(with([](view& it) { it.k.page_stride = std::numeric_limits<std::int64_t>::max() / 2 + 1; }) == "stride");
    CHECK(with([](view& it) { it.k_scale.kind = ctxpar::scale_kind::head; }) == "null");
    CHECK(with([](view& it) { it.v_scale = ctxpar::per_token(nullptr, 1, 1, 0); }) == "null");

    // A stride over a dimension of one entry is never taken; a pool of no pages has nothing to look at.
    auto single = ctxpar::nhd_kv(pool.data(), pool.data(), 1, page_size, 1, key_width, value_width);
    single.k.page_stride = single.k.head_stride = 0;
    CHECK(check(single) == "");
    CHECK(check(ctxpar::nhd_kv<float>(nullptr, nullptr, 0, page_size, kv_heads, key_width, value_width)) == "");

    // Rows of 7 elements at 16-element steps; the last row of a token and of a page needs no gap behind it.
    auto tight = legal;
    tight.k.head_stride = 16;
    tight.k.token_stride = 16 + 7;
    tight.k.page_stride = 4 * (16 + 7) + 16 + 7;
    CHECK(check(tight) == "");
    tight.k.page_stride -= 1;
    CHECK(check(tight) == "stride");

    const std::vector<void*> pointers(pages, pool.data());
    auto paged = ctxpar::paged_pointers_kv<float>(pointers.data(), pages, 0, 0, 400, page_size, kv_heads, key_width,
                                                  value_width);
    CHECK(check(paged) == "");
    paged.v.page_byte_offset = 402;
    CHECK(check(paged) == "stride");
    paged.v.page_byte_offset = -4;
    CHECK(check(paged) == "stride");
    paged.v.page_byte_offset = 400;
    paged.v.token_stride = 1;
    CHECK(check(paged) == "stride");
}

TEST_CASE("a refusal names the strides and sizes") {
    float number = 0;
    auto view = ctxpar::nhd_kv(&number, &number, 3, 5, 2, 7, 4);
    view.v.token_stride = 3;
    std::string text;
    try {
        ctxpar::check_kv_view(view);
    } catch (const ctxpar::config_error& problem) {
        text = problem.what();
    }
    for (const char* part : {"values", "40 (page)", "3 (token)", "4 (head)", "3 pages", "5 tokens", "2 heads"}) {
        CAPTURE(part);
        CHECK(text.find(part) != std::string::npos);
    }
}
