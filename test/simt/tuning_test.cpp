// The tiles of attention fit the devices that they are chosen for, and the splits of keys fill them.
#include <ctxpar/backend/cuda/tuning.hpp>

#include <doctest/doctest.h>

#include <ctxpar/backend/cuda/attend_tiles.cuh>

using namespace ctxpar;

namespace {

// Stages that attention of these types would have on a device; 0: none.
template <class Tiles, class Q, class Kv>
int stages_on(int capability) {
    using layout = cuda::tile_layout<Tiles, Q, Kv>;
    const cuda::device_limits limits = cuda::limits_of(capability);
    const int stages = cuda::stages_for(limits, layout::stages, layout::stage_bytes, Tiles::shape.max_stages);
    if (stages > 0) CHECK(layout::stages + stages * layout::stage_bytes <= limits.shared_per_block);
    CHECK(stages <= Tiles::shape.max_stages);
    return stages;
}

// Pieces of work of a request of so many local keys, all KV heads together, and its splits.
struct cut {
    std::int64_t pieces;
    std::int64_t splits;
};
cut cut_of(const split_work& work, std::int64_t keys, std::int64_t tile_rows, int processors = 132) {
    segment run;
    run.end = keys;
    const split_rule rule = cuda::splits_for(work, processors);
    schedule_splits(run, rule);
    CHECK(run.splits() <= rule.most);
    CHECK(run.split_tokens % 64 == 0); // tiles do not cross the border of a split
    const std::int64_t rows = work.heads / work.kv_heads * work.rows_per_request;
    return {(rows + tile_rows - 1) / tile_rows * work.kv_heads * run.splits(), run.splits()};
}

template <int Width>
void check_width() {
    using few = cuda::tiles<Width, Width, false, false, 3>;
    using many = cuda::tiles<Width, Width, false, true, 3>;
    for (const int capability : {80, 90, 100}) {
        CHECK(stages_on<few, bf16, bf16>(capability) >= 2);
        CHECK(stages_on<few, f16, fp8_e4m3>(capability) >= 2);
        CHECK(stages_on<many, bf16, bf16>(capability) >= 2);
        CHECK(stages_on<many, f16, fp8_e4m3>(capability) >= 2);
    }
    CHECK(few::shape.threads() <= 1024);
    CHECK(many::shape.threads() <= 1024);
    CHECK(few::shape.value_tiles() * 8 * few::shape.columns == Width);
    CHECK(many::shape.value_tiles() * 8 * many::shape.columns == Width);
}

} // namespace

TEST_CASE("tiles of every head size fit data centre devices, in two stages or more") {
    check_width<64>();
    check_width<96>();
    check_width<128>();
    check_width<192>();
    check_width<256>();
}

TEST_CASE("tiles of MLA fit, those of few rows on small devices too") {
    using few = cuda::tiles<576, 512, true, false, 3>;
    using many = cuda::tiles<576, 512, true, true, 3>;
    for (const int capability : {80, 90, 100}) CHECK(stages_on<many, bf16, bf16>(capability) >= 2);
    for (const int capability : {80, 86, 89, 90, 100, 120}) CHECK(stages_on<few, bf16, bf16>(capability) >= 2);
}

TEST_CASE("devices that are not listed inherit what the ones before them have") {
    CHECK(cuda::limits_of(103).shared_per_block == cuda::limits_of(90).shared_per_block);
    CHECK(cuda::limits_of(87).shared_per_block == cuda::limits_of(80).shared_per_block);
    CHECK(cuda::limits_of(121).shared_per_block == cuda::limits_of(120).shared_per_block);
}

TEST_CASE("one long request fills a device of 132 processors") {
    const split_work gqa{1, 1, 64, 8, 128}, one_head{1, 1, 8, 1, 128}, verify{4, 4, 64, 8, 128};
    for (const std::int64_t keys : {std::int64_t{131072}, std::int64_t{1} << 20}) {
        for (const cut& each : {cut_of(gqa, keys, 16), cut_of(one_head, keys, 16), cut_of(verify, keys, 64)}) {
            CHECK(each.pieces >= 128);
            CHECK(each.pieces <= 2 * 132);
        }
        CHECK(cut_of(gqa, keys, 16).pieces >= 132);
        const split_work latent{1, 1, 16, 1, 512}, latent_128{1, 1, 128, 1, 512};
        for (const cut& each : {cut_of(latent, keys, 16), cut_of(latent_128, keys, 32)}) {
            CHECK(each.pieces >= 120);
            CHECK(each.pieces <= 132);
        }
    }
    CHECK(cut_of(gqa, 8192, 16).splits == 16); // of 512 keys
    CHECK(cut_of(gqa, 300, 16).splits == 1);
}

TEST_CASE("partial results of splits take a bounded room") {
    for (const std::int64_t rows : {1, 8, 64, 512}) {
        const split_work work{rows, 1, 64, 8, 128};
        const split_rule rule = cuda::splits_for(work, 132);
        CHECK(rule.most >= 8);
        if (rule.most > 8) CHECK(rule.most * rows * 64 * 128 * 4 <= std::int64_t{64} << 20);
    }
    CHECK(cuda::splits_for({1, 1, 64, 8, 128}, 1).most == 1);
}
