// What a pair of deployments and a request are refused for, and who sends what.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/transfer.hpp>

#include "refusal.hpp"
#include "transfer_pools.hpp"

namespace {

using namespace ctxpar_test;
using ctxpar::memory_place;
using ctxpar::memory_region;
using ctxpar::transfer_link;
using ctxpar::transfer_plan;
using ctxpar::transfer_plane;
using ctxpar::transfer_rank;
using ctxpar::transfer_side;
using numbers = std::vector<std::int64_t>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

// A source of two shards and a target of one, each shard's heads and layers on one rank; `change` breaks one thing.
struct plain_pair {
    std::mt19937 random{1};
    transfer_deployment<ctxpar::fp8_e4m3> from, to;
    std::vector<transfer_rank> sources, targets;
    transfer_side source, target;

    explicit plain_pair(pool_scales scales = pool_scales::none, pool_form form = pool_form::nhd)
        : from({2, 2, 4, 0, form, scales, 1, 1, 1}, {2, 3, 8, 4}, 20, random),
          to({1, 1, 4, 0, form, scales, 1, 1, 1}, {2, 3, 8, 4}, 20, random),
          sources(from.side().ranks.begin(), from.side().ranks.end()),
          targets(to.side().ranks.begin(), to.side().ranks.end()), source(from.side()), target(to.side()) {
        source.ranks = sources;
        target.ranks = targets;
    }
    std::string refused() const {
        return refusal_of([&] { transfer_link(source, target); });
    }
};

std::string refused_after(const std::function<void(plain_pair&)>& change, pool_scales scales = pool_scales::none,
                          pool_form form = pool_form::nhd) {
    plain_pair pair(scales, form);
    change(pair);
    return pair.refused();
}

} // namespace

TEST_CASE("ranks whose caches hold other things are refused, both named") {
    CHECK(plain_pair().refused() == "none");
    const auto geometry = [](plain_pair& pair) -> ctxpar::transfer_geometry& { return pair.targets[0].geometry; };
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).element = ctxpar::scalar_type::e5m2; }), "element",
               {"source rank 0", "fp8_e4m3", "target rank 0", "fp8_e5m2"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).key_width = 16; }), "width", {"8 and 4", "16 and 4"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).value_width = 5; }), "width", {"8 and 4", "8 and 5"}));
    CHECK(says(refused_after([&](plain_pair& p) { p.sources[1].geometry.key_width = 9; }), "width", {"source rank 1"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).planes[1].row_bytes = 3; }), "width",
               {"values", "4 bytes", "3 on target rank 0"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).values_in_keys = true; }), "values_in_keys",
               {"target rank 0", "values of 4"}));
    CHECK(says(refused_after([&](plain_pair& p) {
                   geometry(p).values_in_keys = true;
                   geometry(p).planes[1].row_bytes = 0;
               }),
               "values_in_keys", {"not a part of the keys on source rank 0", "on target rank 0"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).planes[0].row_bytes = 0; }), "values_in_keys",
               {"keys of 0"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).key_scale = ctxpar::scale_kind::head; }), "scale_kind",
               {"per tensor and per tensor", "per head and per tensor"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).value_factor = 0.5F; }), "scale", {"target rank 0"}));
    CHECK(says(refused_after([&](plain_pair& p) { geometry(p).key_factor = 2.0F; }), "scale", {"target rank 0"}));
    CHECK(refused_after([&](plain_pair& p) { geometry(p).key_factor = std::nanf(""); }) == "none");
    // Other strides are another order of the same rows.
    CHECK(refused_after([](plain_pair&) {}, pool_scales::token, pool_form::joint_hnd) == "none");
}

TEST_CASE("ranks of another layout, shard or block are refused") {
    CHECK(says(refused_after([](plain_pair& p) {
                   p.target.law = {2, 1};
               }),
               "layout", {"target rank 0", "1 ranks, interleave 1", "2 ranks, interleave 1"}));
    CHECK(says(refused_after([](plain_pair& p) { p.source.law = {1, 1}; }), "layout", {"source rank 0", "2 ranks"}));
    CHECK(says(refused_after([](plain_pair& p) { p.sources[1].part.interleave = 4; }), "layout",
               {"source rank 1", "interleave 4", "interleave 2"}));
    CHECK(
        says(refused_after([](plain_pair& p) { p.target.block_size = 8; }), "layout", {"blocks of 4", "blocks of 8"}));
    CHECK(says(refused_after([](plain_pair& p) { p.sources[1].part.rank = 2; }), "shard",
               {"source rank 1", "shard 2 of 2"}));
    CHECK(says(refused_after([](plain_pair& p) { p.sources[1].part.rank = -1; }), "shard", {"shard -1"}));
    CHECK(says(refused_after([](plain_pair& p) { p.source.law = {0, 1}; }), "ranks", {"from 0"}));
    CHECK(says(refused_after([](plain_pair& p) { p.source.block_size = 0; }), "block_size", {"0"}));
    CHECK(says(refused_after([](plain_pair& p) { p.target.ranks = {}; }), "ranks", {"2 ranks to 0 ranks"}));
}

