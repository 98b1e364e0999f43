// A cache that goes from one layout to another: every token is where the law has it, bit for bit, nothing else is
// written, the source stays as it was, and no more is sent than the rows that change rank.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "../support/drawn.hpp"
#include "moving.hpp"

using namespace moving;

namespace {

using wide = gqa<bf16, 8, 6>;
using plain = gqa<float, 5, 3>;
using half = gqa<f16, 4>;
using narrow = gqa<bf16, 16, 16, fp8_e4m3>;
using narrower = gqa<bf16, 3, 5, fp8_e5m2>;
using latent = mla<bf16, 6, 2>;
using narrow_latent = mla<bf16, 12, 4, fp8_e4m3>;

// {N, I, B, first rank} of both sides, in a domain of some ranks.
struct change {
    std::int64_t domain;
    side from, to;
};
const change changes[] = {
    {1, {1, 1, 4, 0}, {1, 1, 4, 0}}, // only blocks change
    {2, {1, 1, 4, 0}, {2, 1, 4, 0}}, // a request that has grown
    {2, {2, 3, 2, 0}, {1, 5, 8, 1}}, // one that has shrunk
    {4, {1, 16, 16, 2}, {4, 16, 16, 0}}, {4, {4, 4, 4, 0}, {2, 4, 8, 0}}, {4, {2, 4, 8, 2}, {4, 2, 3, 0}},
    {4, {2, 1, 4, 0}, {2, 1, 4, 2}}, // other ranks
    {4, {2, 1, 4, 1}, {2, 1, 4, 2}}, // partly others
    {4, {1, 1, 4, 3}, {1, 1, 6, 1}}, // a rank to another; two join for nothing
    {3, {3, 2, 5, 0}, {3, 2, 5, 0}}, // the same layout, in other blocks
    {3, {3, 2, 5, 0}, {2, 7, 3, 1}},     {5, {2, 3, 4, 3}, {5, 1, 4, 0}}, {8, {3, 2, 4, 0}, {8, 4, 16, 0}},
};

setting setting_of(const change& c, std::int64_t length) {
    setting s;
    s.domain = c.domain;
    s.from = c.from;
    s.to = c.to;
    s.length = length;
    return s;
}

bool is_drawn(const setting& s) {
    static const std::uint64_t share = ctxpar_test::detail::number_of_environment("CTXPAR_SHARE", suite_ranks::share);
    return ctxpar_test::detail::is_drawn(describe(s), share);
}

// Tokens that change rank, one by one.
std::int64_t moved_tokens(const setting& s, std::int64_t first, std::int64_t end) {
    std::int64_t count = 0;
    for (std::int64_t token = first; token < end; ++token) {
        const std::int64_t from = s.from.first + token / s.from.interleave % s.from.ranks;
        const std::int64_t to = s.to.first + token / s.to.interleave % s.to.ranks;
        count += from != to ? 1 : 0;
    }
    return count;
}

struct outcome {
    std::int64_t wrong = 0;   // tokens of the target
    std::int64_t damaged = 0; // tokens of the source
    std::int64_t touched = 0; // slots too many, or too few
    std::uint64_t bytes = 0;  // sent by move()
    std::int64_t row_bytes = 0;
};

// Moves tokens [first, length), and counts what came of it on all ranks together.
template <class Attention>
outcome outcome_of(const setting& s, std::int64_t first = 0) {
    std::vector<outcome> all(static_cast<std::size_t>(s.domain));
    on_domain(s, [&](suite_ranks::communicator& world) {
        outcome& own = all[static_cast<std::size_t>(world.rank())];
        rank<Attention> here(world, s, s.length);
        here.append(0, s.length);
        here.job.first = first;
        typename rank<Attention>::mover used(world, here.shape());
        host_workspace memory(used.workspace_bytes());
        while (here.job.next() < s.length) {
            const auto step = used.plan(here.job, s.length, here.layers, memory, here.stream());
            const std::uint64_t before = world.bytes_sent();
            used.move(step, here.stream());
            own.bytes += world.bytes_sent() - before;
            here.job.done = step.end;
            world.wait(here.stream());
        }
        own.row_bytes = used.row_bytes();
        own.wrong = here.wrong_in_target(first, s.length);
        own.damaged = here.wrong_in_source(0, s.length);
        const std::int64_t due = here.own_tokens(s.from, 0, s.length) + here.own_tokens(s.to, first, s.length);
        own.touched = here.touched_slots() - due * s.layers;
    });
    outcome sum;
    for (const outcome& each : all) {
        sum.wrong += each.wrong;
        sum.damaged += each.damaged;
        sum.touched += each.touched < 0 ? -each.touched : each.touched;
        sum.bytes += each.bytes;
        sum.row_bytes = each.row_bytes;
    }
    return sum;
}

template <class Attention>
void check_moves(const setting& s, std::int64_t first = 0) {
    if (!is_drawn(s)) return;
    INFO(describe(s));
    const outcome got = outcome_of<Attention>(s, first);
    CHECK(got.wrong == 0);
    CHECK(got.damaged == 0);
    CHECK(got.touched == 0);
    CHECK(got.bytes == static_cast<std::uint64_t>(moved_tokens(s, first, s.length) * s.layers * got.row_bytes));
}

} // namespace

