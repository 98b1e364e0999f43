// Copying cached rows on the CPU: out of a cache by slot, into packed rows as they travel, and back. Bits are kept
// where types are equal, and a dequantised value is the stored one times its scale.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include <support/plain_numbers.hpp>

#include <ctxpar/backend/cpu.hpp>

using namespace ctxpar;

namespace {

using numbers = std::vector<std::int64_t>;

constexpr std::int64_t pages = 4, page_size = 5, kv_heads = 3, key_width = 7, value_width = 4;
constexpr std::int64_t slots = pages * page_size;

enum class layout { nhd, hnd, joint, pointers, latent };
enum class scaling { tensor, head, token, token_and_head };
constexpr layout layouts[] = {layout::nhd, layout::hnd, layout::joint, layout::pointers, layout::latent};
constexpr scaling scalings[] = {scaling::tensor, scaling::head, scaling::token, scaling::token_and_head};

template <class T>
std::vector<T> random_bits(std::mt19937_64& random, std::size_t count) {
    std::vector<T> values(count);
    for (T& value : values) {
        const std::uint64_t bits = random();
        std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    }
    return values;
}

// A cache of any layout and scales, in memory of random bits. A latent one has one head and no values of its own.
template <class Kv>
struct cache {
    std::vector<Kv> memory;
    std::vector<void*> page_pointers;
    std::vector<float> scales;
    kv_view<Kv> view;

    cache(std::mt19937_64& random, layout form, scaling kind)
        : memory(random_bits<Kv>(random, static_cast<std::size_t>(slots * kv_heads * (key_width + value_width) + 8))) {
        Kv* const base = memory.data();
        Kv* const behind = base + slots * kv_heads * key_width;
        const page_order order = form == layout::hnd ? page_order::hnd : page_order::nhd;
        view = order == page_order::hnd ? hnd_kv(base, behind, pages, page_size, kv_heads, key_width, value_width)
                                        : nhd_kv(base, behind, pages, page_size, kv_heads, key_width, value_width);
        if (form == layout::joint)
            view = joint_kv(base, pages, page_size, kv_heads, key_width, value_width, page_order::hnd);
        if (form == layout::latent) view = latent_kv(base, pages, page_size, value_width, key_width - value_width);
        if (form == layout::pointers) view = by_pointers();
        for (int i = 0; i < 2 * slots * kv_heads; ++i)
            scales.push_back(std::ldexp(1.0F + static_cast<float>(i) / 256, static_cast<int>(random() % 9) - 4));
        view.k_scale = scale_of(kind, 0);
        view.v_scale = form == layout::latent ? view.k_scale : scale_of(kind, slots * kv_heads);
    }
    cache(const cache&) = delete;

    bool latent() const { return view.v.base == view.k.base && view.k.pages == nullptr; }

private:
    // Pages last to first, each its keys and then its values.
    kv_view<Kv> by_pointers() {
        const std::int64_t elements = page_size * kv_heads * (key_width + value_width);
        for (std::int64_t page = 0; page < pages; ++page)
            page_pointers.push_back(memory.data() + (pages - 1 - page) * elements);
        const auto bytes = static_cast<std::int64_t>(page_size * kv_heads * key_width * sizeof(Kv));
        return paged_pointers_kv<Kv>(page_pointers.data(), pages, 0, 0, bytes, page_size, kv_heads, key_width,
                                     value_width);
    }
    kv_scale scale_of(scaling kind, std::int64_t first) {
        float* const data = scales.data() + first;
        if (kind == scaling::tensor) return per_tensor(*data);
        if (kind == scaling::head) return per_head(data);
        if (kind == scaling::token) return per_token(data, page_size, 1, 0);
        return per_token(data, page_size * kv_heads, kv_heads, 1);
    }
};

// Rows as they travel, in memory of 0xA5.
template <class T>
struct packed {
    struct alignas(16) unit {
        std::byte bytes[16];
    };
    std::vector<unit> memory;
    packed_row row;
    kv_view<T> view;

