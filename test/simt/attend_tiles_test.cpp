// Attention by matrix units against a sum in double, over pages, masks, splits and element types.
#include <ctxpar/backend/cuda/attend_items.cuh>
#include <ctxpar/backend/cuda/attend_splits.cuh>
#include <ctxpar/backend/cuda/attend_tiles.cuh>
#include <ctxpar/backend/cuda/tuning.hpp>

#include <doctest/doctest.h>

#include <cstdint>

#include "attend_setting.hpp"
#include "kernels.hpp"

using namespace ctxpar;
using namespace attend_setting;

namespace {

template <class Tiles, class Q, class Kv>
distances run_tiles(const problem& p, simt::thread_order order, std::uint64_t seed, int stages = 2) {
    setting<Q, Kv> s(p);
    using layout = cuda::tile_layout<Tiles, Q, Kv>;
    const auto shared = static_cast<std::size_t>(layout::stages + stages * layout::stage_bytes);
    simt::launch({3, static_cast<unsigned>(Tiles::shape.threads()), shared, order, seed},
                 cuda::attend_tiles_kernel<Tiles, Q, Kv>, cuda::attend_call_of(s.args()), stages);
    if (p.max_splits > 1)
        simt::launch({2, 64, 0, order, seed}, cuda::combine_splits_kernel<Q>,
                     cuda::splits_call_of(cuda::attend_call_of(s.args())));
    return distance(s);
}

template <int Width, bool Many, class Q, class Kv>
void check_tiles(const problem& p, int stages = 2) {
    constexpr bool halves = std::is_same_v<Kv, f16>;
    using exact = cuda::tiles<Width, Width, false, Many, halves ? 2 : 3>;
    // Some faults only show where one warp runs far ahead of the others.
    const auto order = p.seed % 2 == 0 ? simt::thread_order::one_warp : simt::thread_order::any;
    const distances far = run_tiles<exact, Q, Kv>(p, order, p.seed, stages);
    CHECK(far.out <= 2e-6);
    CHECK(far.lse <= 2e-6);
}

} // namespace

TEST_CASE("rows of requests of any length, none among them") {
    problem p;
    p.requests = {{200, 1}, {64, 1}, {0, 1}, {1, 1}, {63, 1}, {63, 2}, {65, 3}};
    p.group = 4;
    check_tiles<64, false, bf16, bf16>(p);
    check_tiles<64, false, f16, f16>(p);
    check_tiles<64, true, bf16, bf16>(p);
}

TEST_CASE("every head size, also one that is less than its tile's") {
    problem p;
    p.requests = {{150, 2}, {40, 1}};
    p.kv_heads = 2;
    p.group = 3;
    p.key_width = p.value_width = 96;
    check_tiles<96, false, bf16, bf16>(p);
    check_tiles<96, true, f16, f16>(p);
    check_tiles<128, false, bf16, bf16>(p);
    p.key_width = 72;
    p.value_width = 40;
    check_tiles<96, false, bf16, bf16>(p);
    p.key_width = p.value_width = 192;
    check_tiles<192, false, bf16, bf16>(p);
    check_tiles<192, true, bf16, bf16>(p);
    p.key_width = p.value_width = 256;
    check_tiles<256, false, f16, f16>(p);
    check_tiles<256, true, bf16, bf16>(p);
}

TEST_CASE("values that are a part of the keys, with 576 and 512 elements") {
    problem p;
    p.requests = {{90, 1}, {33, 2}};
    p.group = 20;
    p.key_width = 576;
    p.value_width = 512;
    p.shared_values = true;
    for (const bool scales : {false, true}) {
        p.token_scales = scales;
        using few = cuda::tiles<576, 512, true, false, 3>;
        using many = cuda::tiles<576, 512, true, true, 3>;
        const distances far[] = {run_tiles<few, bf16, bf16>(p, simt::thread_order::any, 1),
                                 run_tiles<many, bf16, bf16>(p, simt::thread_order::one_warp, 2),
                                 run_tiles<few, bf16, fp8_e4m3>(p, simt::thread_order::one_warp, 3),
                                 run_tiles<many, f16, fp8_e4m3>(p, simt::thread_order::any, 4)};
        for (const distances& each : far) {
            CHECK(each.out <= 2e-6);
            CHECK(each.lse <= 2e-6);
        }
    }
}

TEST_CASE("windows, chunks, prefixes and draft trees; keys that no row sees are not read") {
    for (int kind = 0; kind < 5; ++kind) {
        problem p;
        p.requests = {{230, 9}, {5, 5}, {140, 20}, {3, 6}};
        p.group = 5;
        p.seed = static_cast<std::uint64_t>(kind + 1);
        if (kind == 1 || kind == 2) p.rule.window = 50;
        if (kind == 2) p.rule.prefix = 7;
        if (kind == 3) p.rule.chunk = 48;
        if (kind == 4) p.tree = true;
        check_tiles<64, false, bf16, bf16>(p, 3);
        check_tiles<64, true, bf16, bf16>(p, 2);
        check_tiles<64, true, f16, f16>(p, 4);
    }
}

