// Grouped-query attention of prefills is the unsharded attention, for every shape of PCP and DCP groups, split, context
// and path.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// A fresh prefill, chunks that follow a context, decode rows, one token, and nothing new.
new_batch mixed() {
    return {prefills(0, 19), prefills(37, 9), decodes(63, 2), prefills(50, 1), prefills(21, 0), prefills(8, 26)};
}

prefill_deployment small(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 2;
    d.block_size = 4;
    d.seed = static_cast<std::uint64_t>(tp * 100 + pcp * 10 + dcp);
    d.serve(mixed());
    return d;
}

} // namespace

TEST_CASE("prefills over every legal group give the unsharded attention") {
    int count = 0;
    for (const std::int64_t tp : {1, 2, 4}) {
        for (std::int64_t pcp = 1; pcp <= 4 && tp * pcp <= 8; ++pcp) {
            for (const std::int64_t kv_heads : {1, 2}) {
                prefill_deployment d = small(tp, pcp, 1);
                d.kv_heads = kv_heads;
                d.q_heads *= kv_heads;
                for (const std::int64_t dcp : legal_dcp(d.sizes, {attention_kind::gqa, d.q_heads, d.kv_heads})) {
                    d.sizes.dcp = dcp;
                    d.merge = static_cast<merge_kind>(count % 3);
                    d.split = static_cast<zigzag_split>(count % 2 == 0 ? 0 : count % 3);
                    d.context_rows = count % 4 == 0 ? 2 * dcp * d.interleave : 1024;
                    d.strided_views = count % 3 == 1;
                    each_path(d);
                    ++count;
                }
                d.sizes.dcp = 1;
            }
        }
    }
    CHECK(count >= 40);
}

TEST_CASE("each split gives the unsharded attention, for any number of new tokens") {
    for (const std::int64_t pcp : {1, 2, 3, 4}) {
        for (const zigzag_split split : {zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil}) {
            for (const std::int64_t n : {1, 2, 3, 7, 8, 13, 18, 64}) {
                prefill_deployment d = small(1, pcp, n % 2 == 0 ? pcp : 1);
                d.split = split;
                d.serve({prefills(n == 3 ? 0 : 11, n), prefills(5, 4)});
                d.seed += static_cast<std::uint64_t>(n);
                each_path(d);
            }
        }
    }
}

TEST_CASE("context that takes one, two or five chunks of the workspace gives the unsharded attention") {
    for (const auto& [tp, pcp, dcp] :
         {std::array{1, 2, 2}, std::array{2, 1, 2}, std::array{1, 4, 4}, std::array{2, 2, 4}, std::array{1, 4, 2}}) {
        for (const std::int64_t chunks : {1, 2, 5}) {
            for (const bool several : {false, true}) {
                prefill_deployment d = small(tp, pcp, dcp);
                d.q_heads = 8;
                d.prefill_rows = prefill_path::gather_kv;
                d.seed += static_cast<std::uint64_t>(chunks);
                d.serve({prefills(0, 5), prefills(77, 11)});
                if (several) d.serve({prefills(30, 4), prefills(0, 5), prefills(9, 3), prefills(28, 11), decodes(40)});
                const std::int64_t round = dcp * d.interleave;
                std::int64_t units = 0;
                for (const new_tokens& each : d.batch) units += each.decodes ? 0 : (each.computed + round - 1) / round;
                d.context_rows = (units + chunks - 1) / chunks * round + round / 2;
                if (!is_drawn(d)) continue;
                const prefill_data data = plant(d);
                const prefill_result got = run(d, data);
                INFO(describe(d));
                CHECK(got.reports[0].context_chunks ==
                      (units + (units + chunks - 1) / chunks - 1) / ((units + chunks - 1) / chunks));
                check_exact(d, data, got);
            }
        }
    }
}

TEST_CASE("context may end anywhere, in a block, in a round, before a rank's first token") {
    for (const auto& [pcp, dcp] : {std::array{2, 2}, std::array{4, 4}, std::array{2, 1}}) {
        for (const std::int64_t computed : {1, 3, 5, 7, 8, 9, 16, 31, 33}) {
            prefill_deployment d = small(1, pcp, dcp);
            d.interleave = computed % 2 == 0 ? 4 : 3;
            d.earlier_steps = computed % 3;
            d.context_rows = d.dcp() * d.interleave * (computed % 4 == 1 ? 1 : 8);
            d.seed += static_cast<std::uint64_t>(computed);
            d.serve({prefills(computed, 9), prefills(computed + 1, 2), decodes(computed)});
            each_path(d);
        }
    }
}

TEST_CASE("every step of a chunked prefill gives the unsharded attention") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{1, 3, 3},
                                       std::array{2, 4, 2}, std::array{2, 1, 2}, std::array{1, 4, 1}}) {
        prefill_deployment d = small(tp, pcp, dcp);
        d.earlier_steps = 4;
        d.attends_earlier = true;
        d.context_rows = 4 * dcp * d.interleave;
        each_path(d);
    }
}

TEST_CASE("any number of query heads shares a KV head in a prefill") {
    for (const std::int64_t ratio : {1, 4, 6, 8}) {
        prefill_deployment d = small(2, 2, 2);
        d.kv_heads = 4;
        d.q_heads = 4 * ratio;
        d.seed = static_cast<std::uint64_t>(ratio);
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            d.merge = merge;
            each_path(d);
        }
    }
}

TEST_CASE("heads of prefill rows may have any width") {
    for (const auto& [key, value] :
         {std::array{5, 5}, std::array{64, 64}, std::array{128, 128}, std::array{24, 7}, std::array{1, 3}}) {
        prefill_deployment d = small(2, 2, 4);
        d.key_width = key;
        d.value_width = value;
        d.seed += static_cast<std::uint64_t>(key);
        each_path(d);
    }
}

TEST_CASE("interleave, block size and page size of prefilled caches are independent") {
    for (const std::int64_t interleave : {1, 3, 16}) {
        for (const std::int64_t block_size : {1, 4, 7, 16}) {
            prefill_deployment d = small(1, interleave == 3 ? 3 : 2, interleave == 3 ? 3 : 2);
            d.interleave = interleave;
            d.block_size = block_size;
            d.page_size = block_size == 4 ? 3 : 0;
            d.layout = block_size == 7 ? pool_layout::hnd : (block_size == 16 ? pool_layout::gaps : pool_layout::nhd);
            d.table = static_cast<table_form>(block_size % 4);
            d.context_rows = 64;
            d.seed = static_cast<std::uint64_t>(interleave * 100 + block_size);
            each_path(d);
        }
    }
}

TEST_CASE("heads that no merge can scatter are merged where they are") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{3, 1, 3}}) {
        prefill_deployment d = small(tp, pcp, dcp);
        d.q_heads = tp;
        d.merge = merge_kind::ag_ar;
        each_path(d);
    }
}
