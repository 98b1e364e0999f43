// Writing new rows: every value comes back to within its type's rounding, every other byte of the pool stays.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <support/plain_numbers.hpp>

#include <ctxpar/backend/cpu.hpp>

using namespace ctxpar;

namespace {

constexpr std::int64_t num_pages = 5;
constexpr std::int64_t page_size = 4;
constexpr std::int64_t kv_heads = 3;
constexpr std::int64_t key_width = 7;
constexpr std::int64_t value_width = 5;
constexpr unsigned char untouched = 0xa5;

template <class T>
std::vector<T> random_values(std::mt19937& random, std::int64_t count, float size = 1.0F) {
    std::normal_distribution<float> normal;
    std::vector<T> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(size * normal(random)));
    return values;
}

// A pool in which each page has a gap behind it, and the scales of its two planes.
template <class Kv>
struct pool {
    std::vector<Kv> keys, values;
    std::vector<float> key_scales, value_scales;
    kv_view<Kv> view;

    explicit pool(page_order order) {
        const auto make = order == page_order::nhd ? nhd_kv<Kv> : hnd_kv<Kv>;
        keys.resize(num_pages * (page_size * kv_heads * key_width + 11));
        values.resize(num_pages * (page_size * kv_heads * value_width + 11));
        std::memset(static_cast<void*>(keys.data()), untouched, keys.size() * sizeof(Kv));
        std::memset(static_cast<void*>(values.data()), untouched, values.size() * sizeof(Kv));
        view = make(keys.data(), values.data(), num_pages, page_size, kv_heads, key_width, value_width);
        view.k.page_stride += 11;
        view.v.page_stride += 11;
    }
};

enum class scaling { none, tensor, head, token, token_and_head };

template <class Kv>
void set_scales(pool<Kv>& to, scaling kind) {
    const auto give = [&](kv_scale& scale, std::vector<float>& memory) {
        memory.assign(num_pages * page_size * kv_heads, -1.0F);
        if (kind == scaling::tensor) scale = per_tensor(0.37F);
        if (kind == scaling::head) {
            memory = {0.25F, 1.3F, 2.0F};
            scale = per_head(memory.data());
        }
        if (kind == scaling::token) scale = per_token(memory.data(), page_size, 1, 0);
        if (kind == scaling::token_and_head) scale = per_token(memory.data(), page_size * kv_heads, 1, page_size);
    };
    give(to.view.k_scale, to.key_scales);
    give(to.view.v_scale, to.value_scales);
}

// How many elements of a plane do not read back as what was given, and clears the ones that do, so that what is left
// must be untouched.
template <class E, class Kv>
int wrong_elements(const std::vector<E>& given, const std::vector<std::int64_t>& slots, std::int64_t width,
                   const kv_plane<Kv>& plane, const kv_scale& scale) {
    int wrong = 0;
    for (std::size_t row = 0; row < slots.size(); ++row) {
        if (slots[row] < 0) continue;
        for (std::int64_t head = 0; head < kv_heads; ++head) {
            const std::int64_t page = slots[row] / page_size;
            const std::int64_t token = slots[row] % page_size;
            const double factor = scale.at(page, token, head);
            Kv* stored = plane.base + page * plane.page_stride + token * plane.token_stride + head * plane.head_stride;
            const E* from = given.data() + (static_cast<std::int64_t>(row) * kv_heads + head) * width;
            for (std::int64_t d = 0; d < width; ++d) {
                const double value = plain::number(from[d]);
                const double back = plain::number(stored[d]) * factor;
                const double bound = plain::half_ulp<Kv>(value / factor) * factor * 1.001 + 1e-7 * std::fabs(value);
                if (!(std::fabs(back - value) <= (std::is_same_v<E, Kv> && factor == 1 ? 0.0 : bound))) ++wrong;
                std::memset(static_cast<void*>(stored + d), untouched, sizeof(Kv));
            }
        }
    }
    return wrong;
}

template <class T>
bool is_untouched(const std::vector<T>& memory) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
    return std::all_of(bytes, bytes + memory.size() * sizeof(T), [](unsigned char b) { return b == untouched; });
}

