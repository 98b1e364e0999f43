// KV transfer on real bytes: caches of all layouts, filled row by row, carried over by the lists and compared byte by
// byte with what the target should hold.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/transfer_send.hpp>

#include "transfer_pools.hpp"

namespace {

using namespace ctxpar_test;
using ctxpar::transfer;
using ctxpar::transfer_link;
using ctxpar::transfer_plan;
using ctxpar::transfer_totals;
using ctxpar::transfer_unit;
using numbers = std::vector<std::int64_t>;

// One row on both sides, and where it comes in an order of rows.
struct row_pair {
    std::array<std::int64_t, 4> order;
    const std::byte* src;
    const std::byte* dst;
    std::int64_t bytes;
};

// How many transfers there are where rows, taken in order, are joined to the row before that they follow on both sides.
std::int64_t joined(std::vector<row_pair> rows) {
    std::sort(rows.begin(), rows.end(), [](const row_pair& a, const row_pair& b) { return a.order < b.order; });
    std::int64_t count = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
        count += i == 0 || rows[i - 1].src + rows[i - 1].bytes != rows[i].src ||
                 rows[i - 1].dst + rows[i - 1].bytes != rows[i].dst;
    return count;
}

// What goes from one rank to another: the fewest transfers of any sensible order of its rows, and their bytes.
template <class Kv>
transfer_totals plain_totals(const transfer_deployment<Kv>& from, const transfer_deployment<Kv>& to, std::int64_t src,
                             std::int64_t dst, std::int64_t layer, const numbers& heads, std::int64_t first,
                             std::int64_t end) {
    const auto& a = *from.pools[at(src)];
    const auto& b = *to.pools[at(dst)];
    const auto from_places = from.deal(end), to_places = to.deal(end);
    std::pair<std::int64_t, std::int64_t> pages{-1, -1};
    std::int64_t page = 0, bytes = 0;
    // [part][order] rows: by token, by head, by page and head, by page and token
    std::array<std::array<std::vector<row_pair>, 4>, 4> rows;
    std::array<std::vector<row_pair>, 2> pages_of_both; // keys and values of a page together, in the last two orders
    for (std::int64_t token = first; token < end; ++token) {
        const auto x = from_places[at(token)], y = to_places[at(token)];
        if (x.shard != a.rank.part.rank || y.shard != b.rank.part.rank) continue;
        const std::pair now{x.slot / a.rank.geometry.page_size, y.slot / b.rank.geometry.page_size};
        if (now != pages) ++page, pages = now;
        for (std::size_t part = 0; part < 4; ++part)
            for (const std::int64_t head : heads) {
                if (part >= 2 && to.given.scales == pool_scales::shared_token && head != heads[0]) continue;
                const row_at p = a.row(part, layer, x.slot, head), q = b.row(part, layer, y.slot, head);
                if (p.bytes == 0) continue;
                bytes += p.bytes;
                const auto add = [&](std::vector<row_pair>& list, std::array<std::int64_t, 4> order) {
                    list.push_back({order, p.data, q.data, p.bytes});
                };
                const auto kind = static_cast<std::int64_t>(part);
                add(rows[part][0], {token, head, 0, 0});
                add(rows[part][1], {head, token, 0, 0});
                add(rows[part][2], {page, head, token, 0});
                add(rows[part][3], {page, token, head, 0});
                if (part < 2) add(pages_of_both[0], {page, kind, head, token});
                if (part < 2) add(pages_of_both[1], {page, kind, token, head});
            }
    }
    std::array<std::int64_t, 4> counts{};
    for (std::size_t part = 0; part < 4; ++part) {
        counts[part] = joined(rows[part][0]);
        for (const auto& list : rows[part]) counts[part] = std::min(counts[part], joined(list));
    }
    std::int64_t both = counts[0] + counts[1];
    const auto by_head = [](pool_form form) { return form == pool_form::joint_hnd || form == pool_form::pointers_hnd; };
    if (by_head(from.given.form) == by_head(to.given.form)) // else a page's last key and first value may meet by chance
        both = std::min({both, joined(pages_of_both[0]), joined(pages_of_both[1])});
    return {both + counts[2] + counts[3], bytes};
}

// The heads of a layer that go from one rank to another, by the rule in words: the i-th of the targets that hold a head
// is served by the i-th of the sources that hold it, counted round.
template <class Kv>
numbers plain_heads(const transfer_deployment<Kv>& from, const transfer_deployment<Kv>& to, std::int64_t src,
                    std::int64_t dst, std::int64_t layer, std::int64_t kv_heads) {
    numbers heads;
    const auto holds = [&](const auto& pool, std::int64_t head) {
        return pool->rank.holds_layer(layer) && pool->rank.heads.first <= head && head < pool->rank.heads.last;
    };
    for (std::int64_t head = 0; head < kv_heads; ++head) {
        numbers sources, targets;
        for (std::size_t i = 0; i < from.pools.size(); ++i)
            if (holds(from.pools[i], head) && from.pools[i]->rank.part.rank == from.pools[at(src)]->rank.part.rank)
                sources.push_back(static_cast<std::int64_t>(i));
        for (std::size_t i = 0; i < to.pools.size(); ++i)
            if (holds(to.pools[i], head)) targets.push_back(static_cast<std::int64_t>(i));
        for (std::size_t i = 0; i < targets.size(); ++i)
            if (targets[i] == dst && sources[i % sources.size()] == src) heads.push_back(head);
    }
    return heads;
}

struct transfer_job {
    std::int64_t length = 40, first = 0, end = 40;
    std::int64_t first_layer = 0, last_layer = 3;
    transfer_unit unit = transfer_unit::tokens;
};

template <class Kv>
void check_job(const transfer_case& source_case, const transfer_case& target_case, const transfer_model& model,
               const transfer_job& job, std::uint32_t seed, bool shuffled = true) {
    std::mt19937 random(seed), target_random(seed + 1), due_random(seed + 1);
    transfer_deployment<Kv> from(source_case, model, job.length, random, shuffled);
    transfer_deployment<Kv> to(target_case, model, job.length, target_random, shuffled);
    transfer_deployment<Kv> due(target_case, model, job.length, due_random, shuffled);
    from.fill(job.length, 0, model.layers, [](std::int64_t) { return true; });
    const auto source_before = from.contents();

    const transfer_link link(from.side(), to.side());
    const transfer_plan plan(link, from.cache(), to.cache(), job.first, job.end, job.unit);
    std::vector<transfer> buffer(7);
    std::map<std::pair<std::int64_t, std::int64_t>, transfer_totals> sent;
    const ctxpar::transfer_scope scope{-1, -1, job.first_layer, job.last_layer};
    ctxpar::send_transfers(plan, scope, buffer,
                           [&](std::int64_t src, std::int64_t dst, std::span<const transfer> batch) {
                               REQUIRE((!batch.empty() && batch.size() <= buffer.size()));
                               transfer_totals& pair = sent[{src, dst}];
                               pair.transfers += static_cast<std::int64_t>(batch.size());
                               for (const transfer& each : batch) pair.bytes += each.bytes;
                               ctxpar::copy_transfers(link.source(src), link.target(dst), batch);
                           });

    // Whole blocks bring every token of a block.
    const auto places = from.deal(job.length);
    std::vector<std::pair<std::int64_t, std::int64_t>> blocks;
    for (std::int64_t token = job.first; token < job.end; ++token)
        blocks.push_back({places[at(token)].shard, places[at(token)].slot / source_case.block_size});
    due.fill(job.length, job.first_layer, job.last_layer, [&](std::int64_t token) {
        if (job.unit == transfer_unit::tokens) return job.first <= token && token < job.end;
        const std::pair block{places[at(token)].shard, places[at(token)].slot / source_case.block_size};
        return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
    });
    REQUIRE(to.contents() == due.contents());
    REQUIRE(from.contents() == source_before);

    // Each pair of ranks: as few transfers as can be, every row once; and its own scope gives the same.
    for (std::int64_t src = 0; src < link.num_sources(); ++src)
        for (std::int64_t dst = 0; dst < link.num_targets(); ++dst) {
            transfer_totals all;
            for (std::int64_t layer = job.first_layer; layer < job.last_layer; ++layer) {
                const numbers heads = plain_heads(from, to, src, dst, layer, model.kv_heads);
                if (heads.empty()) continue;
                const transfer_totals of = plain_totals(from, to, src, dst, layer, heads, job.first, job.end);
                all.transfers += of.transfers;
                all.bytes += of.bytes;
            }
            const transfer_totals pair = sent[{src, dst}];
            REQUIRE(plan.totals({src, dst, job.first_layer, job.last_layer}) == pair);
            if (job.unit == transfer_unit::tokens) REQUIRE(pair == all);
        }
}

constexpr pool_form split_forms[] = {pool_form::nhd,          pool_form::hnd,          pool_form::joint_nhd,
                                     pool_form::joint_hnd,    pool_form::stacked_nhd,  pool_form::stacked_hnd,
                                     pool_form::pointers_nhd, pool_form::pointers_hnd, pool_form::gaps,
                                     pool_form::head_major};

transfer_case with(transfer_case c, pool_form form, pool_scales scales = pool_scales::none) {
    c.form = form;
    c.scales = scales;
    return c;
}

std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

} // namespace

