// Rows written to a cache, and copied out of one, by the device kernels are those of the CPU backend, bit for bit.
#include <ctxpar/cuda.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

using namespace ctxpar;

namespace {

constexpr std::int64_t pages = 3, page_size = 4, heads = 3;

template <class T>
std::vector<T> any_numbers(std::size_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back(T(i % 17 == 3 ? 0.0F : 3.0F * normal(random)));
    return list;
}

// A cache with its own memory; NaN or whatever before.
template <class Kv>
struct pool {
    std::vector<Kv> keys, values;
    std::vector<float> scales;
    kv_view<Kv> view;

    pool(std::int64_t width, bool latent, scale_kind kind, bool shared)
        : keys(static_cast<std::size_t>(pages * page_size * heads * width)), values(keys.size()),
          scales(2 * pages * page_size * heads, 0.5F) {
        view = latent ? latent_kv(keys.data(), pages, page_size, width - 5, 5)
                      : nhd_kv(keys.data(), values.data(), pages, page_size, heads, width, width);
        const std::int64_t step = shared ? 1 : heads;
        if (kind == scale_kind::head) view.k_scale = view.v_scale = per_head(scales.data());
        if (kind != scale_kind::token) return;
        view.k_scale = per_token(scales.data(), page_size * step, step, shared ? 0 : 1);
        view.v_scale = per_token(scales.data() + pages * page_size * heads, page_size * step, step, shared ? 0 : 1);
    }
    bool operator==(const pool& other) const {
        const auto same = [](const auto& a, const auto& b) {
            return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
        };
        return same(keys, other.keys) && same(values, other.values) && same(scales, other.scales);
    }
};

template <class E, class Kv>
void check_cache(std::int64_t width, bool latent, scale_kind kind, bool shared) {
    const std::int64_t rows = 6;
    const std::int64_t kv_heads = latent ? 1 : heads;
    const std::int64_t k_width = latent ? width - 5 : width, v_width = latent ? 5 : width;
    const std::vector<E> k = any_numbers<E>(static_cast<std::size_t>(rows * kv_heads * k_width), 3);
    const std::vector<E> v = any_numbers<E>(static_cast<std::size_t>(rows * kv_heads * v_width), 5);
    const std::vector<std::int64_t> slots = {7, -1, 0, 11, 3, -1};
    pool<Kv> due(width, latent, kind, shared), got(width, latent, kind, shared);
    append_args<E, Kv> args;
    args.k = dense_view(k.data(), rows, kv_heads, k_width);
    args.v = dense_view(v.data(), rows, kv_heads, v_width);
    args.slots = index_of(slots.data());
    args.values_in_keys = latent;
    args.cache = due.view;
    cpu_backend cpu;
    cuda_backend device;
    cpu.append(args, {});
    args.cache = got.view;
    device.append(args, nullptr);
    CHECK(got == due);

    // Out again, as rows that travel, and as numbers.
    packed_row row{kv_heads, width, latent ? width - 5 : width, latent, kind == scale_kind::token};
    std::vector<Kv> due_rows(static_cast<std::size_t>(rows * row.bytes(sizeof(Kv))) / sizeof(Kv)),
        rows_got(due_rows.size());
    copy_kv_args<Kv, Kv> copy;
    copy.from = due.view;
    copy.slots = index_of(slots.data());
    copy.rows = rows;
    copy.values_in_keys = latent;
    copy.to = packed_kv(due_rows.data(), row, rows, 1);
    cpu.copy_kv(copy, {});
    copy.to = packed_kv(rows_got.data(), row, rows, 1);
    device.copy_kv(copy, nullptr);
    CHECK(std::memcmp(due_rows.data(), rows_got.data(), due_rows.size() * sizeof(Kv)) == 0);

    // And into a cache, by other slots.
    const std::vector<std::int64_t> places = {1, 4, -1, 0, 8, 10};
    pool<Kv> due_back(width, latent, kind, shared), back(width, latent, kind, shared);
    copy.slots = {};
    copy.to_slots = index_of(places.data());
    copy.from = packed_kv(due_rows.data(), row, rows, 1);
    if (shared) copy.from.k_scale.head_stride = copy.from.v_scale.head_stride = 0;
    copy.to = due_back.view;
    cpu.copy_kv(copy, {});
    copy.to = back.view;
    device.copy_kv(copy, nullptr);
    CHECK(back == due_back);

    row.token_scales = false;
    std::vector<E> due_numbers(static_cast<std::size_t>(rows * row.bytes(sizeof(E))) / sizeof(E)),
        numbers(due_numbers.size());
    copy_kv_args<Kv, E> widen;
    widen.from = due.view;
    widen.slots = index_of(slots.data());
    widen.rows = rows;
    widen.values_in_keys = latent;
    widen.dequantise = true;
    widen.to = packed_kv(due_numbers.data(), row, rows, 1);
    cpu.copy_kv(widen, {});
    widen.to = packed_kv(numbers.data(), row, rows, 1);
    device.copy_kv(widen, nullptr);
    CHECK(std::memcmp(due_numbers.data(), numbers.data(), numbers.size() * sizeof(E)) == 0);
}

} // namespace

TEST_CASE("rows are stored and copied as on the CPU, for all storage types, scales and kinds of rows") {
    for (const bool latent : {false, true}) {
        check_cache<bf16, bf16>(16, latent, scale_kind::tensor, false);
        check_cache<float, float>(33, latent, scale_kind::tensor, false);
        check_cache<bf16, fp8_e4m3>(40, latent, scale_kind::token, true);
        check_cache<bf16, fp8_e4m3>(40, latent, scale_kind::token, false);
        check_cache<float, fp8_e5m2>(24, latent, scale_kind::head, false);
        check_cache<f16, f16>(12, latent, scale_kind::tensor, false);
    }
}
