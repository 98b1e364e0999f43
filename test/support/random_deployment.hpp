// A deployment drawn at random from all that is legal and small.
#pragma once

#include <cstdint>
#include <numeric>

#include "deployment.hpp"
#include "instruction_sets.hpp"

namespace ctxpar_test {

namespace detail {

inline void draw_model(deployment& d, random_numbers& random) {
    d.is_mla = random.below(4) == 0;
    d.value_width = random.below(3) == 0 ? random.one_of({1, 5, 64, 128}) : 1 + random.below(40);
    d.key_width = d.is_mla ? d.value_width + 1 + random.below(20) : (random.below(2) == 0 ? d.value_width : 16);
    const std::int64_t kind = random.below(d.is_mla ? 3 : 9);
    if (d.is_mla) {
        if (kind == 0) d.kv_element = scalar_type::e4m3;
        if (kind == 1) d.output = scalar_type::bf16;
    } else if (kind <= 1) {
        d.kv_element = kind == 0 ? scalar_type::e4m3 : scalar_type::e5m2;
    } else if (kind == 2) {
        d.element = d.kv_element = scalar_type::f32;
    } else if (kind == 3 || kind == 4) {
        d.element = d.kv_element = d.output = scalar_type::f16;
        d.partials = kind == 3 ? partial::output : partial::fp32;
    } else if (kind == 5) {
        d.partials = partial::output;
        d.output = random.one_of({scalar_type::f32, scalar_type::bf16});
    } else if (kind == 6) {
        d.output = scalar_type::bf16;
    } else if (kind == 7) {
        d.lse = lse_base::binary;
    }
    const bool can_scale = d.kv_element == scalar_type::e4m3 || d.kv_element == scalar_type::e5m2;
    if (can_scale || random.below(4) == 0)
        d.scales = random.one_of({scale_choice::none, scale_choice::tensor, scale_choice::head, scale_choice::token,
                                  scale_choice::shared_token});
}

inline void draw_ranks(deployment& d, random_numbers& random) {
    const attention_kind kind = d.is_mla ? attention_kind::mla : attention_kind::gqa;
    std::vector<std::int64_t> legal;
    while (legal.empty() || d.world() > 12) {
        d.sizes.tp = 1 + random.below(4);
        d.sizes.pcp = 1 + random.below(4);
        d.kv_heads = d.is_mla ? 1 : random.one_of({1, 1, 2, 4});
        d.q_heads = std::lcm(d.sizes.tp, d.kv_heads) * (1 + random.below(8));
        legal = legal_dcp(d.sizes, {kind, d.q_heads, d.kv_heads});
    }
    // Large groups more often than small ones.
    const auto count = static_cast<std::int64_t>(legal.size());
    d.sizes.dcp = legal[static_cast<std::size_t>(std::max(random.below(count), random.below(count)))];
    d.merge = random.one_of({merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a});
    d.placement =
        random.one_of({output_placement::own_heads, output_placement::scattered, output_placement::all_heads});
    if (!mesh(d.sizes, {kind, d.q_heads, d.kv_heads}).scatters_heads() && d.sizes.dcp > 1) {
        d.merge = merge_kind::ag_ar;
        d.placement = random.one_of({output_placement::own_heads, output_placement::all_heads});
    }
    if (random.below(5) == 0) {
        d.merge = merge_kind::deferred;
        d.placement = output_placement::partial_sums;
    }
    d.replicated_q = random.below(3) == 0;
    d.interleave = random.one_of({1, 1, 2, 3, 4, 5, 16, 64});
}

inline void draw_step(deployment& d, random_numbers& random) {
    d.tree = random.below(5) == 0;
    const std::int64_t count = 1 + random.below(5);
    for (std::int64_t i = 0; i < count; ++i) {
        request each;
        each.length = random.below(4) == 0 ? random.below(5) : random.below(random.below(6) == 0 ? 5'000 : 300);
        each.rows = d.tree ? random.below(random.below(4) == 0 ? 65 : 9) : random.below(6);
        d.requests.push_back(each);
    }
    if (random.below(3) == 0) d.mask.window = 1 + random.below(120);
    if (random.below(5) == 0) d.mask.chunk = 1 + random.below(90);
    if (random.below(5) == 0) d.mask.prefix = random.below(40);
    d.sinks = random.below(4) == 0;
    if (random.below(5) == 0) d.soft_cap = 6.0F + static_cast<float>(random.below(10));
    if (random.below(3) == 0) d.softmax_scale = 0.125F;
    d.bounds_plan = random.below(3) == 0;
    if (d.bounds_plan && !d.sinks) d.pad_rows = random.below(3);
    d.merged_lse = random.below(4) != 0;
}

inline void draw_cache(deployment& d, random_numbers& random) {
    d.block_size = random.one_of({1, 2, 4, 7, 16, 64});
    d.page_size = random.below(3) == 0 ? random.one_of({1, 3, 8, 32}) : 0;
    d.layout = static_cast<pool_layout>(random.below(9));
    d.table = static_cast<table_form>(random.below(4));
    if (d.layout == pool_layout::contiguous) {
        d.block_size = (d.longest() / (d.sizes.dcp * d.interleave) + 1) * d.interleave; // no rank holds more
        d.page_size = 0;
    }
}

} // namespace detail

inline deployment random_deployment(std::uint64_t seed) {
    random_numbers random(seed);
    deployment d;
    d.seed = seed;
    detail::draw_model(d, random);
    detail::draw_ranks(d, random);
    detail::draw_step(d, random);
    detail::draw_cache(d, random);
    d.strided_views = random.below(2) == 0;
    d.threads = 1 + random.below(2);
    d.instructions = any_instruction_set(random);
    d.max_splits = random.one_of({1, 2, 8});
    return d;
}

} // namespace ctxpar_test
