// Decode with head widths as models have them, the ones for which devices have kernels of their own: every width with
// every type of cache, ratio of heads and number of ranks, lengths at the edges of tiles, and many rows a request.
#include "../decode/runs.hpp"

using namespace ctxpar_test;

namespace {

struct head_widths {
    std::int64_t key;
    std::int64_t value;
};

// Those that tiles have, smaller ones that tiles are padded for, and different ones of keys and values.
constexpr head_widths all_widths[] = {{64, 64}, {96, 96}, {128, 128}, {192, 192}, {256, 256},
                                      {16, 16}, {80, 80}, {192, 128}, {64, 128},  {136, 40}};

deployment drawn_for(const head_widths& widths, std::uint64_t seed) {
    random_numbers random(seed);
    deployment d;
    d.key_width = widths.key;
    d.value_width = widths.value;
    d.kv_heads = random.one_of({1, 1, 2});
    d.sizes.tp = d.sizes.dcp = d.kv_heads == 1 ? random.one_of({1, 2, 3, 4}) : 1;
    if (d.kv_heads == 2) d.sizes.pcp = d.sizes.dcp = random.one_of({1, 2, 3});
    d.q_heads = d.kv_heads * d.world() * random.one_of({1, 3, 4});
    d.interleave = random.one_of({1, 2, 16});
    d.block_size = random.one_of({4, 16, 64});
    d.merge = random.one_of({merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a});
    d.layout = random.one_of({pool_layout::nhd, pool_layout::hnd, pool_layout::joint_nhd, pool_layout::stacked_hnd,
                              pool_layout::page_pointers, pool_layout::gaps});
    d.strided_views = random.one_of({false, true});
    d.bounds_plan = random.one_of({false, true});
    d.sinks = random.one_of({false, false, true});
    d.soft_cap = random.one_of({0.0F, 0.0F, 10.0F});
    d.mask.window = random.one_of({0, 40});
    d.requests = {{70, 2}, {0}, {129, 1}, {33, 3}, {1}};
    d.seed = seed;
    return d;
}

} // namespace

TEST_CASE("caches of every type are read at every width that models have") {
    std::uint64_t seed = 1;
    for (const head_widths& widths : all_widths) {
        for (const scalar_type type : {scalar_type::bf16, scalar_type::f16, scalar_type::e4m3, scalar_type::e5m2}) {
            deployment d = drawn_for(widths, seed++);
            d.kv_element = type;
            if (type == scalar_type::f16) d.element = d.output = type;
            if (type == scalar_type::e4m3 || type == scalar_type::e5m2) d.scales = static_cast<scale_choice>(seed % 5);
            check_always(d);
        }
    }
}

TEST_CASE("partials in a narrow type keep to their roundings at every width that models have") {
    std::uint64_t seed = 101;
    for (const head_widths& widths : all_widths) {
        deployment d = drawn_for(widths, seed++);
        d.partials = partial::output;
        d.output = seed % 2 == 0 ? scalar_type::bf16 : scalar_type::f32;
        check_always(d);
    }
}

TEST_CASE("lengths, windows and prefixes at the edges of tiles are exact") {
    std::uint64_t seed = 201;
    for (const std::int64_t edge : {16, 32, 64, 128}) {
        for (const std::int64_t window : {std::int64_t{0}, edge - 1, edge, edge + 1}) {
            deployment d = drawn_for({64, 64}, seed++);
            d.mask.window = window;
            d.mask.prefix = window == edge ? edge : 0;
            d.requests = {{edge - 1}, {edge}, {edge + 1, 2}, {2 * edge, 2}, {2 * edge + 1}, {3 * edge - 1, 4}};
            check_always(d);
        }
    }
}

TEST_CASE("many rows of a request, as a sequence and as a tree, are exact") {
    std::uint64_t seed = 301;
    for (const head_widths& widths : {head_widths{64, 64}, head_widths{128, 128}, head_widths{96, 96}}) {
        for (const bool tree : {false, true}) {
            deployment d = drawn_for(widths, seed++);
            d.tree = tree;
            d.requests = {{90, 64}, {17, 17}, {70, 33}, {40, 1}};
            check_always(d);
        }
    }
}

TEST_CASE("latent rows of 512 and 64 are exact for any number of ranks, heads and rows") {
    std::uint64_t seed = 401;
    for (const std::int64_t n : {1, 2, 3, 4}) {
        for (const scalar_type type : {scalar_type::bf16, scalar_type::e4m3}) {
            deployment d = drawn_for({576, 512}, seed++);
            d.is_mla = true;
            d.kv_heads = 1;
            d.sizes = {n, 1, n, 1, 1, 1};
            d.q_heads = n * (n == 1 ? 40 : 8);
            d.kv_element = type;
            d.scales = type == scalar_type::bf16 ? scale_choice::none
                                                 : (n % 2 == 0 ? scale_choice::token : scale_choice::tensor);
            d.requests = {{41, 1}, {66, 4}, {3, 2}};
            check_always(d);
        }
    }
}

TEST_CASE("several splits of a sequence are exact") {
    std::uint64_t seed = 501;
    for (const head_widths& widths : {head_widths{64, 64}, head_widths{128, 128}}) {
        deployment d = drawn_for(widths, seed++);
        d.kv_heads = 1;
        d.sizes = {1, 1, 1, 1, 1, 1};
        d.q_heads = 2;
        d.max_splits = 4;
        d.requests = {{9'000}, {40, 2}};
        check_always(d);
    }
}
