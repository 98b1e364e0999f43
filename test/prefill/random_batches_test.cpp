// A thousand batches of any kind over any legal shape of ranks: every rank plans the same collectives, makes them, and
// gets what attention without ranks gives. Batches in which ranks have no rows, no context or nothing at all are among
// them.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "small_world.hpp"

using namespace small_world;

namespace {

using generator = std::mt19937_64;

std::int64_t any(generator& random, std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(random);
}

struct shape_of_ranks {
    std::int64_t tp, pcp, dcp, kv_heads;
};

// One of each kind: no DCP, part of PCP, PCP, TP x PCP, inside TP, sizes that are no powers of two.
constexpr shape_of_ranks shapes[] = {{1, 1, 1, 2}, {1, 2, 1, 2}, {1, 2, 2, 2}, {1, 3, 3, 1},
                                     {1, 4, 2, 2}, {2, 2, 2, 4}, {2, 2, 4, 1}, {2, 1, 2, 1},
                                     {4, 1, 2, 2}, {3, 2, 6, 1}, {2, 3, 3, 2}, {1, 4, 4, 1}};

setting any_setting(generator& random) {
    setting s;
    const shape_of_ranks& ranks = shapes[any(random, 0, std::ssize(shapes) - 1)];
    s.sizes.tp = ranks.tp;
    s.sizes.pcp = ranks.pcp;
    s.sizes.dcp = ranks.dcp;
    s.kv_heads = ranks.kv_heads;
    s.q_heads = 12;
    if (ranks.kv_heads == 2 && ranks.tp > 2) s.q_heads = 8;
    s.interleave = std::vector<std::int64_t>{1, 2, 3, 4, 16}[static_cast<std::size_t>(any(random, 0, 4))];
    s.block_size = any(random, 1, 9);
    s.context_rows = s.sizes.dcp * s.interleave * any(random, 1, 6) + any(random, 0, 2);
    s.merge = static_cast<merge_kind>(any(random, 0, 2));
    s.split = static_cast<zigzag_split>(any(random, 0, 2));
    s.prefill_rows = static_cast<prefill_path>(any(random, 0, 2));
    s.decode_rows = static_cast<prefill_path>(any(random, 0, 2));
    if (any(random, 0, 3) == 0) s.mask.window = any(random, 1, 30);
    if (any(random, 0, 5) == 0) s.mask.chunk = any(random, 1, 30);
    if (any(random, 0, 5) == 0) s.mask.prefix = any(random, 1, 8);
    const std::int64_t requests = any(random, 0, 5);
    for (std::int64_t r = 0; r < requests; ++r) {
        request each;
        each.decodes = any(random, 0, 2) == 0;
        each.tokens =
            each.decodes ? any(random, 0, 3) : (any(random, 0, 2) == 0 ? any(random, 0, 3) : any(random, 0, 40));
        each.computed = any(random, 0, 1) == 0 ? 0 : any(random, 0, 70);
        s.requests.push_back(each);
    }
    return s;
}

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

std::string describe(const setting& s) {
    std::string text =
        sentence("tp ", s.sizes.tp, " pcp ", s.sizes.pcp, " dcp ", s.sizes.dcp, " interleave ", s.interleave, " block ",
                 s.block_size, " merge ", static_cast<int>(s.merge), " split ", static_cast<int>(s.split), " paths ",
                 static_cast<int>(s.prefill_rows), ",", static_cast<int>(s.decode_rows), " context rows ",
                 s.context_rows, " window ", s.mask.window, " chunk ", s.mask.chunk, " prefix ", s.mask.prefix, ":");
    for (const request& each : s.requests)
        text += sentence(" ", each.tokens, "@", each.computed, each.decodes ? ":decode" : ":prefill");
    return text;
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
