// Batches of transfers, what a failing transport leaves behind, and how long lists of many transfers take.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/transfer_send.hpp>

#include "allocation_count.hpp"
#include "refusal.hpp"
#include "transfer_pools.hpp"

namespace {

using namespace ctxpar_test;
using ctxpar::memory_region;
using ctxpar::transfer;
using ctxpar::transfer_layer;
using ctxpar::transfer_link;
using ctxpar::transfer_plan;
using ctxpar::transfer_rank;
using ctxpar::transfer_totals;
using numbers = std::vector<std::int64_t>;

struct sent_batch {
    std::int64_t src, dst;
    std::vector<transfer> transfers;
};

// Two source shards to three target shards.
struct small_transfer {
    std::mt19937 random{5};
    transfer_deployment<ctxpar::bf16> from{{2, 1, 4, 0, {}, {}, 1, 1, 1}, {2, 2, 4, 4}, 30, random};
    transfer_deployment<ctxpar::bf16> to{{3, 2, 4, 0, {}, {}, 1, 1, 1}, {2, 2, 4, 4}, 30, random};
    transfer_link link{from.side(), to.side()};
    ctxpar::paged_request source = from.cache(), target = to.cache();
    transfer_plan plan{link, source, target, 0, 30};
};

// Deployments of numbers only: no byte of such a size is there. Keys and values have a region each, layers follow one
// another in it.
struct large_side {
    std::int64_t layers, row_bytes, blocks, block_size;
    ctxpar::ownership law;
    std::vector<memory_region> regions;
    std::vector<transfer_layer> places;
    std::vector<transfer_rank> ranks;
    numbers ids;

    large_side(const ctxpar::ownership& owners, std::int64_t length, std::int64_t num_layers, std::int64_t size,
               std::int64_t heads, std::uint32_t seed)
        : layers(num_layers), row_bytes(256), blocks(ctxpar::table_width(owners, size, length)), block_size(size),
          law(owners), ids(at(blocks)) {
        std::iota(ids.begin(), ids.end(), 0);
        std::mt19937 random(seed);
        std::shuffle(ids.begin(), ids.end(), random);
        const std::int64_t layer_bytes = blocks * size * heads * row_bytes;
        regions = {{std::uint64_t{1} << 40, layers * layer_bytes}, {std::uint64_t{1} << 50, layers * layer_bytes}};
        for (std::int64_t layer = 0; layer < layers; ++layer)
            places.push_back({{{{0, layer * layer_bytes}, {1, layer * layer_bytes}, {}, {}}}});
        for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
            transfer_rank r;
            r.part = {law.ranks, rank, law.interleave};
            r.block_size = size;
            r.heads = {0, heads};
            r.geometry.element = ctxpar::scalar_type::bf16;
            r.geometry.key_width = r.geometry.value_width = 128;
            r.geometry.pages = blocks;
            r.geometry.page_size = size;
            for (std::size_t part = 0; part < 2; ++part)
                r.geometry.planes[part] = {row_bytes, size * heads * row_bytes, heads * row_bytes, row_bytes};
            r.layers = places;
            r.regions = regions;
            ranks.push_back(r);
        }
    }
    ctxpar::transfer_side side() const { return {law, block_size, ranks}; }
    ctxpar::paged_request cache() const { return {law, ctxpar::table_2d(ids.data(), 1, blocks, block_size), 0, -1}; }
};

} // namespace

TEST_CASE("batches of one pair hold all of its transfers in order, and end where the pair does") {
    const small_transfer t;
    std::vector<sent_batch> due; // one a pair
    t.plan.for_each({}, [&](std::int64_t src, std::int64_t dst, const transfer& each) {
        if (due.empty() || due.back().src != src || due.back().dst != dst) due.push_back({src, dst, {}});
        due.back().transfers.push_back(each);
    });
    CHECK(due.size() == 6);
    for (const std::size_t room : {1, 2, 3, 7, 1000}) {
        std::vector<transfer> buffer(room);
        std::vector<sent_batch> found;
        std::size_t calls = 0;
        ctxpar::send_transfers(
            t.plan, {}, buffer, [&](std::int64_t src, std::int64_t dst, std::span<const transfer> batch) {
                CHECK(batch.data() == buffer.data());
                if (found.empty() || found.back().src != src || found.back().dst != dst)
                    found.push_back({src, dst, {}});
                found.back().transfers.insert(found.back().transfers.end(), batch.begin(), batch.end());
                ++calls;
            });
        REQUIRE(found.size() == due.size());
        std::size_t due_calls = 0;
        for (std::size_t i = 0; i < due.size(); ++i) {
            CHECK((found[i].src == due[i].src && found[i].dst == due[i].dst));
            CHECK(found[i].transfers == due[i].transfers);
            due_calls += (due[i].transfers.size() + room - 1) / room;
        }
        CHECK(calls == due_calls);
    }
}