TEST_CASE("every token is where the law of the target has it, and no byte more is sent than rows that change rank") {
    for (const change& c : changes)
        for (const std::int64_t length : {1, 7, 48, 101})
            for (const bool one_pool : {true, false}) {
                setting s = setting_of(c, length);
                s.one_pool = one_pool;
                check_moves<wide>(s);
            }
}

TEST_CASE("rows of every storage type keep their bits, with the scales of each token") {
    for (const std::size_t i : {1U, 2U, 5U, 7U, 10U, 12U}) {
        setting s = setting_of(changes[i], 61);
        s.one_pool = i % 2 == 0;
        s.kv_heads = 3;
        check_moves<plain>(s);
        check_moves<half>(s);
        for (const scale_choice scales : {scale_choice::token, scale_choice::shared_token, scale_choice::head}) {
            s.scales = scales;
            check_moves<narrow>(s);
            check_moves<narrower>(s);
        }
        s.kv_heads = 1;
        check_moves<narrower>(s);
        for (const scale_choice scales : {scale_choice::none, scale_choice::token, scale_choice::tensor}) {
            s.scales = scales;
            check_moves<latent>(s);
            check_moves<narrow_latent>(s);
        }
    }
}

TEST_CASE("pages of both orders, and from one order into the other") {
    for (const change& c : {changes[3], changes[5], changes[10]})
        for (const page_order from : {page_order::nhd, page_order::hnd})
            for (const page_order to : {page_order::nhd, page_order::hnd}) {
                setting s = setting_of(c, 77);
                s.one_pool = false;
                s.from_order = from;
                s.to_order = to;
                s.kv_heads = 3;
                check_moves<wide>(s);
                s.scales = scale_choice::token;
                check_moves<narrow>(s);
            }
}

TEST_CASE("steps of any size give the same cache") {
    for (const change& c : {changes[1], changes[4], changes[11]})
        for (const std::int64_t chunk : {1, 2, 5, 16, 50, 51, 1000}) {
            setting s = setting_of(c, 51);
            s.chunk = chunk;
            check_moves<wide>(s);
        }
}

TEST_CASE("tokens that a window has left behind are neither moved nor looked at") {
    for (const change& c : changes)
        for (const std::int64_t first : {1, 20, 48}) check_moves<wide>(setting_of(c, 48), first);
}

TEST_CASE("there and back again, the cache is what it was, bit for bit") {
    for (const change& c : changes) {
        setting s = setting_of(c, 83);
        s.scales = scale_choice::token;
        s.chunk = 13;
        s.one_pool = false;
        if (!is_drawn(s)) continue;
        INFO(describe(s));
        std::vector<int> same(static_cast<std::size_t>(s.domain), 0);
        on_domain(s, [&](suite_ranks::communicator& world) {
            rank<narrow> here(world, s, s.length);
            here.append(0, s.length);
            rank<narrow>::mover used(world, here.shape());
            here.move_all(used, s.length);
            std::vector<std::vector<std::byte>> before;
            for (auto& each : here.source()) {
                before.push_back(each.bytes());
                each.clear();
            }
            std::vector<migrated_layer<fp8_e4m3>> back;
            for (std::size_t i = 0; i < before.size(); ++i)
                back.push_back({here.target()[i].view(), here.source()[i].view()});
            std::swap(here.layers, back);
            std::swap(here.job.from, here.job.to);
            here.job.done = 0;
            here.move_all(used, s.length);
            int& all = same[static_cast<std::size_t>(world.rank())];
            all = 1;
            for (std::size_t i = 0; i < before.size(); ++i) all = here.source()[i].bytes() == before[i] ? all : 0;
        });
        CHECK(same == std::vector<int>(same.size(), 1));
    }
}

