// Multi-head latent attention over N ranks is the unsharded attention.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

deployment latent(std::int64_t latent_width, std::int64_t rope_width) {
    deployment d;
    d.is_mla = true;
    d.value_width = latent_width;
    d.key_width = latent_width + rope_width;
    d.q_heads = 16;
    d.requests = {{0}, {131, 2}, {2}, {64}};
    d.block_size = 4;
    d.interleave = 4;
    return d;
}

void each_merge(deployment d) {
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        d.merge = merge;
        d.placement = merge == merge_kind::ag_ar ? output_placement::all_heads : output_placement::own_heads;
        d.replicated_q = d.seed % 3 == 0;
        ++d.seed;
        check_exact(d);
    }
}

} // namespace

TEST_CASE("latent attention over any group gives the unsharded attention") {
    for (const auto& [tp, pcp, dcp] :
         {std::array{1, 1, 1}, std::array{2, 1, 2}, std::array{8, 1, 8}, std::array{4, 1, 2}, std::array{1, 4, 4},
          std::array{2, 2, 4}, std::array{4, 2, 4}}) {
        deployment d = latent(32, 16);
        d.sizes.tp = tp;
        d.sizes.pcp = pcp;
        d.sizes.dcp = dcp;
        d.seed = static_cast<std::uint64_t>(tp * 10 + pcp);
        each_merge(d);
    }
}

TEST_CASE("latent rows may have any width and interleave") {
    for (const std::int64_t interleave : {1, 3, 16}) {
        deployment d = latent(interleave == 3 ? 5 : 24, interleave == 3 ? 2 : 9);
        d.sizes.tp = d.sizes.dcp = 4;
        d.interleave = interleave;
        d.merge = merge_kind::ag_rs;
        check_exact(d);
    }
}

TEST_CASE("latent rows of 512 and 64 give the unsharded attention") {
    deployment d = latent(512, 64);
    d.sizes.tp = d.sizes.dcp = 4;
    d.interleave = 16;
    d.block_size = 16;
    each_merge(d);
}

TEST_CASE("latent rows may lie in pages anywhere, with gaps or one page a request") {
    for (const pool_layout layout : {pool_layout::page_pointers, pool_layout::gaps, pool_layout::contiguous}) {
        deployment d = latent(24, 8);
        d.sizes.tp = d.sizes.dcp = 2;
        d.layout = layout;
        d.block_size = layout == pool_layout::contiguous ? 72 : 8;
        check_exact(d);
    }
}

TEST_CASE("8-bit latent rows are read and written with their scales") {
    for (const scale_choice scales : {scale_choice::tensor, scale_choice::head, scale_choice::token}) {
        deployment d = latent(32, 16);
        d.sizes.tp = d.sizes.dcp = 4;
        d.kv_element = scalar_type::e4m3;
        d.scales = scales;
        each_merge(d);
    }
}

TEST_CASE("latent attention rounds a bf16 output once") {
    deployment d = latent(32, 16);
    d.sizes.tp = d.sizes.dcp = 2;
    d.output = scalar_type::bf16;
    each_merge(d);
}