TEST_CASE("what a side lacks is named: shards, heads, layers") {
    CHECK(says(refused_after([](plain_pair& p) { p.sources[1].part.rank = 0; }), "layers",
               {"source", "shard 1", "layer 0"}));
    CHECK(says(refused_after([](plain_pair& p) { p.source.ranks = p.source.ranks.first(1); }), "layers",
               {"source", "shard 1"}));
    CHECK(says(refused_after([](plain_pair& p) { p.targets[0].heads = {1, 3}; }), "heads", {"source", "KV head 2"}));
    CHECK(says(refused_after([](plain_pair& p) { p.targets[0].heads = {0, 1}; }), "heads", {"target", "KV head 1"}));
    CHECK(says(refused_after([](plain_pair& p) {
                   p.sources[0].heads = {1, 1};
               }),
               "heads", {"source rank 0", "[1, 1)"}));
    CHECK(says(refused_after([](plain_pair& p) { p.sources[0].heads = {-1, 1}; }), "heads", {"[-1, 1)"}));
    CHECK(says(refused_after([](plain_pair& p) { p.sources[0].heads = {0, largest}; }), "heads", {"at least one"}));
    CHECK(says(refused_after([](plain_pair& p) { p.sources[0].layers = p.sources[0].layers.first(2); }), "layers",
               {"source", "shard 0", "layer 2"}));
    CHECK(says(refused_after([](plain_pair& p) { p.targets[0].first_layer = 1; }), "layers", {"target", "layer 0"}));
    CHECK(says(refused_after([](plain_pair& p) { p.targets[0].first_layer = -1; }), "layers", {"from layer -1"}));
    CHECK(says(refused_after([](plain_pair& p) { p.targets[0].first_layer = largest - 1; }), "layers", {"3 layers"}));
}

TEST_CASE("rows outside the memory regions, or that overlap or pass 63 bits, are refused") {
    const auto plane = [](plain_pair& p) -> transfer_plane& { return p.targets[0].geometry.planes[0]; };
    CHECK(says(refused_after([&](plain_pair& p) { plane(p).token_stride = 8; }), "stride",
               {"keys", "target rank 0", "8 (token)"}));
    CHECK(says(refused_after([&](plain_pair& p) { plane(p).head_stride = 0; }), "stride", {"0 (head)"}));
    CHECK(says(refused_after([&](plain_pair& p) { plane(p).page_stride = largest / 2; }), "stride", {"63 bits"}));
    CHECK(says(refused_after([&](plain_pair& p) { plane(p).page_stride = -64; }), "stride", {"-64 (page)"}));
    CHECK(says(refused_after([&](plain_pair& p) { plane(p).page_stride += 1; }), "region", {"keys of target rank 0"}));
    CHECK(says(refused_after([&](plain_pair& p) { p.targets[0].geometry.pages += 1; }), "region", {"keys"}));
    CHECK(says(refused_after([&](plain_pair& p) { p.targets[0].geometry.pages = -1; }), "size", {"-1 pages"}));
    CHECK(says(refused_after([&](plain_pair& p) { p.targets[0].geometry.page_size = 0; }), "size", {"of 0"}));
    CHECK(says(refused_after([&](plain_pair& p) { p.targets[0].geometry.pages = largest; }), "size", {"63 bits"}));

    const auto with_regions = [](const std::function<void(std::vector<memory_region>&)>& change) {
        return refused_after([&](plain_pair& p) {
            static std::vector<memory_region> regions;
            regions.assign(p.sources[1].regions.begin(), p.sources[1].regions.end());
            change(regions);
            p.sources[1].regions = regions;
        });
    };
    CHECK(with_regions([](std::vector<memory_region>&) {}) == "none");
    CHECK(says(with_regions([](std::vector<memory_region>& r) { r.resize(1); }), "region", {"region 1", "1 regions"}));
    CHECK(says(with_regions([](std::vector<memory_region>& r) { --r[1].bytes; }), "region", {"keys of source rank 1"}));
    CHECK(
        says(with_regions([](std::vector<memory_region>& r) { --r[4].bytes; }), "region", {"values of source rank 1"}));
    CHECK(says(with_regions([](std::vector<memory_region>& r) { r[1].bytes = -1; }), "region", {"-1 bytes"}));
    CHECK(says(with_regions([](std::vector<memory_region>& r) { r[1].base = ~std::uint64_t{0}; }), "region",
               {"18446744073709551615", "64 bits"}));

    const auto with_layer = [](std::size_t part, memory_place place) {
        return refused_after([&](plain_pair& p) {
            static std::vector<ctxpar::transfer_layer> layers;
            layers.assign(p.sources[0].layers.begin(), p.sources[0].layers.end());
            layers[2].planes[part] = place;
            p.sources[0].layers = layers;
        });
    };
    CHECK(says(with_layer(0, {-1, 0}), "region", {"region -1"}));
    CHECK(says(with_layer(0, {99, 0}), "region", {"region 99"}));
    CHECK(says(with_layer(1, {1, -8}), "region", {"values", "-8"}));
    CHECK(says(with_layer(1, {0, 0}), "region", {"values", "64 bytes"}));
    CHECK(says(with_layer(0, {1, largest}), "region", {"keys"}));
}