TEST_CASE("a request may grow between steps, and its tables with it") {
    for (const change& c : {changes[1], changes[5], changes[7]}) {
        setting s = setting_of(c, 40);
        s.chunk = 7;
        if (!is_drawn(s)) continue;
        INFO(describe(s));
        std::vector<std::int64_t> wrong(static_cast<std::size_t>(s.domain), 0);
        on_domain(s, [&](suite_ranks::communicator& world) {
            rank<wide> here(world, s, 100);
            std::int64_t length = s.length;
            here.append(0, length);
            rank<wide>::mover used(world, here.shape());
            host_workspace memory(used.workspace_bytes());
            while (here.job.done < length) {
                here.fit_tables(length);
                const auto step = used.plan(here.job, length, here.layers, memory, here.stream());
                used.move(step, here.stream());
                here.job.done = step.end;
                world.wait(here.stream());
                if (length < 90) here.append(length, length + 5);
                if (length < 90) length += 5;
            }
            wrong[static_cast<std::size_t>(world.rank())] = here.wrong_in_target(0, length);
        });
        CHECK(wrong == std::vector<std::int64_t>(wrong.size(), 0));
    }
}

TEST_CASE("steps of two requests may be planned before either is moved, and layers moved in any order") {
    setting s = setting_of(changes[5], 16);
    s.layers = 3;
    setting other = setting_of(changes[7], 11);
    other.layers = 3;
    other.seed = 2;
    if (!is_drawn(s)) return;
    std::vector<std::int64_t> wrong(static_cast<std::size_t>(s.domain), 0);
    on_domain(s, [&](suite_ranks::communicator& world) {
        rank<wide> one(world, s, s.length), two(world, other, other.length);
        one.append(0, s.length);
        two.append(0, other.length);
        rank<wide>::mover used(world, one.shape());
        host_workspace memory(used.workspace_bytes()), more(used.workspace_bytes());
        const auto stream = one.stream();
        const auto first = used.plan(one.job, s.length, one.layers, memory, stream);
        const auto second = used.plan(two.job, other.length, two.layers, more, stream);
        for (const std::size_t layer : {2U, 0U, 1U}) {
            used.move(second, layer, stream);
            used.move(first, layer, stream);
        }
        world.wait(stream);
        wrong[static_cast<std::size_t>(world.rank())] =
            one.wrong_in_target(0, s.length) + two.wrong_in_target(0, other.length);
    });
    CHECK(wrong == std::vector<std::int64_t>(wrong.size(), 0));
}

TEST_CASE("of a request that is all moved, and of one without tokens, a step is empty and sends no row") {
    setting s = setting_of(changes[5], 24);
    std::vector<std::int64_t> right(static_cast<std::size_t>(s.domain), 0);
    on_domain(s, [&](suite_ranks::communicator& world) {
        rank<wide> here(world, s, s.length);
        rank<wide>::mover used(world, here.shape());
        host_workspace memory(used.workspace_bytes());
        for (const std::int64_t length : {0, 24}) {
            here.job.done = length;
            const auto step = used.plan(here.job, length, here.layers, memory, here.stream());
            const std::uint64_t before = world.bytes_sent();
            used.move(step, here.stream());
            world.wait(here.stream());
            const bool empty = step.first == length && step.end == length && !step.exchanges;
            right[static_cast<std::size_t>(world.rank())] +=
                empty && world.bytes_sent() == before && here.touched_slots() == 0 ? 1 : 0;
        }
    });
    CHECK(right == std::vector<std::int64_t>(right.size(), 2));
}