TEST_CASE("every form of pool into every other: each byte arrives, no other is touched, in the fewest transfers") {
    const transfer_case from{2, 1, 4, 0, {}, {}, 1, 1, 1}, to{3, 2, 4, 0, {}, {}, 1, 1, 1};
    const transfer_case same{2, 4, 4, 0, {}, {}, 1, 1, 1};
    std::uint32_t seed = 1;
    for (const pool_form source : split_forms)
        for (const pool_form target : split_forms) {
            CAPTURE(static_cast<int>(source));
            CAPTURE(static_cast<int>(target));
            check_job<ctxpar::bf16>(with(from, source), with(to, target), {4, 2, 6, 4}, {40, 3, 39, 0, 2}, ++seed);
            // Whole blocks in one layout, in pools where they follow one another.
            check_job<ctxpar::bf16>(with(same, source), with(same, target), {2, 2, 6, 6}, {40, 0, 40, 0, 2}, ++seed,
                                    false);
        }
    for (const pool_form source : {pool_form::latent, pool_form::latent_pointers})
        for (const pool_form target : {pool_form::latent, pool_form::latent_pointers}) {
            check_job<ctxpar::bf16>(with(from, source), with(to, target), {1, 3, 6, 4}, {40, 0, 37, 1, 3}, ++seed);
            check_job<float>(with(from, source), with(from, target), {1, 3, 6, 4}, {40, 2, 40, 0, 3}, ++seed, false);
        }
}

