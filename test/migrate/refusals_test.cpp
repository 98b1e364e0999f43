// What a migrator refuses. What one rank refuses all refuse, before anything has moved, and the communicator lives on.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../support/refusal.hpp"
#include "moving.hpp"

using namespace moving;
using ctxpar_test::refusal_of;
using ctxpar_test::says;

namespace {

using attention = gqa<bf16, 8, 6>;
using scaled = gqa<bf16, 8, 6, fp8_e4m3>;

constexpr int culprit = 1;

// What a rank hands to plan().
template <class Rank>
struct call {
    Rank& here;
    migration job;
    std::int64_t length;
    std::vector<typename Rank::mover::layer> layers;
    migration_shape shape;
};

struct outcome {
    std::vector<std::string> said; // of each rank
    int moved_before = 0;          // ranks on which something was written or sent
    int wrong_after = 0;           // ranks on which the same migration, called rightly, failed
};

// Four ranks of which both sides have two or three; `spoil` changes what the culprit is called with.
setting base() {
    setting s;
    s.domain = 4;
    s.from = {2, 3, 4, 0};
    s.to = {3, 2, 6, 1};
    s.length = 50;
    s.chunk = 64;
    return s;
}

template <class Attention = attention, class Spoil>
outcome outcome_of(const setting& s, const Spoil& spoil, int from = culprit, int to = culprit) {
    outcome got;
    got.said.resize(static_cast<std::size_t>(s.domain));
    std::vector<int> moved(got.said.size(), 0), wrong(got.said.size(), 0);
    on_domain(s, [&](suite_ranks::communicator& world) {
        using here_type = rank<Attention>;
        const auto at = static_cast<std::size_t>(world.rank());
        here_type here(world, s, s.length);
        here.append(0, s.length);
        call<here_type> bad{here, here.job, s.length, here.layers, here.shape()};
        if (world.rank() >= from && world.rank() <= to) spoil(bad);
        const auto bytes = [&] {
            std::vector<std::vector<std::byte>> all;
            for (auto* pools : {&here.source(), &here.target()})
                for (auto& each : *pools) all.push_back(each.bytes());
            return all;
        };
        const auto before = bytes();
        {
            typename here_type::mover used(world, bad.shape);
            host_workspace memory(used.workspace_bytes());
            got.said[at] = refusal_of([&] { used.plan(bad.job, bad.length, bad.layers, memory, here.stream()); });
        }
        moved[at] = bytes() == before ? 0 : 1;
        here_type again(world, s, s.length); // a table may have been spoilt
        again.append(0, s.length);
        typename here_type::mover used(world, again.shape());
        again.move_all(used, s.length);
        wrong[at] = again.wrong_in_target(0, s.length) == 0 ? 0 : 1;
    });
    for (std::size_t i = 0; i < moved.size(); ++i) {
        got.moved_before += moved[i];
        got.wrong_after += wrong[i];
    }
    return got;
}

// One rank refuses in its own words, the others name it; then all goes on.
template <class Attention = attention, class Spoil>
void check_refused(const setting& s, const std::string& code, std::initializer_list<const char*> words,
                   const Spoil& spoil) {
    const outcome got = outcome_of<Attention>(s, spoil);
    for (std::size_t i = 0; i < got.said.size(); ++i) {
        INFO("rank ", i);
        if (i == culprit) {
            CHECK(says(got.said[i], code, words));
        } else {
            CHECK(says(got.said[i], code, {"rank 1 of the domain has refused", "nothing was moved"}));
        }
    }
    CHECK(got.moved_before == 0);
    CHECK(got.wrong_after == 0);
}

} // namespace

TEST_CASE("a table without room for the length is refused on all ranks, for tokens of later steps too") {
    for (const std::int64_t chunk : {64, 4}) {
        setting s = base();
        s.chunk = chunk;
        check_refused(s, "table_too_short",
                      {"50 tokens of request 0", "block 2 of the target", "6 tokens a block, 3 ranks, interleave 2",
                       "has 2 blocks"},
                      [](auto& bad) { bad.job.to.table.columns = 2; });
        check_refused(s, "table_too_short", {"block 5 of the source on rank 1", "its table has 5 blocks"},
                      [](auto& bad) { bad.job.from.table.columns = 5; });
    }
    const std::int64_t backwards[] = {5, 3}, negative[] = {-1, 3};
    check_refused(base(), "table_too_short", {"of the target", "its table has 0 blocks"},
                  [&](auto& bad) { bad.job.to.table = table_csr(bad.here.target_table().data(), backwards, 1, 6); });
    check_refused(base(), "table_too_short", {"of the target", "its table has 0 blocks"},
                  [&](auto& bad) { bad.job.to.table = table_csr(bad.here.target_table().data(), negative, 1, 6); });
}