TEST_CASE("rows of filling see nothing, and change nothing for others") {
    problem p;
    p.requests = {{57, 12}, {80, 3}, {9, 1}};
    p.group = 2;
    p.filled = true;
    for (const std::int64_t prefix : {0, 11, 40}) {
        p.rule.prefix = prefix;
        p.rule.window = prefix > 0 ? 27 : 0;
        check_tiles<64, true, bf16, bf16>(p);
        check_tiles<64, false, f16, f16>(p);
    }
}

TEST_CASE("8-bit caches, with a scale for every token, and a soft cap") {
    problem p;
    p.requests = {{130, 1}, {70, 17}};
    p.group = 6;
    p.key_width = p.value_width = 128;
    for (const bool scales : {false, true}) {
        p.token_scales = scales;
        p.cap = scales ? 20.0F : 0.0F;
        p.seed = scales ? 2 : 1;
        check_tiles<128, false, bf16, fp8_e4m3>(p);
        check_tiles<128, false, f16, fp8_e5m2>(p, 3);
        check_tiles<128, true, bf16, fp8_e5m2>(p);
        check_tiles<128, true, f16, fp8_e4m3>(p);
        check_tiles<128, true, bf16, bf16>(p);
        check_tiles<128, false, f16, f16>(p);
    }
}

TEST_CASE("keys split among blocks") {
    problem p;
    p.requests = {{2500, 1}, {900, 2}, {1500, 1}};
    p.group = 2;
    p.split_tokens = 1024;
    p.max_splits = 3;
    check_tiles<64, false, bf16, bf16>(p);
    p.rule.window = 1200;
    p.rule.prefix = 10;
    check_tiles<64, false, f16, f16>(p, 3);
}

TEST_CASE("blocks beyond the range of 32 bits") {
    problem p;
    p.requests = {{100, 1}};
    p.group = 2;
    p.first_block = std::int64_t{1} << 33;
    check_tiles<64, false, bf16, bf16>(p);
    p.first_block = (std::int64_t{1} << 31) - 3;
    check_tiles<64, true, bf16, bf16>(p);
}

TEST_CASE("every order of threads gives the same bits") {
    problem p;
    p.requests = {{100, 4}, {75, 1}};
    p.group = 8;
    p.rule.window = 60;
    using few = cuda::tiles<64, 64, false, false, 3>;
    using many = cuda::tiles<64, 64, false, true, 3>;
    const distances first[] = {run_tiles<few, bf16, bf16>(p, simt::thread_order::first_in, 1),
                               run_tiles<many, bf16, bf16>(p, simt::thread_order::first_in, 1, 3)};
    CHECK(first[0].out <= 2e-6);
    CHECK(first[1].out <= 2e-6);
    simt::in_all_orders([&](simt::thread_order order, std::uint64_t seed) {
        CHECK(run_tiles<few, bf16, bf16>(p, order, seed).out == first[0].out);
        CHECK(run_tiles<many, bf16, bf16>(p, order, seed, 3).out == first[1].out);
    });
}

TEST_CASE("probabilities rounded to the values' type cost what the type says") {
    problem p;
    p.requests = {{300, 1}, {200, 3}};
    p.group = 4;
    using shape = cuda::tiles<64, 64, false, false, 1>;
    const distances wide = run_tiles<shape, bf16, bf16>(p, simt::thread_order::any, 1);
    CHECK(wide.out <= 4e-3);
    CHECK(wide.out > 2e-5);
    CHECK(wide.lse <= 2e-6);
    const distances halves = run_tiles<shape, f16, f16>(p, simt::thread_order::any, 1);
    CHECK(halves.out <= 5e-4);
    CHECK(halves.lse <= 2e-6);
}

TEST_CASE("every visible byte is read once") {
    problem p;
    p.requests = {{1000, 1}, {700, 1}};
    p.kv_heads = 2;
    p.group = 8;
    p.key_width = p.value_width = 128;
    simt::counters() = {};
    using shape = cuda::tiles<128, 128, false, false, 3>;
    (void)run_tiles<shape, bf16, bf16>(p, simt::thread_order::any, 1);
    const double cached = 1700.0 * 2 * 2 * 128 * 2;
    CHECK(static_cast<double>(simt::counters().bytes_read) >= cached);
    CHECK(static_cast<double>(simt::counters().bytes_read) <= 1.03 * cached);
}
