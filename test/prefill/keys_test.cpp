// Rows to which keys are brought: whatever the size of the workspace, whoever attends.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "../backend/plain_attention.hpp"
#include "small_world.hpp"

using namespace small_world;

namespace {

template <class Backend = cpu_backend>
std::vector<typename one_rank<Backend>::errors> run_all(const setting& s, const Backend& backend = Backend{}) {
    const all_groups world(s);
    std::vector<typename one_rank<Backend>::errors> errors(static_cast<std::size_t>(s.world()));
    on_all_ranks(s, [&](std::int64_t rank) {
        one_rank<Backend> one(s, world, rank, backend);
        errors[static_cast<std::size_t>(rank)] = one.run(one.plan());
    });
    return errors;
}

template <class Errors>
void check_all(const std::vector<Errors>& all) {
    for (const auto& errors : all) {
        CHECK(errors.out <= 2e-6);
        CHECK(errors.lse <= 4e-6);
        CHECK(errors.filling_is_empty);
    }
}

setting base() {
    setting s;
    s.sizes.pcp = s.sizes.dcp = 3;
    s.q_heads = 6;
    s.interleave = 2;
    s.prefill_rows = prefill_path::gather_kv;
    s.requests = {{41, 11, false}, {0, 7, false}, {30, 1, false}, {12, 0, false}, {9, 4, false}};
    return s;
}

} // namespace

TEST_CASE("any workspace of at least one round of ownership gives the same answer") {
    for (const std::int64_t rows : {6, 7, 12, 17, 30, 41, 42, 48, 96, 1000}) {
        setting s = base();
        s.context_rows = rows;
        INFO("workspace of ", rows, " rows");
        check_all(run_all(s));
    }
}

TEST_CASE("the plan counts the gathers of context and their bytes") {
    setting s = base();
    for (const std::int64_t rows : {6, 18, 96, 1000}) {
        s.context_rows = rows;
        const all_groups world(s);
        const ownership law{3, 2};
        const std::int64_t contexts[] = {41, 0, 30, 0, 9}; // the fourth request has no new tokens
        std::int64_t calls = 0, bytes = 0;
        for (const planned_chunk& chunk : plan_gather(make_gather(law, rows), contexts)) {
            ++calls;
            bytes += chunk.rows_per_rank * (key_width + value_width + 2) * 4; // a row is a multiple of 16 bytes
        }
        on_all_ranks(s, [&](std::int64_t rank) {
            one_rank<> one(s, world, rank);
            const prefill_step step = one.plan();
            const collective_call& last = step.schedule.calls[static_cast<std::size_t>(step.schedule.count - 1)];
            CHECK(std::string(last.what) == "context");
            CHECK(last.calls == calls);
            CHECK(last.bytes == static_cast<std::uint64_t>(bytes));
        });
    }
}

TEST_CASE("an attention callable that takes lengths only serves both paths") {
    using callable = support::plain_attention<lse_base::natural>;
    using binary = support::plain_attention<lse_base::binary>;
    for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv, prefill_path::automatic}) {
        for (const merge_kind merge : {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar}) {
            setting s = base();
            s.merge = merge;
            s.prefill_rows = path;
            s.requests.push_back({20, 2, true});
            s.split = zigzag_split::padded;
            check_all(run_all<with_attention<cpu_backend, callable>>(s));
            check_all(run_all<with_attention<cpu_backend, binary>>(s));
        }
    }
}

TEST_CASE("a path is chosen for each request by its bytes, and said with its reason") {
    setting s = base();
    s.prefill_rows = prefill_path::automatic;
    s.interleave = 1;
    s.context_rows = 3000;
    s.requests = {{2000, 6, false}, {0, 200, false}, {30, 300, false}, {500, 1, true}};
    const all_groups world(s);
    on_all_ranks(s, [&](std::int64_t rank) {
        one_rank<> one(s, world, rank);
        const prefill_step step = one.plan();
        // One own row there and back, over 3 ranks: 6 heads of 8, and of 6 with an LSE, in fp32; a row of context is
        // 8 + 6 numbers, as a multiple of 16 bytes 64.
        const std::uint64_t row = 2 * 6 * (8 * 4 + 6 * 4 + 4), cached = 2 * 64;
        CHECK(step.prefill_rows.requests_gather_q == 1);  // 2000 tokens of context, 6 rows
        CHECK(step.prefill_rows.requests_gather_kv == 2); // none, and 30 tokens for 300 rows
        CHECK(step.prefill_rows.bytes_gather_q == row * (2 + 67 + 100));
        CHECK(step.prefill_rows.bytes_gather_kv == cached * (667 + 0 + 10));
        CHECK(step.prefill_rows.bytes == row * 2 + cached * 10);
        CHECK(std::string(step.prefill_rows.reason) == "fewer bytes, for each request");
        CHECK(step.decode_rows.requests_gather_q == 1);
        CHECK(std::string(step.decode_rows.reason) == "decode rows are few and their context is long");
    });
}
