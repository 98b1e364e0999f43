// Prefills repeat to the last bit: in every run, with any number of threads, alone or in a batch, and decode rows on
// every PCP rank.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

prefill_deployment long_and_short(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 16;
    d.block_size = 16;
    d.context_rows = 16'384;
    d.earlier_steps = 0;
    d.room_requests = 8; // a prefiller has the same shape for the batch and for each request alone
    d.room_rows = 512;
    d.same_bits = true;
    if (suite_ranks::share > 1) { // slow ranks
        d.serve({prefills(250, 61), decodes(900, 2), prefills(0, 80), prefills(90, 1), decodes(33), prefills(7, 40)});
        return d;
    }
    d.serve({prefills(2'500, 61), decodes(9'000, 2), prefills(0, 200), prefills(90, 1), decodes(33), prefills(7, 40)});
    return d;
}

const std::array<std::array<std::int64_t, 3>, 4> topologies{{{1, 2, 2}, {2, 2, 4}, {1, 3, 1}, {2, 1, 2}}};

template <class Check>
void each_topology_and_path(const Check& check) {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv}) {
            prefill_deployment d = long_and_short(tp, pcp, dcp);
            d.prefill_rows = d.decode_rows = path;
            INFO(describe(d));
            if (is_drawn(d)) check(d, plant(d));
        }
    }
}

// Output and LSE of one request's rows on a rank.
std::vector<float> rows_of(const prefill_deployment& d, const prefill_result& got, std::int64_t rank,
                           std::int64_t request) {
    const prefill_output& output = got.outputs()[static_cast<std::size_t>(rank)];
    const std::int64_t heads = facts_of(d, rank).own.count;
    const std::vector<own_row> rows = own_rows(d, d.batch, rank / d.sizes.tp);
    std::vector<float> all;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        if (rows[row].request != request) continue;
        const std::int64_t first = static_cast<std::int64_t>(row) * heads;
        all.insert(all.end(), output.out.begin() + first * d.value_width,
                   output.out.begin() + (first + heads) * d.value_width);
        all.insert(all.end(), output.lse.begin() + first, output.lse.begin() + first + heads);
    }
    return all;
}

// A rank may have no rows of a request.
bool same_rows(const std::vector<float>& a, const std::vector<float>& b) {
    return a.empty() ? b.empty() : same_bits(a, b);
}

// One request of a batch as a batch of its own.
prefill_data alone(const prefill_data& data, std::size_t index) {
    prefill_data one = data;
    one.sequences = {data.sequences[index]};
    one.queries = {data.queries[index]};
    return one;
}

} // namespace

TEST_CASE("two runs of a prefill give the same bits") {
    each_topology_and_path(
        [](const prefill_deployment& d, const prefill_data& data) { CHECK(same_bits(run(d, data), run(d, data))); });
}

TEST_CASE("any number of threads gives a prefill the same bits") {
    each_topology_and_path([](const prefill_deployment& d, const prefill_data& data) {
        const prefill_result one = run(d, data);
        prefill_deployment more = d;
        for (const std::int64_t threads : {2, 3}) {
            more.threads = threads;
            CHECK(same_bits(one, run(more, data)));
        }
    });
}

TEST_CASE("a request of a batch with prefills has the same bits alone") {
    each_topology_and_path([](const prefill_deployment& d, const prefill_data& data) {
        const prefill_result batch = run(d, data);
        for (std::size_t i = 0; i < d.batch.size(); ++i) {
            prefill_deployment one = d;
            one.serve({d.batch[i]});
            const prefill_result got = run(one, alone(data, i));
            for (std::int64_t rank = 0; rank < d.world(); ++rank)
                CHECK(same_rows(rows_of(one, got, rank, 0), rows_of(d, batch, rank, static_cast<std::int64_t>(i))));
        }
    });
}

TEST_CASE("decode rows have the same bits on every PCP rank") {
    each_topology_and_path([](const prefill_deployment& d, const prefill_data& data) {
        const prefill_result got = run(d, data);
        for (std::int64_t rank = 0; rank < d.world(); ++rank)
            for (const std::int64_t request : {1, 4})
                CHECK(same_rows(rows_of(d, got, rank, request), rows_of(d, got, rank % d.sizes.tp, request)));
    });
}

TEST_CASE("where blocks lie changes no bit of a prefill") {
    each_topology_and_path([](const prefill_deployment& d, const prefill_data& data) {
        prefill_deployment other = d;
        other.block_size = 7;
        other.page_size = 5;
        other.layout = pool_layout::hnd;
        other.table = table_form::csr;
        other.strided_views = true;
        other.earlier_steps = 3;
        CHECK(same_bits(run(d, data), run(other, data)));
    });
}
