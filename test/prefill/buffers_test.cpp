// The workspace of a prefill step: exact, the same whatever the context, and all that a step needs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "small_world.hpp"

using namespace small_world;

namespace {

constexpr std::byte untouched{0xa5};
constexpr std::size_t behind = 4096;

// What a step left in a workspace that is longer than it said it needs.
struct trace {
    std::size_t stated = 0;
    std::size_t last_written = 0; // one past
    bool beyond = false;
    double error = 0;
};

trace run_traced(const setting& s, const all_groups& world, std::int64_t rank) {
    one_rank<> one(s, world, rank);
    trace found;
    found.stated = one.used().workspace_bytes();
    host_workspace memory(found.stated + behind);
    auto* const bytes = static_cast<std::byte*>(workspace(memory).data);
    std::fill_n(bytes, found.stated + behind, untouched);
    const prefill_step step = one.used().plan(one.batch(), workspace{bytes, found.stated}, {});
    found.error = one.run(step).out;
    one.restores(step);
    found.beyond = std::any_of(bytes + found.stated, bytes + found.stated + behind,
                               [](std::byte byte) { return byte != untouched; });
    for (std::size_t i = found.stated; i > 0 && found.last_written == 0; --i)
        if (bytes[i - 1] != untouched) found.last_written = i;
    return found;
}

std::vector<trace> traces_of(const setting& s) {
    const all_groups world(s);
    std::vector<trace> found(static_cast<std::size_t>(s.world()));
    on_all_ranks(s, [&](std::int64_t rank) { found[static_cast<std::size_t>(rank)] = run_traced(s, world, rank); });
    return found;
}

} // namespace

TEST_CASE("gathered keys: the context grows 64-fold, the workspace does not") {
    std::vector<std::vector<trace>> by_context;
    for (const std::int64_t context : {64, 64 * 64}) {
        setting s;
        s.sizes.pcp = s.sizes.dcp = 2;
        s.interleave = 4;
        s.block_size = 16;
        s.context_rows = 64;
        s.prefill_rows = prefill_path::gather_kv;
        s.requests = {{context, 24, false}};
        by_context.push_back(traces_of(s));
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
        const trace& small = by_context[0][rank];
        const trace& large = by_context[1][rank];
        CHECK(small.stated == large.stated);
        CHECK(small.last_written == large.last_written); // what was really used at most
        CHECK_FALSE(small.beyond);
        CHECK_FALSE(large.beyond);
        CHECK(large.error <= 2e-6);
    }
}

TEST_CASE("a step writes nothing behind its workspace, on any path") {
    for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv, prefill_path::automatic}) {
        for (const merge_kind merge : {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar}) {
            setting s;
            s.sizes.tp = s.sizes.pcp = 2;
            s.sizes.dcp = 4;
            s.merge = merge;
            s.prefill_rows = path;
            s.requests = {{30, 9, false}, {12, 2, true}, {0, 5, false}};
            for (const trace& found : traces_of(s)) {
                CHECK_FALSE(found.beyond);
                CHECK(found.last_written > 0);
                CHECK(found.error <= 2e-6);
            }
        }
    }
}

TEST_CASE("a path that is never taken costs no memory") {
    setting s;
    s.sizes.pcp = s.sizes.dcp = 2;
    s.requests = {{4000, 20, false}};
    s.context_rows = 4000;
    const auto bytes = [&](prefill_path path) {
        s.prefill_rows = path;
        const all_groups world(s);
        return one_rank<>(s, world, 0).used().workspace_bytes();
    };
    const std::size_t both = bytes(prefill_path::automatic);
    CHECK(bytes(prefill_path::gather_q) < both);
    CHECK(bytes(prefill_path::gather_kv) <= both);
    s.context_rows = 1000000; // more than the longest request needs
    CHECK(bytes(prefill_path::automatic) < 4 * both);
}
