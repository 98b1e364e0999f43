// Masks, sinks and soft caps over shards are those of the unsharded attention, for any number of rows a request.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// Five rows, two, none, more rows than tokens, and one.
deployment base() {
    deployment d;
    d.sizes.tp = d.sizes.dcp = 4;
    d.q_heads = 12;
    d.key_width = d.value_width = 24;
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{131, 5}, {66, 2}, {50, 0}, {2, 3}, {90, 1}};
    return d;
}

void each_shard_law(deployment d) {
    for (const auto& [n, interleave] : {std::array{1, 1}, std::array{2, 1}, std::array{4, 3}, std::array{4, 16}}) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            d.sizes.dcp = n;
            d.interleave = interleave;
            d.merge = merge;
            ++d.seed;
            d.strided_views = d.seed % 2 == 0;
            check_exact(d);
        }
    }
}

} // namespace

TEST_CASE("rows of a request see the tokens up to their own") {
    each_shard_law(base());
}

TEST_CASE("a window lets a row see its last tokens, and blocks before it may be gone") {
    for (const std::int64_t window : {1, 7, 40, 1000}) {
        deployment d = base();
        d.mask.window = window;
        each_shard_law(d);
    }
}

TEST_CASE("chunked attention lets a row see its own chunk") {
    for (const std::int64_t chunk : {1, 16, 65}) {
        deployment d = base();
        d.mask.chunk = chunk;
        each_shard_law(d);
    }
}

TEST_CASE("a prefix stays visible beside a window or a chunk") {
    for (const mask_rule& mask :
         {mask_rule{9, 0, 4}, mask_rule{0, 32, 5}, mask_rule{30, 64, 33}, mask_rule{9, 0, 128}}) {
        deployment d = base();
        d.mask = mask;
        each_shard_law(d);
    }
}

TEST_CASE("rows of a draft tree see their ancestors only") {
    for (const std::int64_t window : {0, 20}) {
        deployment d = base();
        d.tree = true;
        d.mask.window = window;
        d.requests = {{131, 5}, {66, 64}, {50, 0}, {2, 3}, {90, 33}, {64, 64}, {17, 1}};
        each_shard_law(d);
    }
}

TEST_CASE("sinks join the denominator once") {
    deployment d = base();
    d.sinks = true;
    d.requests.push_back({0, 1}); // a row without keys: its LSE is the sink
    each_shard_law(d);
    for (const auto& [tp, pcp, dcp] : {std::array{1, 4, 4}, std::array{2, 2, 4}, std::array{4, 2, 4}}) {
        for (const output_placement placement :
             {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
            d.q_heads = 8;
            d.sizes = {tp, pcp, dcp, 1, 1, 1};
            d.placement = placement;
            d.merge = placement == output_placement::own_heads ? merge_kind::ag_rs : merge_kind::a2a;
            check_exact(d);
            d.merge = merge_kind::ag_ar;
            check_exact(d);
        }
    }
}

TEST_CASE("a soft cap bounds every score") {
    for (const scalar_type type : {scalar_type::bf16, scalar_type::e4m3}) {
        deployment d = base();
        d.kv_element = type;
        d.scales = type == scalar_type::e4m3 ? scale_choice::token : scale_choice::none;
        d.soft_cap = 8.0F;
        d.softmax_scale = 0.2F;
        each_shard_law(d);
    }
}

TEST_CASE("the merged LSE may be asked for in base 2") {
    deployment d = base();
    d.lse = lse_base::binary;
    each_shard_law(d);
    d.sinks = true;
    each_shard_law(d);
}

TEST_CASE("the merged LSE may be left out") {
    deployment d = base();
    d.merged_lse = false;
    each_shard_law(d);
}

TEST_CASE("everything at once") {
    deployment d = base();
    d.requests = {{300, 5}, {2, 3}, {66, 0}, {129, 4}};
    d.mask = {50, 0, 6};
    d.sinks = true;
    d.soft_cap = 12.0F;
    d.kv_heads = 1;
    d.lse = lse_base::binary;
    each_shard_law(d);
    d.tree = true;
    each_shard_law(d);
}