TEST_CASE("a block that the pool does not have is refused on all ranks, of tokens of later steps too") {
    for (const std::int64_t chunk : {64, 4}) {
        setting s = base();
        s.chunk = chunk;
        check_refused(s, "table", {"block 2 of the target", "has the id -1", "ids must be 0 to"},
                      [](auto& bad) { bad.here.target_table()[2] = -1; });
        check_refused(s, "table", {"block 1 of the source", "has the id 1000"},
                      [](auto& bad) { bad.here.source_table()[1] = 1000; });
    }
    // The smallest pool of all layers decides, of which the last block may be cut off.
    setting s = base();
    s.one_pool = false;
    for (const std::size_t smaller : {0U, 1U})
        check_refused(s, "table", {"of the target", "has the id 2", "the pool has 2 blocks"}, [&](auto& bad) {
            bad.layers[smaller].to.pages = 4; // of 4 tokens, in which there are two blocks of 6
        });
    for (const std::size_t smaller : {0U, 1U})
        check_refused(s, "table", {"of the source", "the pool has 5 blocks"},
                      [&](auto& bad) { bad.layers[smaller].from.pages = 5; });
}

TEST_CASE("a target block that is a block of the source is refused on all ranks") {
    check_refused(base(), "overlap", {"block 2 of the source", "block 1 of its target on rank 1", "of its own"},
                  [](auto& bad) {
                      // Blocks of 4 and of 6 tokens: block 2 of the target has tokens 12 to 17 of the pool.
                      bad.here.source_table() = {0, 1, 3, 2, 5, 6, 4}; // the last is not needed
                      bad.job.from.table.blocks = index_of(bad.here.source_table().data());
                      bad.here.target_table()[1] = 2;
                  });
    for (const std::int32_t id : {0, 1}) { // tokens 0 to 5 and 6 to 11 of the pool: source blocks 0 to 2
        check_refused(base(), "overlap", {"shares memory"}, [&](auto& bad) { bad.here.target_table()[0] = id; });
    }
}

TEST_CASE("blocks that touch, and the same ids of two pools, do not overlap") {
    // Source blocks 0 and 1 have the slots 0 to 7, target block 2 of 4 tokens the slots from 8 on.
    setting s = base();
    s.from = {1, 1, 8, 1};
    s.to = {2, 1, 4, 1};
    s.length = 8;
    for (const bool one_pool : {true, false}) {
        s.one_pool = one_pool;
        const outcome got = outcome_of(s, [&](auto& good) {
            good.here.target_table()[0] = one_pool ? 4 : 0;
            good.here.source_table()[0] = one_pool ? 1 : 0;
        });
        CHECK(got.said == std::vector<std::string>(4, "none"));
    }
}

TEST_CASE("layouts that the domain does not have") {
    const auto huge = std::numeric_limits<std::int64_t>::max();
    const setting s = base();
    check_refused(s, "ranks", {"the source of a migration has 2 ranks from rank 3", "the domain has 4 ranks"},
                  [](auto& bad) { bad.job.from.first_rank = 3; });
    check_refused(s, "ranks", {"the target of a migration has 3 ranks from rank -1"},
                  [](auto& bad) { bad.job.to.first_rank = -1; });
    check_refused(s, "ranks", {"has 5 ranks"}, [](auto& bad) { bad.job.to.law.ranks = 5; });
    check_refused(s, "ranks", {"from rank 9223372036854775807"}, [&](auto& bad) { bad.job.to.first_rank = huge; });
    check_refused(s, "ranks", {}, [&](auto& bad) { bad.job.to.law.ranks = 0; });
    check_refused(s, "interleave", {}, [&](auto& bad) { bad.job.from.law.interleave = 0; });
    check_refused(s, "interleave", {}, [&](auto& bad) { bad.job.from.law.interleave = huge; });
}