    packed(const kv_view<T>& of, bool latent, bool token_scales, std::int64_t rows, std::int64_t rows_per_page = 1)
        : row{of.kv_heads, of.key_width, of.value_width, latent, token_scales} {
        memory.resize(static_cast<std::size_t>(rows * row.bytes(sizeof(T)) / 16));
        std::memset(static_cast<void*>(memory.data()), 0xA5, memory.size() * 16);
        view = packed_kv(reinterpret_cast<T*>(memory.data()), row, rows / rows_per_page, rows_per_page);
    }
};

// Slots in any order, some twice, and holes.
numbers random_slots(std::mt19937_64& random, std::int64_t rows) {
    numbers list;
    for (std::int64_t i = 0; i < rows; ++i) list.push_back(static_cast<std::int64_t>(random() % slots));
    list[1] = list[3];
    list[2] = list[5] = -1;
    return list;
}

template <class From, class To>
void copy(const kv_view<From>& from, const numbers* chosen, const kv_view<To>& to, std::int64_t rows, bool latent,
          bool dequantise = false) {
    copy_kv_args<std::remove_const_t<From>, To> args;
    args.from = from;
    if (chosen != nullptr) args.slots = index_of(chosen->data());
    args.to = to;
    args.rows = rows;
    args.values_in_keys = latent;
    args.dequantise = dequantise;
    cpu_backend({.threads = 2}).copy_kv(args, {});
}

template <class T>
bool is_zero(const T* vector, std::int64_t width) {
    const std::vector<T> zeros(static_cast<std::size_t>(width), T{});
    return std::memcmp(vector, zeros.data(), zeros.size() * sizeof(T)) == 0;
}

// Vectors of `to` that are not those of the slots, bit for bit.
template <class T>
int wrong_vectors(const kv_view<T>& from, const numbers& chosen, const kv_view<T>& to) {
    int wrong = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i)
        for (std::int64_t head = 0; head < to.kv_heads; ++head) {
            const auto row = static_cast<std::int64_t>(i);
            const bool hole = chosen[i] < 0;
            const auto same = [&](const T* source, const T* target, std::int64_t width) {
                if (hole) return is_zero(target, width);
                return std::memcmp(source, target, static_cast<std::size_t>(width) * sizeof(T)) == 0;
            };
            const std::int64_t slot = hole ? 0 : chosen[i];
            wrong += same(from.key(slot, head), to.key(row, head), to.key_width) ? 0 : 1;
            wrong += same(from.value(slot, head), to.value(row, head), to.value_width) ? 0 : 1;
        }
    return wrong;
}

// Scales of `to`, which has one a token and head, that are not the factors of the slots; 0 for holes.
template <class T>
int wrong_scales(const kv_view<T>& from, const numbers& chosen, const kv_view<T>& to) {
    int wrong = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i)
        for (std::int64_t head = 0; head < to.kv_heads; ++head) {
            const auto row = static_cast<std::int64_t>(i);
            const std::int64_t slot = chosen[i];
            wrong += to.key_scale(row, head) == (slot < 0 ? 0.0F : from.key_scale(slot, head)) ? 0 : 1;
            wrong += to.value_scale(row, head) == (slot < 0 ? 0.0F : from.value_scale(slot, head)) ? 0 : 1;
        }
    return wrong;
}

// Whether a number of type To is `value` rounded to it.
template <class To>
bool is_rounded(double got, double value) {
    if (std::isnan(value)) return std::isnan(got);
    if (std::isinf(got)) return std::fabs(value) > plain::largest<To>() && std::signbit(got) == std::signbit(value);
    return std::fabs(got - value) <= plain::half_ulp<To>(value) * (1 + 1e-4);
}

template <class To, class From>
int wrong_values(const kv_view<From>& from, const numbers& chosen, const kv_view<To>& to, bool latent) {
    int wrong = 0;
    const auto check = [&](const From* source, double factor, const To* target, std::int64_t width) {
        for (std::int64_t d = 0; d < width; ++d) {
            const double got = plain::number(target[d]);
            if (source == nullptr) {
                wrong += got == 0 ? 0 : 1;
                continue;
            }
            wrong += is_rounded<To>(got, plain::number(source[d]) * factor) ? 0 : 1;
        }
    };
    for (std::size_t i = 0; i < chosen.size(); ++i)
        for (std::int64_t head = 0; head < to.kv_heads; ++head) {
            const auto row = static_cast<std::int64_t>(i);
            const std::int64_t slot = chosen[i];
            const bool hole = slot < 0;
            check(hole ? nullptr : from.key(slot, head), hole ? 0.0 : from.key_scale(slot, head), to.key(row, head),
                  to.key_width);
            if (latent) continue;
            check(hole ? nullptr : from.value(slot, head), hole ? 0.0 : from.value_scale(slot, head),
                  to.value(row, head), to.value_width);
        }
    return wrong;
}

template <class Body>
void for_each_cache(Body body) {
    for (const layout form : layouts)
        for (const scaling kind : scalings) body(form, kind);
}

} // namespace

