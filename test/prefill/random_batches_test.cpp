// A thousand batches of any kind over any legal shape of ranks: every rank plans the same collectives, makes them, and
// gets what attention without ranks gives. Batches in which ranks have no rows, no context or nothing at all are among
// them.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "small_batches.hpp"

using namespace small_world;

namespace {

bool same(const collective_call& a, const collective_call& b) {
    return a.op == b.op && a.group == b.group && a.type == b.type && a.size == b.size && a.bytes == b.bytes &&
           a.calls == b.calls;
}

bool same(const collective_schedule& a, const collective_schedule& b) {
    bool equal = a.count == b.count;
    for (std::size_t i = 0; equal && i < static_cast<std::size_t>(a.count); ++i) equal = same(a.calls[i], b.calls[i]);
    return equal;
}

// What a communicator that only moves bytes is asked for one planned call; a gather of context is several.
void expect_call(std::vector<seen_call>& due, const collective_call& call) {
    switch (call.op) {
    case collective_op::all_gather:
    case collective_op::all_to_all:
        due.push_back({call.what, call.op, call.size, call.bytes});
        return;
    case collective_op::reduce_scatter:
        due.push_back({call.what, collective_op::all_to_all, call.size, call.bytes});
        return;
    case collective_op::all_reduce:
        due.push_back({call.what, collective_op::all_to_all, call.size, call.bytes / 2});
        due.push_back({call.what, collective_op::all_gather, call.size, call.bytes / 2});
    }
}

// The calls of one group, gathers of context added up, as the plan states them and as they were made.
struct group_calls {
    std::vector<seen_call> due, made;
};

std::vector<seen_call> without_context(const std::vector<seen_call>& calls, std::uint64_t& bytes, std::int64_t& count) {
    std::vector<seen_call> rest;
    for (const seen_call& call : calls) {
        if (call.what != "context") {
            rest.push_back(call);
            continue;
        }
        bytes += call.bytes;
        ++count;
    }
    return rest;
}

// Whether a rank made the calls of its plan in each group, in order.
bool made_as_planned(const prefill_step& step, const groups<noting_communicator>& ranks) {
    const noting_communicator* const all[] = {ranks.kv, ranks.query, ranks.heads, ranks.rows};
    bool right = true;
    for (const noting_communicator* group : all) {
        std::vector<seen_call> due;
        std::uint64_t context_due = 0, context_made = 0;
        std::int64_t chunks_due = 0, chunks_made = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(step.schedule.count); ++i) {
            const collective_call& call = step.schedule.calls[i];
            if (all[static_cast<std::size_t>(call.group)] != group) continue;
            if (std::string(call.what) == "context") {
                context_due = call.bytes;
                chunks_due = call.calls;
            } else {
                expect_call(due, call);
            }
        }
        const std::vector<seen_call> made = without_context(group->calls, context_made, chunks_made);
        right = right && due == made && context_due == context_made && chunks_due == chunks_made;
    }
    return right;
}

void run_batch(const setting& s) {
    const all_groups world(s);
    std::vector<prefill_step> steps(static_cast<std::size_t>(s.world()));
    std::vector<one_rank<>::errors> errors(steps.size());
    std::vector<int> restored(steps.size()), planned(steps.size());
    on_all_ranks(s, [&](std::int64_t rank) {
        const auto at = static_cast<std::size_t>(rank);
        one_rank<> one(s, world, rank);
        steps[at] = one.plan();
        errors[at] = one.run(steps[at]);
        planned[at] = made_as_planned(steps[at], world.of(rank));
        restored[at] = one.restores(steps[at]);
    });
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
        INFO("rank ", rank);
        CHECK(same(steps[rank].schedule, steps[0].schedule));
        CHECK(steps[rank].digest == steps[0].digest);
        CHECK(planned[rank]);
        CHECK(errors[rank].out <= 2e-6);
        CHECK(errors[rank].lse <= 4e-6);
        CHECK(errors[rank].filling_is_empty);
        CHECK(restored[rank]);
    }
}

} // namespace

// The thread sanitizer makes every step far slower: a sample of the same batches.
#if defined(__SANITIZE_THREAD__)
constexpr int num_batches = 100;
#else
constexpr int num_batches = 1000;
#endif

TEST_CASE("random batches: every rank plans the same collectives, makes them, and is exact") {
    generator random(20261129);
    for (int i = 0; i < num_batches; ++i) {
        const setting s = any_setting(random);
        INFO("batch ", i, ": ", describe(s));
        run_batch(s);
    }
}

TEST_CASE("two fresh tokens over two ranks that share the KV: no rank waits for one that has nothing to say") {
    for (const std::int64_t tokens : {0, 1, 2, 3}) {
        for (const prefill_path path : {prefill_path::automatic, prefill_path::gather_q, prefill_path::gather_kv}) {
            for (const std::int64_t computed : {0, 1, 10}) {
                setting s;
                s.sizes.pcp = s.sizes.dcp = 2;
                s.interleave = 16; // a context of 10 tokens lies on rank 0 alone
                s.prefill_rows = path;
                s.requests = {{computed, tokens, false}};
                INFO(describe(s));
                run_batch(s);
            }
        }
    }
}