TEST_CASE("scales a token travel with their rows, other scales do not") {
    const transfer_case from{2, 3, 4, 0, {}, {}, 1, 1, 1}, to{1, 1, 8, 0, {}, {}, 1, 1, 1};
    std::uint32_t seed = 100;
    for (const pool_scales scales :
         {pool_scales::none, pool_scales::tensor, pool_scales::head, pool_scales::token, pool_scales::shared_token})
        for (const pool_form form : {pool_form::nhd, pool_form::hnd, pool_form::joint_hnd, pool_form::latent}) {
            CAPTURE(static_cast<int>(scales));
            const transfer_model model{form == pool_form::latent ? 1 : 4, 2, 8, 4};
            const pool_form other = form == pool_form::nhd ? pool_form::gaps : form;
            check_job<ctxpar::fp8_e4m3>(with(from, form, scales), with(to, other, scales), model, {50, 0, 50, 0, 2},
                                        ++seed);
        }
    // Heads split over ranks: a scale a head goes with its head, one for all heads to every rank that has some.
    transfer_case whole = with(from, pool_form::nhd, pool_scales::token),
                  parts = with(to, pool_form::hnd, pool_scales::token);
    parts.head_groups = 2;
    check_job<ctxpar::fp8_e4m3>(whole, parts, {4, 2, 6, 4}, {50, 1, 49, 0, 2}, ++seed);
    check_job<ctxpar::fp8_e4m3>(parts, whole, {4, 2, 6, 4}, {50, 1, 49, 0, 2}, ++seed);
    whole.scales = parts.scales = pool_scales::shared_token;
    check_job<ctxpar::fp8_e4m3>(whole, parts, {4, 2, 6, 4}, {50, 1, 49, 0, 2}, ++seed);
}