TEST_CASE("tokens that are no range") {
    const setting s = base();
    check_refused(s, "range", {"has moved those before 51 of 50"}, [](auto& bad) { bad.job.done = 51; });
    check_refused(s, "range", {"tokens from 51 on"}, [](auto& bad) { bad.job.first = 51; });
    check_refused(s, "range", {}, [](auto& bad) { bad.job.first = -1; });
    check_refused(s, "range", {}, [](auto& bad) { bad.job.done = -1; });
    check_refused(s, "range", {"of -1"}, [](auto& bad) { bad.length = -1; });
}

TEST_CASE("tables that are no tables") {
    const setting s = base();
    check_refused(s, "request", {"request 1", "has 1 requests"}, [](auto& bad) { bad.job.from.request = 1; });
    check_refused(s, "request", {"request -1"}, [](auto& bad) { bad.job.to.request = -1; });
    check_refused(s, "block_size", {}, [](auto& bad) { bad.job.to.table.block_size = 0; });
    check_refused(s, "block_size", {}, [](auto& bad) { bad.job.from.table.block_size = -4; });
}

TEST_CASE("caches that are not what the migrator moves") {
    setting s = base();
    check_refused(s, "layers", {"no layers"}, [](auto& bad) { bad.layers.clear(); });
    check_refused(s, "null", {}, [](auto& bad) { bad.layers[1].to.k.base = nullptr; });
    check_refused(s, "stride", {}, [](auto& bad) { bad.layers[0].from.v.token_stride = 1; });
    check_refused(s, "cache", {"the source cache of layer 1 has 1 KV heads"},
                  [](auto& bad) { bad.layers[1].from.kv_heads = 1; });
    check_refused(s, "cache", {"the target cache of layer 0", "of 7 and 6 elements", "rows of 2 of 8 and 6"},
                  [](auto& bad) { bad.layers[0].to.key_width = 7; });
    check_refused(s, "cache", {"of 8 and 5 elements"}, [](auto& bad) { bad.layers[0].to.value_width = 5; });
    check_refused(s, "cache", {"has its values in the rows of its keys"},
                  [](auto& bad) { bad.layers[0].to.v = bad.layers[0].to.k; });
    s.scales = scale_choice::token;
    check_refused<scaled>(s, "cache", {"target cache of layer 1 has 0 and 2 scales", "the migrator moves 2"},
                          [](auto& bad) { bad.layers[1].to.k_scale = per_tensor(1.0F); });
    check_refused<scaled>(s, "cache", {"source cache of layer 0 has 2 and 1 scales"},
                          [](auto& bad) { bad.layers[0].from.v_scale.head_stride = 0; });
    s.scales = scale_choice::none;
    check_refused<scaled>(s, "cache", {"has 1 and 0 scales", "the migrator moves 0"}, [](auto& bad) {
        static float one = 1.0F;
        bad.layers[0].from.k_scale = per_token(&one, 0, 0, 0);
    });
}

TEST_CASE("a side that a rank is not in is not looked at") {
    const outcome got = outcome_of(
        base(),
        [](auto& good) {
            if (!good.here.has(base().from)) {
                good.job.from.table = {};
                good.job.from.request = -7;
                for (auto& each : good.layers) each.from = {};
            }
            if (!good.here.has(base().to)) {
                good.job.to.table.block_size = 0;
                for (auto& each : good.layers) each.to = {};
            }
        },
        0, 3);
    CHECK(got.said == std::vector<std::string>(4, "none"));
}

TEST_CASE("ranks that are called for different steps refuse, all of them") {
    const auto check_differs = [](const auto& spoil) {
        const outcome got = outcome_of(base(), spoil);
        for (const std::string& said : got.said) CHECK(says(said, "facts", {"rank 1 of the domain", "than rank 0"}));
        CHECK(got.moved_before == 0);
        CHECK(got.wrong_after == 0);
    };
    check_differs([](auto& bad) { bad.length = 49; });
    check_differs([](auto& bad) { bad.job.done = 3; });
    check_differs([](auto& bad) { bad.job.first = 3; });
    check_differs([](auto& bad) { bad.job.from.law.interleave = 1; });
    check_differs([](auto& bad) { bad.job.to.law.interleave = 1; });
    check_differs([](auto& bad) { bad.job.from.law.ranks = 3; });
    check_differs([](auto& bad) { bad.layers.pop_back(); });
    check_differs([](auto& bad) { bad.shape.chunk_tokens = 65; });
    check_differs([](auto& bad) { // of rank 1's place in the target it is 2 now, where it has room as well
        bad.job.to.first_rank = 0;
    });
}