TEST_CASE_TEMPLATE("Copied rows keep their bits, NaN payloads too, and each token's scales", Kv, float, bf16, f16,
                   fp8_e4m3, fp8_e5m2) {
    std::mt19937_64 random(41);
    for_each_cache([&](layout form, scaling kind) {
        const cache<Kv> from(random, form, kind);
        for (const bool token_scales : {false, true}) {
            const numbers chosen = random_slots(random, 12);
            packed<Kv> to(from.view, from.latent(), token_scales, 12);
            copy(from.view, &chosen, to.view, 12, from.latent());
            CAPTURE(static_cast<int>(form));
            CAPTURE(static_cast<int>(kind));
            CHECK(wrong_vectors(from.view, chosen, to.view) == 0);
            if (token_scales) CHECK(wrong_scales(from.view, chosen, to.view) == 0);
        }
    });
}

TEST_CASE("A copy writes the rows' elements and scales, and no other byte") {
    std::mt19937_64 random(42);
    for_each_cache([&](layout form, scaling kind) {
        const cache<fp8_e4m3> from(random, form, kind);
        for (const bool token_scales : {false, true}) {
            const numbers chosen = random_slots(random, 8);
            packed<fp8_e4m3> to(from.view, from.latent(), token_scales, 8);
            const auto touched = [&] {
                std::vector<bool> mine(to.memory.size() * 16, false);
                const auto* first = reinterpret_cast<const std::byte*>(to.memory.data());
                const auto note = [&](const void* start, std::size_t bytes) {
                    const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(start) - first);
                    std::fill_n(mine.begin() + static_cast<std::ptrdiff_t>(at), bytes, true);
                };
                for (std::int64_t row = 0; row < 8; ++row)
                    for (std::int64_t head = 0; head < to.view.kv_heads; ++head) {
                        note(to.view.key(row, head), static_cast<std::size_t>(to.view.key_width));
                        note(to.view.value(row, head), static_cast<std::size_t>(to.view.value_width));
                        if (!token_scales) continue;
                        note(to.view.k_scale.data + to.view.k_scale.offset(row, 0, head), sizeof(float));
                        note(to.view.v_scale.data + to.view.v_scale.offset(row, 0, head), sizeof(float));
                    }
                return mine;
            }();
            copy(from.view, &chosen, to.view, 8, from.latent());
            const auto* bytes = reinterpret_cast<const std::byte*>(to.memory.data());
            int changed = 0;
            for (std::size_t i = 0; i < touched.size(); ++i)
                changed += !touched[i] && bytes[i] != std::byte{0xA5} ? 1 : 0;
            CHECK(changed == 0);
        }
    });
}

TEST_CASE("Scales per tensor and per head are not written: they belong to more than the row") {
    std::mt19937_64 random(43);
    for (const scaling kind : {scaling::tensor, scaling::head}) {
        const cache<fp8_e4m3> from(random, layout::nhd, scaling::token_and_head);
        cache<fp8_e4m3> to(random, layout::hnd, kind);
        const std::vector<float> before = to.scales;
        const float uniform = to.view.k_scale.uniform;
        const numbers chosen = random_slots(random, 12);
        copy(from.view, &chosen, to.view, 12, false);
        CHECK(to.scales == before);
        CHECK(to.view.k_scale.uniform == uniform);
        CHECK(wrong_vectors(from.view, chosen, to.view) == 0);
    }
}

TEST_CASE_TEMPLATE("Rows that were packed and copied back are the cache that they came from", Kv, bf16, fp8_e5m2) {
    std::mt19937_64 random(44);
    for_each_cache([&](layout form, scaling kind) {
        const cache<Kv> from(random, form, kind);
        const bool own_scales = kind == scaling::token || kind == scaling::token_and_head;
        numbers order(slots), inverse(slots);
        for (std::size_t i = 0; i < slots; ++i) order[i] = static_cast<std::int64_t>(i);
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t i = 0; i < slots; ++i)
            inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
        for (const std::int64_t rows_per_page : {1, 4}) { // a packed row is found by its slot, whatever the pages
            packed<Kv> travelling(from.view, from.latent(), own_scales, slots, rows_per_page);
            cache<Kv> back(random, form, kind);
            copy(from.view, &order, travelling.view, slots, from.latent());
            copy(travelling.view, &inverse, back.view, slots, from.latent());
            numbers all(slots);
            for (std::size_t i = 0; i < slots; ++i) all[i] = static_cast<std::int64_t>(i);
            CHECK(wrong_vectors(from.view, all, back.view) == 0);
            if (own_scales) CHECK(wrong_scales(from.view, all, back.view) == 0);
        }
    });
}

