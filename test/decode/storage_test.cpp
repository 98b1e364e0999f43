// Every storage type, scale, pool layout and table form of a cache is read and written as the reference reads it.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

deployment base() {
    deployment d;
    d.sizes.pcp = d.sizes.dcp = 2;
    d.sizes.tp = 2;
    d.q_heads = 16;
    d.kv_heads = 4;
    d.key_width = 24;
    d.value_width = 20;
    d.interleave = 4;
    d.block_size = 8;
    d.requests = {{131, 2}, {40}, {1}};
    return d;
}

} // namespace

TEST_CASE("16-bit and fp32 caches are read exactly") {
    for (const scalar_type type : {scalar_type::f32, scalar_type::bf16, scalar_type::f16}) {
        for (const scale_choice scales : {scale_choice::none, scale_choice::tensor, scale_choice::head}) {
            for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
                deployment d = base();
                d.element = d.kv_element = type;
                d.output = type == scalar_type::f16 ? type : scalar_type::f32;
                d.scales = scales;
                d.merge = merge;
                check_exact(d);
            }
        }
    }
}

TEST_CASE("8-bit caches are read and written with their scales") {
    for (const scalar_type type : {scalar_type::e4m3, scalar_type::e5m2}) {
        for (const scale_choice scales : {scale_choice::none, scale_choice::tensor, scale_choice::head,
                                          scale_choice::token, scale_choice::shared_token}) {
            for (const std::int64_t n : {1, 2, 4}) {
                deployment d = base();
                d.sizes = {2, n, n, 1, 1, 1};
                d.kv_element = type;
                d.scales = scales;
                d.seed = static_cast<std::uint64_t>(n);
                check_exact(d);
            }
        }
    }
}

TEST_CASE("16-bit caches may have a scale a token") {
    for (const scalar_type type : {scalar_type::bf16, scalar_type::f16}) {
        deployment d = base();
        d.element = d.kv_element = type;
        d.output = type == scalar_type::f16 ? type : scalar_type::f32;
        d.scales = scale_choice::token;
        check_exact(d);
    }
}

TEST_CASE("any layout of the pool is read and written where it lies") {
    for (const pool_layout layout :
         {pool_layout::nhd, pool_layout::hnd, pool_layout::gaps, pool_layout::joint_nhd, pool_layout::joint_hnd,
          pool_layout::stacked_nhd, pool_layout::stacked_hnd, pool_layout::page_pointers, pool_layout::contiguous}) {
        for (const scalar_type type : {scalar_type::bf16, scalar_type::e4m3}) {
            deployment d = base();
            d.kv_element = type;
            d.layout = layout;
            d.scales = type == scalar_type::e4m3 ? scale_choice::token : scale_choice::none;
            d.block_size = layout == pool_layout::contiguous ? 70 : 8;
            check_exact(d);
        }
    }
}

TEST_CASE("any form of the block table gives the same result") {
    for (const table_form table : {table_form::i32, table_form::u32, table_form::i64, table_form::csr}) {
        deployment d = base();
        d.table = table;
        d.sizes = {1, 4, 4, 1, 1, 1};
        check_exact(d);
    }
}

TEST_CASE("pages may be smaller than blocks, or of any size") {
    for (const std::int64_t page_size : {1, 2, 4, 16, 5}) {
        deployment d = base();
        d.page_size = page_size;
        check_exact(d);
    }
}

TEST_CASE("a narrow output is rounded once") {
    for (const scalar_type type : {scalar_type::bf16, scalar_type::f16}) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            for (const output_placement placement :
                 {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
                deployment d = base();
                d.element = d.kv_element = d.output = type;
                d.merge = merge;
                d.placement = placement;
                check_exact(d);
            }
        }
    }
}

TEST_CASE("partials that cross ranks in a narrow type add their roundings and nothing else") {
    for (const scalar_type type : {scalar_type::bf16, scalar_type::f16}) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            for (const std::int64_t value_width : {20, 7}) { // an odd width has no room for an LSE on four bytes
                deployment d = base();
                d.sizes = {2, 4, 4, 1, 1, 1};
                d.value_width = value_width;
                d.element = d.kv_element = type;
                d.output = type;
                d.partials = partial::output;
                d.merge = merge;
                check_exact(d);
                if (type == scalar_type::f16) continue;
                d.output = scalar_type::f32;
                check_exact(d);
            }
        }
    }
}