// Whether token scales make the largest magnitude of what they cover the largest number of the type.
template <class E, class Kv>
bool scales_fit(const std::vector<E>& given, const std::vector<std::int64_t>& slots, std::int64_t width,
                const kv_scale& scale) {
    for (std::size_t row = 0; row < slots.size(); ++row) {
        if (slots[row] < 0) continue;
        double whole = 0;
        for (std::int64_t head = 0; head < kv_heads; ++head) {
            double largest = 0;
            for (std::int64_t d = 0; d < width; ++d)
                largest = std::max(largest, std::fabs(plain::number(given[static_cast<std::size_t>(
                                                (static_cast<std::int64_t>(row) * kv_heads + head) * width + d)])));
            whole = std::max(whole, largest);
            const bool last = head == kv_heads - 1;
            const bool alone = scale.head_stride != 0;
            const double factor = scale.at(slots[row] / page_size, slots[row] % page_size, head);
            const double fit = (alone ? largest : whole) / plain::largest<Kv>();
            if ((alone || last) && !(std::fabs(factor / fit - 1) <= 1e-6)) return false;
        }
    }
    return true;
}

template <class E, class Kv>
append_args<E, Kv> make_args(const std::vector<E>& k, const std::vector<E>& v, index_view slots, std::int64_t rows,
                             const kv_view<Kv>& cache) {
    append_args<E, Kv> args;
    args.k = dense_view(k.data(), rows, kv_heads, key_width);
    args.v = dense_view(v.data(), rows, kv_heads, value_width);
    args.slots = slots;
    args.cache = cache;
    return args;
}

const std::vector<std::int64_t> some_slots = {6, -1, 0, 19, 13, -1, 7, 12};

template <class E, class Kv>
void check_pair(scaling kind, page_order order) {
    std::mt19937 random(10);
    const auto rows = static_cast<std::int64_t>(some_slots.size());
    const auto k = random_values<E>(random, rows * kv_heads * key_width);
    const auto v = random_values<E>(random, rows * kv_heads * value_width, 3.0F);
    pool<Kv> to(order);
    set_scales(to, kind);
    cpu_backend backend({.threads = 2});
    backend.append(make_args(k, v, index_of(some_slots.data()), rows, to.view), {});
    CAPTURE(std::string(name_of(scalar_type_of<E>)));
    CAPTURE(std::string(name_of(scalar_type_of<Kv>)));
    CAPTURE(static_cast<int>(kind));
    CHECK(wrong_elements(k, some_slots, key_width, to.view.k, to.view.k_scale) == 0);
    CHECK(wrong_elements(v, some_slots, value_width, to.view.v, to.view.v_scale) == 0);
    CHECK(is_untouched(to.keys));
    CHECK(is_untouched(to.values));
    if (sizeof(Kv) == 1 && (kind == scaling::token || kind == scaling::token_and_head)) {
        CHECK(scales_fit<E, Kv>(k, some_slots, key_width, to.view.k_scale));
        CHECK(scales_fit<E, Kv>(v, some_slots, value_width, to.view.v_scale));
    }
}

template <class Kv>
void check_all_inputs(scaling kind, page_order order) {
    check_pair<float, Kv>(kind, order);
    check_pair<bf16, Kv>(kind, order);
    check_pair<f16, Kv>(kind, order);
}

} // namespace

TEST_CASE_TEMPLATE("Rows of any type read back from their slots, and no other byte changes", Kv, float, bf16, f16,
                   fp8_e4m3, fp8_e5m2) {
    for (const page_order order : {page_order::nhd, page_order::hnd})
        for (const scaling kind :
             {scaling::none, scaling::tensor, scaling::head, scaling::token, scaling::token_and_head})
            check_all_inputs<Kv>(kind, order);
}

TEST_CASE("Slots of 32 and 64 bits say the same, and -1 alone writes nothing") {
    std::mt19937 random(11);
    const auto k = random_values<bf16>(random, 3 * kv_heads * key_width);
    const auto v = random_values<bf16>(random, 3 * kv_heads * value_width);
    const std::vector<std::int32_t> narrow = {9, -1, 2};
    const std::vector<std::int64_t> wide = {9, -1, 2};
    const std::vector<std::int64_t> none = {-1, -1, -1};
    pool<bf16> a(page_order::nhd);
    pool<bf16> b(page_order::nhd);
    pool<bf16> c(page_order::nhd);
    cpu_backend backend;
    backend.append(make_args(k, v, index_of(narrow.data()), 3, a.view), {});
    backend.append(make_args(k, v, index_of(wide.data()), 3, b.view), {});
    backend.append(make_args(k, v, index_of(none.data()), 3, c.view), {});
    backend.append(make_args(k, v, index_of(wide.data()), 0, c.view), {}); // no rows at all
    CHECK(std::memcmp(a.keys.data(), b.keys.data(), a.keys.size() * sizeof(bf16)) == 0);
    CHECK(std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(bf16)) == 0);
    CHECK_FALSE(is_untouched(a.keys));
    CHECK(is_untouched(c.keys));
    CHECK(is_untouched(c.values));
}