TEST_CASE_TEMPLATE("Rows go to the slots that they are given, or nowhere", Kv, bf16, fp8_e4m3) {
    std::mt19937_64 random(48);
    for_each_cache([&](layout form, scaling kind) {
        const cache<Kv> from(random, form, kind);
        cache<Kv> to(random, form, kind);
        const std::vector<Kv> before = to.memory;
        const std::vector<float> scales_before = to.scales;
        const numbers taken = {4, 17, 9, -1, 2, 11}, places = {13, 0, -1, 7, 19, 1};
        copy_kv_args<Kv, Kv> args;
        args.from = from.view;
        args.slots = index_of(taken.data());
        args.to = to.view;
        args.to_slots = index_of(places.data());
        args.rows = 6;
        args.values_in_keys = from.latent();
        cpu_backend({.threads = 2}).copy_kv(args, {});
        // Slot by slot: what should have come there, and what was there before.
        cache<Kv> due(random, form, kind);
        due.memory = before;
        due.scales = scales_before;
        const bool own_scales = kind == scaling::token || kind == scaling::token_and_head;
        for (std::size_t i = 0; i < places.size(); ++i) {
            if (places[i] < 0) continue;
            for (std::int64_t head = 0; head < due.view.kv_heads; ++head) {
                const auto put = [&](const Kv* source, Kv* target, std::int64_t width) {
                    for (std::int64_t d = 0; d < width; ++d) target[d] = taken[i] < 0 ? Kv{} : source[d];
                };
                const std::int64_t slot = taken[i] < 0 ? 0 : taken[i];
                put(from.view.key(slot, head), due.view.key(places[i], head), key_width);
                put(from.view.value(slot, head), due.view.value(places[i], head), value_width);
                if (!own_scales) continue;
                const std::int64_t page = due.view.page_of(places[i]), token = due.view.token_of(places[i]);
                due.view.k_scale.data[due.view.k_scale.offset(page, token, head)] =
                    taken[i] < 0 ? 0.0F : from.view.key_scale(slot, head);
                due.view.v_scale.data[due.view.v_scale.offset(page, token, head)] =
                    taken[i] < 0 ? 0.0F : from.view.value_scale(slot, head);
            }
        }
        CAPTURE(static_cast<int>(form));
        CAPTURE(static_cast<int>(kind));
        CHECK(std::memcmp(to.memory.data(), due.memory.data(), before.size() * sizeof(Kv)) == 0);
        CHECK(to.scales == due.scales);
    });
}

TEST_CASE("Without slots row i is slot i") {
    std::mt19937_64 random(45);
    for_each_cache([&](layout form, scaling kind) {
        const cache<f16> from(random, form, kind);
        numbers all(9);
        for (std::size_t i = 0; i < 9; ++i) all[i] = static_cast<std::int64_t>(i);
        packed<f16> to(from.view, from.latent(), true, 10);
        copy(from.view, nullptr, to.view, 9, from.latent());
        CHECK(wrong_vectors(from.view, all, to.view) == 0);
        CHECK(wrong_scales(from.view, all, to.view) == 0);
        CHECK(*reinterpret_cast<const std::uint16_t*>(to.view.key(9, 0)) == 0xA5A5); // rows past the last stay
    });
}

TEST_CASE("The latent row of MLA is one vector, with its value inside and one scale") {
    std::mt19937_64 random(46);
    const cache<fp8_e4m3> from(random, layout::latent, scaling::token);
    packed<fp8_e4m3> to(from.view, true, true, 6);
    CHECK(to.row.bytes(1) == 16); // 7 elements, and a scale at 8
    const numbers chosen = random_slots(random, 6);
    copy(from.view, &chosen, to.view, 6, true);
    for (std::int64_t row = 0; row < 6; ++row) {
        CHECK(to.view.value(row, 0) == to.view.key(row, 0));
        CHECK(to.view.value_scale(row, 0) == to.view.key_scale(row, 0));
    }
    CHECK(wrong_vectors(from.view, chosen, to.view) == 0);
    CHECK(wrong_scales(from.view, chosen, to.view) == 0);
}

TEST_CASE_TEMPLATE("Dequantised rows are what is stored times its scale", From, fp8_e4m3, fp8_e5m2, f16, bf16) {
    std::mt19937_64 random(47);
    for_each_cache([&](layout form, scaling kind) {
        const cache<From> from(random, form, kind);
        const numbers chosen = random_slots(random, 14);
        const auto check = [&](auto zero) {
            using To = decltype(zero);
            kv_view<To> shape;
            shape.kv_heads = from.view.kv_heads;
            shape.key_width = key_width;
            shape.value_width = value_width;
            packed<To> to(shape, from.latent(), false, 14);
            copy(from.view, &chosen, to.view, 14, from.latent(), true);
            CHECK(wrong_values(from.view, chosen, to.view, from.latent()) == 0);
        };
        check(float{});
        check(bf16{});
        check(f16{});
    });
}