TEST_CASE("heads split and replicated over ranks, layers over stages: each row comes from one source") {
    std::uint32_t seed = 200;
    for (const std::int64_t source_groups : {1, 2, 4})
        for (const std::int64_t target_groups : {1, 2, 4})
            for (const std::int64_t source_replicas : {1, 2, 3})
                for (const std::int64_t target_replicas : {1, 2}) {
                    CAPTURE(source_groups);
                    CAPTURE(target_groups);
                    const pool_form form = (seed & 1) != 0 ? pool_form::nhd : pool_form::joint_hnd;
                    check_job<ctxpar::bf16>({2, 2, 4, 0, form, {}, source_groups, source_replicas, 2},
                                            {3, 1, 4, 0, form, {}, target_groups, target_replicas, 3}, {4, 3, 2, 2},
                                            {30, 0, 30, 0, 3}, ++seed);
                }
    check_job<ctxpar::bf16>({1, 1, 4, 0, pool_form::hnd, {}, 3, 2, 1}, {2, 1, 4, 0, pool_form::nhd, {}, 2, 1, 1},
                            {6, 2, 4, 2}, {30, 0, 30, 0, 2}, ++seed);
}

TEST_CASE("random deployments") {
    std::mt19937 random(7);
    for (std::uint32_t repeat = 0; repeat < 250; ++repeat) {
        const auto drawn = [&](const transfer_case& like) {
            transfer_case c = like;
            c.ranks = draw(random, 1, 4);
            c.interleave = draw(random, 1, 9);
            c.block_size = draw(random, 1, 6);
            const std::int64_t pages = draw(random, 0, 3);
            c.page_size = pages == 0 ? 0 : (pages == 1 ? 2 * c.block_size : draw(random, 1, 7));
            c.form = split_forms[draw(random, 0, 9)];
            c.head_groups = draw(random, 1, 2);
            c.replicas = draw(random, 1, 2);
            c.stages = draw(random, 1, 2);
            return c;
        };
        const pool_scales scales = draw(random, 0, 1) == 0 ? pool_scales::none : pool_scales::token;
        const transfer_case from = drawn({1, 1, 4, 0, {}, scales, 1, 1, 1});
        transfer_case to = drawn({1, 1, 4, 0, {}, scales, 1, 1, 1});
        if (draw(random, 0, 3) == 0) to.ranks = from.ranks, to.interleave = from.interleave;
        const std::int64_t length = draw(random, 0, 60), first = draw(random, 0, length);
        const transfer_job job{length, first, draw(random, first, length), draw(random, 0, 1), draw(random, 1, 2)};
        CAPTURE(repeat);
        check_job<ctxpar::fp8_e4m3>(from, to, {2, 2, 4, 8}, job, 1000 + repeat, draw(random, 0, 1) == 0);
    }
}

TEST_CASE("whole blocks: the block of a token arrives whole and no other does") {
    std::mt19937 random(8);
    for (std::uint32_t repeat = 0; repeat < 150; ++repeat) {
        transfer_case from, to;
        from.block_size = to.block_size = draw(random, 1, 5);
        from.ranks = draw(random, 1, 4);
        to.ranks = draw(random, 1, 4);
        from.interleave = from.block_size * draw(random, 1, 3);
        to.interleave = from.block_size * draw(random, 1, 3);
        if (draw(random, 0, 2) == 0) to.ranks = from.ranks, to.interleave = from.interleave = draw(random, 1, 9);
        from.form = split_forms[draw(random, 0, 9)];
        to.form = split_forms[draw(random, 0, 9)];
        const std::int64_t length = draw(random, 0, 60), first = draw(random, 0, length);
        const transfer_job job{length, first, draw(random, first, length), 0, 2, transfer_unit::blocks};
        CAPTURE(repeat);
        check_job<ctxpar::bf16>(from, to, {2, 2, 4, 2}, job, 2000 + repeat);
    }
}