TEST_CASE("places of pages are checked, all of them") {
    const auto with_pages = [](const std::function<void(std::vector<memory_place>&)>& change) {
        return refused_after(
            [&](plain_pair& p) {
                static std::vector<memory_place> pages;
                pages.assign(p.sources[0].key_pages.begin(), p.sources[0].key_pages.end());
                change(pages);
                p.sources[0].key_pages = pages;
            },
            pool_scales::none, pool_form::pointers_nhd);
    };
    CHECK(with_pages([](std::vector<memory_place>&) {}) == "none");
    CHECK(says(with_pages([](std::vector<memory_place>& p) { p.pop_back(); }), "pages", {"source rank 0"}));
    CHECK(says(with_pages([](std::vector<memory_place>& p) { p[2].region = 3; }), "region", {"region 3", "3 regions"}));
    CHECK(says(with_pages([](std::vector<memory_place>& p) { p[3].offset = -1; }), "region", {"-1"}));
    // Page 0 lies last in its region, with room for one more page behind it: its last layer must still fit.
    CHECK(with_pages([](std::vector<memory_place>& p) { p[0].offset += 288; }) == "none");
    CHECK(says(with_pages([](std::vector<memory_place>& p) { p[0].offset += 289; }), "region", {"of source rank 0"}));
}

TEST_CASE("a scale for all heads of a rank must come from one rank that has such a scale") {
    const auto refused = [](pool_scales source_scales, std::int64_t source_groups, std::int64_t target_groups) {
        std::mt19937 random(1);
        const transfer_deployment<ctxpar::fp8_e4m3> from({2, 2, 4, 0, {}, source_scales, source_groups, 1, 1},
                                                         {4, 2, 8, 4}, 20, random);
        const transfer_deployment<ctxpar::fp8_e4m3> to({1, 1, 4, 0, {}, pool_scales::shared_token, target_groups, 1, 1},
                                                       {4, 2, 8, 4}, 20, random);
        return refusal_of([&] { transfer_link(from.side(), to.side()); });
    };
    CHECK(refused(pool_scales::shared_token, 1, 1) == "none");
    CHECK(refused(pool_scales::shared_token, 1, 2) == "none");
    CHECK(refused(pool_scales::shared_token, 2, 2) == "none");
    CHECK(refused(pool_scales::token, 4, 4) == "none"); // one head a rank: one scale
    CHECK(says(refused(pool_scales::shared_token, 2, 1), "scale_kind", {"target rank 0", "[0, 4)", "one source rank"}));
    CHECK(says(refused(pool_scales::token, 1, 1), "scale_kind", {"such a scale"}));
}

