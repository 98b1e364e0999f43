// Grouped-query attention over N ranks is the unsharded attention, for every group shape, head ratio and interleave.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// Ragged lengths: an empty request, one token, a length that leaves ranks empty, some that end inside a group.
deployment ragged() {
    deployment d;
    d.requests = {{0}, {1}, {3}, {131}, {64}};
    d.block_size = 4;
    d.interleave = 2;
    return d;
}

void each_merge_and_placement(deployment d) {
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        for (const output_placement placement :
             {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
            d.merge = merge;
            d.placement = placement;
            d.replicated_q = d.seed % 4 >= 2;
            d.strided_views = d.seed % 3 == 0;
            ++d.seed;
            check_exact(d);
        }
    }
}

} // namespace

TEST_CASE("one rank gives the unsharded attention") {
    each_merge_and_placement(ragged());
}

TEST_CASE("groups inside TP give the unsharded attention") {
    for (const std::int64_t n : {2, 3, 4, 8}) {
        deployment d = ragged();
        d.sizes.tp = d.sizes.dcp = n;
        d.q_heads = 2 * n;
        each_merge_and_placement(d);
    }
}

TEST_CASE("several groups inside TP each serve their own KV head") {
    for (const auto& [tp, dcp, kv_heads] : {std::array{4, 2, 2}, std::array{6, 3, 2}, std::array{4, 2, 1}}) {
        deployment d = ragged();
        d.sizes.tp = tp;
        d.sizes.dcp = dcp;
        d.kv_heads = kv_heads;
        d.q_heads = 24;
        each_merge_and_placement(d);
    }
}

TEST_CASE("groups over PCP give the unsharded attention") {
    for (const auto& [tp, pcp, dcp] :
         {std::array{1, 4, 4}, std::array{1, 4, 2}, std::array{2, 2, 2}, std::array{2, 4, 2}}) {
        deployment d = ragged();
        d.sizes.tp = tp;
        d.sizes.pcp = pcp;
        d.sizes.dcp = dcp;
        d.kv_heads = 2;
        d.q_heads = 16;
        each_merge_and_placement(d);
    }
}

TEST_CASE("groups over TP and PCP give the unsharded attention") {
    for (const auto& [tp, pcp, dcp] : {std::array{2, 2, 4}, std::array{4, 2, 4}, std::array{2, 4, 8}}) {
        deployment d = ragged();
        d.sizes.tp = tp;
        d.sizes.pcp = pcp;
        d.sizes.dcp = dcp;
        d.q_heads = 16;
        each_merge_and_placement(d);
    }
}

TEST_CASE("any number of query heads shares a KV head") {
    for (const std::int64_t ratio : {1, 4, 6, 8}) {
        deployment d = ragged();
        d.sizes.pcp = d.sizes.dcp = 2;
        d.sizes.tp = 2;
        d.kv_heads = 4;
        d.q_heads = 4 * ratio;
        d.seed = static_cast<std::uint64_t>(ratio);
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            d.merge = merge;
            check_exact(d);
        }
    }
}

TEST_CASE("heads may have any width") {
    for (const auto& [key, value] : {std::array{5, 5}, std::array{64, 64}, std::array{80, 80}, std::array{128, 128},
                                     std::array{24, 7}, std::array{1, 3}}) {
        deployment d = ragged();
        d.sizes.tp = d.sizes.dcp = 2;
        d.q_heads = 12;
        d.key_width = key;
        d.value_width = value;
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            d.merge = merge;
            ++d.seed;
            check_exact(d);
        }
    }
}

TEST_CASE("interleave and block size are independent") {
    for (const std::int64_t interleave : {1, 2, 3, 4, 16, 64}) {
        for (const std::int64_t block_size : {1, 4, 16, 64, 7}) {
            deployment d = ragged();
            d.requests = {{131}, {5, 2}, {64, 3}, {200}};
            d.sizes.tp = d.sizes.dcp = interleave == 4 ? 3 : 4;
            d.q_heads = 12;
            d.interleave = interleave;
            d.block_size = block_size;
            d.merge = block_size == 7 ? merge_kind::ag_rs : merge_kind::a2a;
            d.seed = static_cast<std::uint64_t>(interleave * 100 + block_size);
            check_exact(d);
        }
    }
}
