// Results repeat to the last bit: in every run, on every rank, with any number of threads, alone or in a batch.
#include <support/instruction_sets.hpp>

#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// Some 8,000 tokens on each of four ranks, so several splits of the keys, beside short requests. Where ranks are slow,
// some 4,200 on each of two, which is two splits.
deployment long_and_short() {
    const bool is_slow = suite_ranks::share > 1;
    deployment d;
    d.sizes = {is_slow ? 1 : 2, 2, is_slow ? 2 : 4, 1, 1, 1};
    d.q_heads = 8;
    d.interleave = 16;
    d.requests = {{is_slow ? 8'403 : 33'003, 2}, {131, 3}, {is_slow ? 900 : 9'000, 1}, {1, 1}};
    d.block_size = 64;
    d.room_requests = 8; // a decoder has the same shape for the batch and for each request alone
    d.room_rows = 16;
    d.same_bits = true;
    return d;
}

void each_merge(deployment d, void (*check)(const deployment&)) {
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        d.merge = merge;
        if (is_drawn(d)) check(d);
    }
}

// The planted data of one request of a batch, as a batch of its own.
planted_data alone(const deployment& batch, const planted_data& data, std::size_t index) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < index; ++i) first += batch.requests[i].rows;
    planted_data one = data;
    const auto row = batch.q_heads * batch.key_width;
    one.q.assign(data.q.begin() + first * row, data.q.begin() + (first + batch.requests[index].rows) * row);
    one.sequences = {data.sequences[index]};
    return one;
}

} // namespace

TEST_CASE("two runs give the same bits") {
    each_merge(long_and_short(), [](const deployment& d) {
        const planted_data data = plant(d);
        CHECK(same_bits(run(d, data), run(d, data)));
    });
}

TEST_CASE("any number of threads gives the same bits") {
    for (const cpu::isa instructions : ctxpar_test::instruction_sets()) {
        deployment d = long_and_short();
        d.instructions = instructions;
        if (!is_drawn(d)) continue;
        const planted_data data = plant(d);
        const run_result one = run(d, data);
        for (const std::int64_t threads : {2, 3}) {
            d.threads = threads;
            CHECK(same_bits(one, run(d, data)));
        }
    }
}

TEST_CASE("all instruction sets are exact") {
    for (const cpu::isa instructions : ctxpar_test::instruction_sets()) {
        for (const scalar_type type : {scalar_type::bf16, scalar_type::e4m3, scalar_type::e5m2}) {
            deployment d = long_and_short();
            d.requests = {{5'000, 2}, {131, 3}};
            d.threads = 2;
            d.instructions = instructions;
            d.kv_element = type;
            check_exact(d);
        }
    }
}

TEST_CASE("lengths of several splits are exact, with any number of splits and threads") {
    for (const std::int64_t max_splits : {1, 3, 16}) {
        deployment d = long_and_short();
        d.sizes = {1, 1, 1, 1, 1, 1};
        d.requests = {{20'000, 1}, {131, 3}};
        d.max_splits = max_splits;
        d.threads = max_splits == 3 ? 2 : 1;
        check_exact(d);
        d.mask.window = 9'000; // the first split starts inside the sequence
        check_exact(d);
    }
}

TEST_CASE("all heads are the same bits on every rank of a group") {
    each_merge(long_and_short(), [](const deployment& d) {
        deployment all = d;
        all.placement = output_placement::all_heads;
        const run_result got = run(all, plant(all));
        for (const rank_output& output : got.outputs) {
            CHECK(same_bits(output.out, got.outputs[0].out));
            CHECK(same_bits(output.lse, got.outputs[0].lse));
        }
    });
}

TEST_CASE("a request has the same bits alone and in a batch") {
    each_merge(long_and_short(), [](const deployment& d) {
        const planted_data data = plant(d);
        const run_result batch = run(d, data);
        std::int64_t first = 0;
        for (std::size_t i = 0; i < d.requests.size(); ++i) {
            deployment one = d;
            one.requests = {d.requests[i]};
            const run_result got = run(one, alone(d, data, i));
            for (std::size_t rank = 0; rank < got.outputs.size(); ++rank) {
                const std::vector<float>& all = batch.outputs[rank].out;
                const std::vector<float>& lses = batch.outputs[rank].lse;
                const auto heads = static_cast<std::int64_t>(lses.size()) / d.rows();
                const auto from = first * heads, to = (first + d.requests[i].rows) * heads;
                CHECK(same_bits(got.outputs[rank].lse, {lses.begin() + from, lses.begin() + to}));
                CHECK(same_bits(got.outputs[rank].out,
                                {all.begin() + from * d.value_width, all.begin() + to * d.value_width}));
            }
            first += d.requests[i].rows;
        }
    });
}

TEST_CASE("where blocks lie changes no bit") {
    deployment d = long_and_short();
    d.requests = {{131, 3}, {700, 1}};
    const planted_data data = plant(d);
    const run_result first = run(d, data);
    d.block_size = 7;
    d.page_size = 5;
    d.layout = pool_layout::page_pointers;
    d.table = table_form::csr;
    d.strided_views = true;
    CHECK(same_bits(first, run(d, data)));
}