TEST_CASE("replicas share the targets of a head evenly, and every head of every target has one source") {
    for (const std::int64_t source_replicas : {1, 2, 3, 4})
        for (const std::int64_t target_replicas : {1, 2, 4}) {
            std::mt19937 random(1);
            const transfer_deployment<ctxpar::bf16> from({2, 1, 4, 0, {}, {}, 2, source_replicas, 1}, {4, 1, 2, 2}, 8,
                                                         random);
            const transfer_deployment<ctxpar::bf16> to({3, 1, 4, 0, {}, {}, 4, target_replicas, 1}, {4, 1, 2, 2}, 8,
                                                       random);
            const transfer_link link(from.side(), to.side());
            for (std::int64_t part = 0; part < 2; ++part)
                for (std::int64_t head = 0; head < 4; ++head) {
                    numbers served(at(link.num_sources()), 0);
                    for (std::int64_t dst = 0; dst < link.num_targets(); ++dst) {
                        if (!link.target(dst).holds_head(head)) continue;
                        const std::int64_t src = link.source_of(dst, part, 0, head);
                        REQUIRE((link.source(src).holds_head(head) && link.source(src).part.rank == part));
                        ++served[at(src)];
                        // The same by the ranges of heads.
                        std::int64_t found = 0;
                        for (std::int64_t other = 0; other < link.num_sources(); ++other) {
                            if (link.source(other).part.rank != part) continue;
                            link.heads_between(other, dst, 0, [&](const ctxpar::head_range& heads) {
                                if (heads.first <= head && head < heads.last) {
                                    ++found;
                                    CHECK(other == src);
                                }
                            });
                        }
                        CHECK(found == 1);
                    }
                    std::int64_t most = 0, least = largest;
                    for (std::int64_t src = 0; src < link.num_sources(); ++src) {
                        if (!link.source(src).holds_head(head) || link.source(src).part.rank != part) continue;
                        most = std::max(most, served[at(src)]);
                        least = std::min(least, served[at(src)]);
                    }
                    CHECK(most - least <= 1);
                }
        }
}

TEST_CASE("a request's cache of another layout, a short table and ids outside the pools are refused") {
    const plain_pair pair;
    const transfer_link link(pair.source, pair.target);
    const auto refused = [&](const ctxpar::paged_request& from, const ctxpar::paged_request& to, std::int64_t first = 0,
                             std::int64_t end = 20) {
        return refusal_of([&] { transfer_plan(link, from, to, first, end); });
    };
    const ctxpar::paged_request source = pair.from.cache(), target = pair.to.cache();
    CHECK(refused(source, target) == "none");
    // A cache of dcp 2 offered to a plan for dcp 1, and the other way.
    CHECK(says(refused(source, source), "layout", {"2 ranks, interleave 2", "target", "1 ranks, interleave 1"}));
    CHECK(says(refused(target, target), "layout", {"1 ranks", "source", "2 ranks"}));
    ctxpar::paged_request wrong = target;
    wrong.table.block_size = 8;
    CHECK(says(refused(source, wrong), "layout", {"blocks of 8", "blocks of 4"}));
    wrong = target;
    wrong.request = 2;
    CHECK(says(refused(source, wrong), "request", {"request 2", "2 requests"}));
    wrong = target;
    wrong.table.columns = 4;
    CHECK(says(refused(source, wrong), "table_too_short", {"block 4", "4 blocks"}));
    CHECK(refused(source, wrong, 0, 16) == "none");
    CHECK(says(refused(source, target, 4, 3), "range", {"[4, 3)"}));
    CHECK(says(refused(source, target, -1, 3), "range", {"[-1, 3)"}));
    numbers ids = {0, 1, 2, 3, pair.targets[0].geometry.pages}; // one page a block
    wrong.table = ctxpar::table_2d(ids.data(), 1, 5, 4);
    wrong.request = 0;
    CHECK(says(refused(source, wrong), "table", {"block 4", "ids must be below"}));
    CHECK(refused(source, wrong, 0, 16) == "none");
    --ids[4];
    CHECK(refused(source, wrong) == "none");
    wrong.pool_blocks = 4; // the engine's own bound
    CHECK(says(refused(source, wrong), "table", {"4 blocks"}));
    ids[1] = -1;
    CHECK(says(refused(source, wrong, 0, 8), "table", {"id -1"}));
    // Whole blocks where the layouts do not allow them.
    CHECK(says(refusal_of([&] { transfer_plan(link, source, target, 0, 20, ctxpar::transfer_unit::blocks); }),
               "whole_blocks", {"interleave of 2"}));
}