TEST_CASE("a side that drives its own transfers names its rank, and sees what the whole plan has for it") {
    const small_transfer t;
    transfer_totals sum, layers;
    for (std::int64_t src = 0; src < 2; ++src) {
        const transfer_totals of = t.plan.totals({src, -1});
        sum.transfers += of.transfers;
        sum.bytes += of.bytes;
    }
    CHECK(sum == t.plan.totals());
    CHECK(sum.bytes == 30 * 2 * 2 * 2 * 4 * 2); // tokens, layers, keys and values, heads, elements, bytes
    for (std::int64_t layer = 0; layer < 2; ++layer) {
        const transfer_totals of = t.plan.totals({-1, -1, layer, layer + 1});
        layers.transfers += of.transfers;
        layers.bytes += of.bytes;
    }
    CHECK(layers == sum);
    std::int64_t to_one = 0;
    t.plan.for_each({-1, 2}, [&](std::int64_t, std::int64_t dst, const transfer& each) {
        CHECK(dst == 2);
        to_one += each.bytes;
    });
    CHECK(to_one == t.link.target(2).part.local_len(30) * 2 * 2 * 2 * 4 * 2);
    CHECK(t.plan.totals({-1, -1, 2, 9}).transfers == 0);
    CHECK(t.plan.totals({0, 1, 1, 1}).transfers == 0);
}

TEST_CASE("what a transport throws passes through, nothing more is sent, and the source is as it was") {
    small_transfer t;
    t.from.fill(30, 0, 2, [](std::int64_t) { return true; });
    const auto before = t.from.contents();
    std::vector<transfer> buffer(4);
    int calls = 0;
    const auto failing = [&](std::int64_t src, std::int64_t dst, std::span<const transfer> batch) {
        if (++calls == 3) throw std::runtime_error("link down");
        ctxpar::copy_transfers(t.link.source(src), t.link.target(dst), batch);
    };
    CHECK_THROWS_WITH_AS(ctxpar::send_transfers(t.plan, {}, buffer, failing), "link down", std::runtime_error);
    CHECK(calls == 3);
    CHECK(t.from.contents() == before);
    // The same plan, sent again.
    ctxpar::send_transfers(t.plan, {}, buffer,
                           [&](std::int64_t src, std::int64_t dst, std::span<const transfer> batch) {
                               ctxpar::copy_transfers(t.link.source(src), t.link.target(dst), batch);
                           });
    std::mt19937 random(5);
    const transfer_deployment<ctxpar::bf16> unused({2, 1, 4, 0, {}, {}, 1, 1, 1}, {2, 2, 4, 4}, 30, random);
    transfer_deployment<ctxpar::bf16> due({3, 2, 4, 0, {}, {}, 1, 1, 1}, {2, 2, 4, 4}, 30, random);
    due.fill(30, 0, 2, [](std::int64_t) { return true; });
    CHECK(t.to.contents() == due.contents());
}

TEST_CASE("no buffer and ranks or layers that are not there are refused before the first batch") {
    const small_transfer t;
    int calls = 0;
    const auto send = [&](std::int64_t, std::int64_t, std::span<const transfer>) { ++calls; };
    std::vector<transfer> buffer(4), none;
    const auto refused = [&](const ctxpar::transfer_scope& scope) {
        return refusal_of([&] { ctxpar::send_transfers(t.plan, scope, buffer, send); });
    };
    CHECK(says(refusal_of([&] { ctxpar::send_transfers(t.plan, {}, none, send); }), "size", {"at least 1"}));
    CHECK(says(refused({2, -1}), "rank", {"source rank 2", "2 ranks"}));
    CHECK(says(refused({0, 3}), "rank", {"target rank 3", "3 ranks"}));
    CHECK(says(refused({-2, 0}), "rank", {"source rank -2"}));
    CHECK(says(refused({-1, -1, -1, 2}), "layers", {"[-1, 2)"}));
    CHECK(says(refused({-1, -1, 2, 1}), "layers", {"[2, 1)"}));
    CHECK(calls == 0);
}

TEST_CASE(
    "a million tokens and 64 layers from one rank to eight: two transfers a chunk and layer, no memory, and soon") {
    constexpr std::int64_t length = std::int64_t{1} << 20, layers = 64;
    const large_side from({1, 1}, length, layers, 16, 8, 1), to({8, 16}, length, layers, 16, 8, 2);
    const transfer_link link(from.side(), to.side());
    const ctxpar::paged_request source = from.cache(), target = to.cache();
    num_allocations = 0;
    is_counting = true;
    const auto start = std::chrono::steady_clock::now();
    const transfer_plan plan(link, source, target, 0, length);
    const transfer_totals all = plan.totals();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    is_counting = false;
    CHECK(num_allocations == 0);
    // Tables in disorder: hardly any two blocks follow one another on both sides.
    constexpr std::int64_t most = length / 16 * layers * 2;
    CHECK(all.transfers <= most);
    CHECK(all.transfers > most - most / 1000);
    CHECK(all.bytes == length * layers * 2 * 8 * 256);
    MESSAGE(all.transfers, " transfers listed in ", took.count(), " ms");
    // Layer by layer for one target: an eighth of a layer.
    const transfer_totals one = plan.totals({-1, 3, 7, 8});
    CHECK(one.bytes == length / 8 * 2 * 8 * 256);
}

TEST_CASE("lists take no memory in any order of heads and pages, nor do batches") {
    const small_transfer t;
    std::vector<transfer> buffer(16);
    std::int64_t bytes = 0;
    num_allocations = 0;
    is_counting = true;
    ctxpar::send_transfers(t.plan, {}, buffer, [&](std::int64_t, std::int64_t, std::span<const transfer> batch) {
        for (const transfer& each : batch) bytes += each.bytes;
    });
    is_counting = false;
    CHECK(num_allocations == 0);
    CHECK(bytes == t.plan.totals().bytes);
}
