// Prefills append to caches of every storage type, scale and layout, and attend what those hold.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

prefill_deployment over(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 4 * tp * pcp;
    d.kv_heads = dcp <= pcp ? 4 : 1;
    d.key_width = 24;
    d.value_width = 20;
    d.interleave = 2;
    d.block_size = 4;
    d.context_rows = 4 * dcp * d.interleave;
    d.serve({prefills(0, 19), prefills(37, 9), decodes(63, 2), prefills(8, 26)});
    return d;
}

const std::array<std::array<std::int64_t, 3>, 5> topologies{{{2, 2, 2}, {2, 2, 4}, {1, 4, 2}, {2, 1, 2}, {1, 2, 1}}};

} // namespace

TEST_CASE("8-bit caches are read as they hold it, whichever way rows meet their keys") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const scale_choice scales : {scale_choice::none, scale_choice::tensor, scale_choice::head,
                                          scale_choice::token, scale_choice::shared_token}) {
            for (const prefill_path decode : {prefill_path::gather_q, prefill_path::gather_kv}) {
                prefill_deployment d = over(tp, pcp, dcp);
                d.kv_element = scalar_type::e4m3;
                d.scales = scales;
                d.decode_rows = decode;
                d.earlier_steps = decode == prefill_path::gather_kv ? 0 : 3;
                d.split = static_cast<zigzag_split>(static_cast<int>(scales) % 3);
                each_path(d);
            }
        }
    }
}

TEST_CASE("8-bit caches under windows are read as they hold it") {
    for (const scale_choice scales : {scale_choice::tensor, scale_choice::token}) {
        prefill_deployment d = over(2, 2, 4);
        d.kv_element = scalar_type::e4m3;
        d.scales = scales;
        d.mask = {14, 0, 3};
        each_path(d);
    }
}

TEST_CASE("8-bit latent rows are read as the cache holds them, absorbed and up-projected") {
    for (const auto& [tp, pcp, dcp] : {std::array{2, 2, 4}, std::array{1, 4, 2}, std::array{1, 2, 1}}) {
        for (const scale_choice scales : {scale_choice::tensor, scale_choice::head, scale_choice::token}) {
            prefill_deployment d = over(tp, pcp, dcp);
            d.is_mla = true;
            d.kv_heads = 1;
            d.value_width = 24;
            d.key_width = 33;
            d.kv_element = scalar_type::e4m3;
            d.scales = scales;
            each_path(d);
            d.nope_width = 16;
            d.projected_value_width = 20;
            check_exact(d);
        }
    }
}

TEST_CASE("16-bit caches may have a scale a head or a token") {
    for (const scale_choice scales :
         {scale_choice::tensor, scale_choice::head, scale_choice::token, scale_choice::shared_token}) {
        prefill_deployment d = over(2, 2, 2);
        d.scales = scales;
        each_path(d);
    }
}

TEST_CASE("prefilled pools may have any layout") {
    for (const pool_layout layout :
         {pool_layout::nhd, pool_layout::hnd, pool_layout::gaps, pool_layout::joint_nhd, pool_layout::joint_hnd,
          pool_layout::stacked_nhd, pool_layout::stacked_hnd, pool_layout::page_pointers, pool_layout::contiguous}) {
        for (const bool narrow : {false, true}) {
            prefill_deployment d = over(2, 2, 2);
            d.layout = layout;
            d.block_size = layout == pool_layout::contiguous ? 40 : 8;
            d.table = static_cast<table_form>(static_cast<int>(layout) % 4);
            if (narrow) {
                d.kv_element = scalar_type::e4m3;
                d.scales = scale_choice::token;
            }
            each_path(d);
        }
    }
}