TEST_CASE("Rows are read through their view, wherever they lie") {
    std::mt19937 random(12);
    const auto all = random_values<float>(random, 2 * 100); // two rows, 100 apart, heads 9 apart, V behind K
    pool<float> to(page_order::hnd);
    const std::vector<std::int64_t> slots = {3, 11};
    append_args<float, float> args;
    args.k = {all.data(), 2, kv_heads, key_width, kv_heads, 0, 100, 9};
    args.v = {all.data() + 40, 2, kv_heads, value_width, kv_heads, 0, 100, 9};
    args.slots = index_of(slots.data());
    args.cache = to.view;
    cpu_backend().append(args, {});
    int wrong = 0;
    for (std::size_t row = 0; row < 2; ++row)
        for (std::size_t head = 0; head < kv_heads; ++head) {
            const float* from = all.data() + row * 100 + head * 9;
            const auto h = static_cast<std::int64_t>(head);
            wrong += std::equal(from, from + key_width, to.view.key(slots[row], h)) ? 0 : 1;
            wrong += std::equal(from + 40, from + 40 + value_width, to.view.value(slots[row], h)) ? 0 : 1;
        }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("A latent row is the latent part and then the rope part, with one scale", Kv, bf16, fp8_e4m3) {
    std::mt19937 random(13);
    constexpr std::int64_t latent = 9;
    constexpr std::int64_t rope = 4;
    const auto c = random_values<bf16>(random, 2 * latent);
    auto r = random_values<bf16>(random, 2 * rope);
    r[5] = bf16(40.0F); // the largest of the second row lies in its rope part
    std::vector<Kv> memory(6 * 4 * (latent + rope), Kv(-1.0F));
    std::vector<float> scales(24, -1.0F);
    append_args<bf16, Kv> args;
    args.k = dense_view(static_cast<const bf16*>(c.data()), 2, 1, latent);
    args.v = dense_view(static_cast<const bf16*>(r.data()), 2, 1, rope);
    const std::vector<std::int64_t> slots = {17, 5};
    args.slots = index_of(slots.data());
    args.cache = latent_kv(memory.data(), 6, 4, latent, rope);
    args.values_in_keys = true;
    if (sizeof(Kv) == 1) args.cache.k_scale = args.cache.v_scale = per_token(scales.data(), 4, 1, 0);
    cpu_backend().append(args, {});
    int wrong = 0;
    for (std::size_t row = 0; row < 2; ++row) {
        const auto at = static_cast<std::size_t>(slots[row]);
        const double factor = sizeof(Kv) == 1 ? scales[at] : 1.0;
        for (std::size_t d = 0; d < latent + rope; ++d) {
            const double value = plain::number(d < latent ? c[row * latent + d] : r[row * rope + d - latent]);
            const double back = plain::number(memory[at * (latent + rope) + d]) * factor;
            const double bound = sizeof(Kv) == 1 ? plain::half_ulp<Kv>(value / factor) * factor * 1.001 : 0.0;
            if (!(std::fabs(back - value) <= bound)) ++wrong;
        }
    }
    CHECK(wrong == 0);
    CHECK(std::count_if(memory.begin(), memory.end(), [](Kv x) { return plain::number(x) == -1; }) >=
          22 * (latent + rope));
    if (sizeof(Kv) == 1) {
        CHECK(scales[5] == doctest::Approx(40.0 / 448));
        CHECK(std::count(scales.begin(), scales.end(), -1.0F) == 22);
    }
}

TEST_CASE_TEMPLATE("Rows of zeros, and rows that are not finite, are stored with scale 1", Kv, fp8_e4m3, fp8_e5m2,
                   f16) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float odd : {0.0F, -0.0F, inf, -inf, std::nanf("")}) {
        std::vector<float> k(kv_heads * key_width, odd == 0.0F ? odd : 0.5F);
        k[key_width + 2] = odd; // in the second head
        const std::vector<float> v(kv_heads * value_width, 0.0F);
        const std::vector<std::int64_t> slots = {8};
        pool<Kv> to(page_order::nhd);
        set_scales(to, scaling::token_and_head);
        cpu_backend().append(make_args(k, v, index_of(slots.data()), 1, to.view), {});
        CHECK(to.view.key_scale(8, 1) == 1.0F);
        CHECK(to.view.value_scale(8, 0) == 1.0F);
        const double back = plain::number(to.view.key(8, 1)[2]);
        if (std::isnan(odd)) {
            CHECK(std::isnan(back));
        } else if (std::isinf(odd) && sizeof(Kv) == 1) {
            CHECK(back == std::copysign(plain::largest<Kv>(), odd)); // 8-bit types saturate
        } else {
            CHECK(back == odd);
        }
    }
}
