// A deployment with prefills drawn at random from all that is legal, small and compiled for these tests.
#pragma once

#include <cstdint>
#include <numeric>

#include "instruction_sets.hpp"
#include "prefill_deployment.hpp"

namespace ctxpar_test {

namespace detail {

inline void draw_prefill_model(prefill_deployment& d, random_numbers& random) {
    d.is_mla = random.below(3) == 0;
    // An error is measured against the whole output, which must not be a few numbers that happen to be small.
    d.value_width = random.below(3) == 0 ? random.one_of({4, 5, 64}) : 4 + random.below(40);
    d.key_width = d.is_mla ? d.value_width + 1 + random.below(20) : (random.below(2) == 0 ? d.value_width : 16);
    const std::int64_t kind = random.below(d.is_mla ? 3 : 6);
    if (kind == 0) {
        d.kv_element = scalar_type::e4m3;
    } else if (d.is_mla && kind == 1) {
        d.element = d.kv_element = scalar_type::f32;
    } else if (kind == 3 || kind == 4) {
        d.partials = kind == 3 ? partial::output : partial::fp32;
        d.output = random.one_of({scalar_type::f32, scalar_type::bf16});
    } else if (kind == 5) {
        d.lse = lse_base::binary;
    }
    if (d.is_mla && random.below(2) == 0) {
        d.nope_width = 1 + random.below(24);
        d.projected_value_width = 1 + random.below(24);
    }
    if (d.kv_element == scalar_type::e4m3 || (random.below(4) == 0 && d.element == scalar_type::bf16))
        d.scales = random.one_of({scale_choice::none, scale_choice::tensor, scale_choice::head, scale_choice::token,
                                  scale_choice::shared_token});
}

inline void draw_prefill_ranks(prefill_deployment& d, random_numbers& random) {
    const attention_kind kind = d.is_mla ? attention_kind::mla : attention_kind::gqa;
    std::vector<std::int64_t> legal;
    while (legal.empty() || d.world() > 8) {
        d.sizes.tp = 1 + random.below(4);
        d.sizes.pcp = 1 + random.below(4);
        d.kv_heads = d.is_mla ? 1 : random.one_of({1, 1, 2, 4});
        d.q_heads = std::lcm(d.sizes.tp, d.kv_heads) * (1 + random.below(6));
        legal = legal_dcp(d.sizes, {kind, d.q_heads, d.kv_heads});
    }
    const auto count = static_cast<std::int64_t>(legal.size());
    d.sizes.dcp = legal[static_cast<std::size_t>(std::max(random.below(count), random.below(count)))];
    d.merge = random.one_of({merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a});
    if (!mesh(d.sizes, {kind, d.q_heads, d.kv_heads}).scatters_heads() && d.sizes.dcp > 1) d.merge = merge_kind::ag_ar;
    d.interleave = random.one_of({1, 1, 2, 3, 5, 16});
}

inline void draw_prefill_step(prefill_deployment& d, random_numbers& random) {
    new_batch batch;
    for (std::int64_t i = random.below(7); i > 0; --i) {
        const std::int64_t computed = random.below(3) == 0 ? 0 : random.below(random.below(4) == 0 ? 300 : 70);
        const std::int64_t kind = random.below(6);
        if (kind <= 1) {
            batch.push_back(decodes(computed, random.below(5)));
        } else {
            batch.push_back(prefills(computed, kind == 2 ? random.below(4) : random.below(60)));
        }
    }
    d.serve(batch);
    d.tree = random.below(4) == 0;
    if (random.below(3) == 0) d.mask.window = 1 + random.below(60);
    if (random.below(5) == 0) d.mask.chunk = 1 + random.below(50);
    if (random.below(5) == 0) d.mask.prefix = random.below(30);
    d.sinks = random.below(4) == 0;
    if (random.below(5) == 0) d.soft_cap = 6.0F + static_cast<float>(random.below(10));
    if (random.below(3) == 0) d.softmax_scale = 0.125F;
    d.merged_lse = random.below(4) != 0;
    d.split = random.one_of({zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil});
    const auto path = [&] {
        return random.one_of({prefill_path::automatic, prefill_path::gather_q, prefill_path::gather_kv});
    };
    d.prefill_rows = d.projects() ? prefill_path::automatic : path();
    d.decode_rows = d.projects() ? prefill_path::automatic : path();
    // Context goes through the workspace in some ten chunks at most.
    const std::int64_t round = d.sizes.dcp * d.interleave;
    std::int64_t rounds = 0;
    for (const new_tokens& each : d.batch) rounds += (each.computed + round - 1) / round;
    d.context_rows = round * std::max(random.one_of<std::int64_t>({1, 2, 3, 10, 100}), rounds / 8);
    d.earlier_steps = random.below(4);
    d.attends_earlier = random.below(2) == 0;
}

} // namespace detail

inline prefill_deployment random_prefill(std::uint64_t seed) {
    random_numbers random(seed);
    prefill_deployment d;
    d.seed = seed;
    detail::draw_prefill_model(d, random);
    detail::draw_prefill_ranks(d, random);
    detail::draw_prefill_step(d, random);
    d.block_size = random.one_of({1, 2, 4, 7, 16});
    d.page_size = random.below(3) == 0 ? random.one_of({1, 3, 8}) : 0;
    d.layout = static_cast<pool_layout>(random.below(8)); // all but contiguous
    d.table = static_cast<table_form>(random.below(4));
    d.strided_views = random.below(2) == 0;
    d.threads = 1 + random.below(2);
    d.instructions = any_instruction_set(random);
    return d;
}

} // namespace ctxpar_test