TEST_CASE("of several refusals a rank tells its own") {
    const outcome got = outcome_of(
        base(),
        [](auto& bad) {
            if (bad.here.world().rank() == 1) bad.job.to.table.columns = 1;
            if (bad.here.world().rank() == 2) bad.layers.clear();
        },
        1, 2);
    CHECK(says(got.said[0], "table_too_short", {"rank 1 of the domain has refused"}));
    CHECK(says(got.said[1], "table_too_short", {"of the target"}));
    CHECK(says(got.said[2], "layers", {}));
    CHECK(says(got.said[3], "table_too_short", {"rank 1 of the domain has refused"}));
}

TEST_CASE("shapes, workspaces and steps that are refused at once") {
    const setting s = base();
    on_domain(s, [&](suite_ranks::communicator& world) {
        using mover = migrator<attention, suite_ranks::backend, suite_ranks::communicator>;
        using latent = migrator<mla<bf16, 8, 4>, suite_ranks::backend, suite_ranks::communicator>;
        using dynamic_widths = gqa<bf16, dynamic, dynamic>;
        using any_width = migrator<dynamic_widths, suite_ranks::backend, suite_ranks::communicator>;
        const auto huge = std::numeric_limits<std::int64_t>::max();
        std::vector<std::string> said;
        for (const migration_shape& shape : std::vector<migration_shape>{
                 {2, 0, 0}, {2, 0, -1}, {0, 0, 4}, {3, 2, 4}, {2, -1, 4}, {huge, 0, 4}, {2, 0, huge}})
            said.push_back(refusal_of([&] { mover(world, shape); }));
        said.push_back(refusal_of([&] { latent(world, {2, 0, 4}); }));
        said.push_back(refusal_of([&] { any_width(world, {2, 0, 4}); }));
        said.push_back(refusal_of([&] { any_width(world, {2, 0, 4}, dynamic_widths(huge, huge)); }));
        if (world.rank() == 0) {
            CHECK(says(said[0], "chunk", {"0 tokens at a time"}));
            CHECK(says(said[1], "chunk", {"-1 tokens"}));
            CHECK(says(said[2], "kv_heads", {"0 KV heads"}));
            CHECK(says(said[3], "scales", {"2 scales", "each of 3 KV heads"}));
            CHECK(says(said[4], "scales", {}));
            CHECK(says(said[5], "size", {}));
            CHECK(says(said[6], "size", {"2^56"}));
            CHECK(says(said[7], "kv_heads", {"of MLA just 1"}));
            CHECK(says(said[8], "width", {}));
            CHECK(says(said[9], "size", {}));
        }
        rank<attention> here(world, s, s.length);
        here.append(0, s.length);
        mover used(world, here.shape());
        migration_shape larger = here.shape();
        larger.chunk_tokens += 1;
        mover other(world, larger);
        host_workspace memory(used.workspace_bytes() + 8);
        const workspace whole = memory;
        const auto plan = [&](const workspace& lent) {
            return refusal_of([&] { used.plan(here.job, s.length, here.layers, lent, here.stream()); });
        };
        said = {plan({nullptr, whole.bytes}), plan({whole.data, used.workspace_bytes() - 1}),
                plan({static_cast<std::byte*>(whole.data) + 8, used.workspace_bytes()})};
        const auto step =
            used.plan(here.job, s.length, here.layers, {whole.data, used.workspace_bytes()}, here.stream());
        said.push_back(refusal_of([&] { used.move(mover::step{}, 0, here.stream()); }));
        said.push_back(refusal_of([&] { other.move(step, 0, here.stream()); }));
        said.push_back(refusal_of([&] { used.move(step, 2, here.stream()); }));
        world.wait(here.stream());
        if (world.rank() == 0) {
            for (int i = 0; i < 3; ++i) CHECK(says(said[static_cast<std::size_t>(i)], "workspace", {}));
            CHECK(says(said[3], "step", {}));
            CHECK(says(said[4], "step", {}));
            CHECK(says(said[5], "layer", {"layer 2", "2 layers"}));
        }
    });
}