TEST_CASE("the smallest pool of a side bounds its ids") {
    plain_pair pair;
    pair.sources[1].geometry.pages = 3;
    const transfer_link link(pair.source, pair.target);
    const numbers ids = {0, 1, 2, 3};
    const ctxpar::paged_request source{{2, 2}, ctxpar::table_2d(ids.data(), 1, 4, 4), 0, -1};
    CHECK(says(refusal_of([&] { transfer_plan(link, source, pair.to.cache(), 0, 26); }), "table", {"3 blocks"}));
    CHECK(refusal_of([&] { transfer_plan(link, source, pair.to.cache(), 0, 20); }) == "none");
}

TEST_CASE("places past 32 bits") {
    // Pages of 1 GiB, in a region of 16 of them.
    constexpr std::int64_t gib = std::int64_t{1} << 30;
    const std::vector<memory_region> regions = {{std::uint64_t{1} << 60, 16 * gib}};
    const std::vector<ctxpar::transfer_layer> layers = {{{{{0, 0}, {0, gib / 2}, {}, {}}}}};
    transfer_rank rank;
    rank.block_size = 4;
    rank.heads = {0, 1};
    rank.geometry.key_width = rank.geometry.value_width = 4;
    rank.geometry.pages = 16;
    rank.geometry.page_size = 4;
    rank.geometry.planes[0] = rank.geometry.planes[1] = {8, gib, 8, 8};
    rank.layers = layers;
    rank.regions = regions;
    const std::vector<transfer_rank> ranks = {rank};
    const transfer_side side{{1, 1}, 4, ranks};
    const transfer_link link(side, side);
    const numbers source = {13}, target = {15};
    const ctxpar::paged_request from{{1, 1}, ctxpar::table_2d(source.data(), 1, 1, 4), 0, -1};
    const ctxpar::paged_request to{{1, 1}, ctxpar::table_2d(target.data(), 1, 1, 4), 0, -1};
    std::vector<ctxpar::transfer> found;
    transfer_plan(link, from, to, 1, 3).for_each({}, [&](std::int64_t, std::int64_t, const ctxpar::transfer& each) {
        found.push_back(each);
    });
    CHECK(found == std::vector<ctxpar::transfer>{{{0, 13 * gib + 8}, {0, 15 * gib + 8}, 16},
                                                 {{0, 13 * gib + gib / 2 + 8}, {0, 15 * gib + gib / 2 + 8}, 16}});
    CHECK(ctxpar::address_of(regions, found[1].dst) == (std::uint64_t{1} << 60) + 15 * gib + gib / 2 + 8);
}

TEST_CASE("rows of two regions are never one transfer, even where their offsets follow one another") {
    // Latent rows of 8 bytes, pages of 4 tokens: the second page lies behind the first, or in the other region as if.
    const std::vector<memory_region> regions = {{1 << 20, 64}, {1 << 21, 64}};
    const std::vector<ctxpar::transfer_layer> layers = {{{{{0, 0}, {}, {}, {}}}}};
    const std::vector<memory_place> one_region = {{0, 0}, {0, 32}}, two_regions = {{0, 0}, {1, 32}};
    transfer_rank rank;
    rank.block_size = 4;
    rank.heads = {0, 1};
    rank.geometry.values_in_keys = true;
    rank.geometry.key_width = 4;
    rank.geometry.value_width = 2;
    rank.geometry.pages = 2;
    rank.geometry.page_size = 4;
    rank.geometry.planes[0] = {8, 0, 8, 8};
    rank.layers = layers;
    rank.regions = regions;
    const ctxpar::paged_request cache{{1, 1}, ctxpar::identity_table(1, 4, 2), 0, -1};
    const auto count = [&](const std::vector<memory_place>& source, const std::vector<memory_place>& target) {
        std::vector<transfer_rank> from = {rank}, to = {rank};
        from[0].key_pages = source;
        to[0].key_pages = target;
        const transfer_link link({{1, 1}, 4, from}, {{1, 1}, 4, to});
        const ctxpar::transfer_totals all = transfer_plan(link, cache, cache, 0, 8).totals();
        CHECK(all.bytes == 64);
        return all.transfers;
    };
    CHECK(count(one_region, one_region) == 1);
    CHECK(count(two_regions, one_region) == 2);
    CHECK(count(one_region, two_regions) == 2);
}
