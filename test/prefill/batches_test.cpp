// Batches of any composition give the unsharded attention: prefills, decodes and verifies in any order, requests and
// ranks with nothing to do.
#include "runs.hpp"

#include <algorithm>

using namespace ctxpar_test;

namespace {

prefill_deployment over(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 2;
    d.block_size = 4;
    d.context_rows = 4 * dcp * d.interleave;
    return d;
}

const std::array<std::array<std::int64_t, 3>, 7> topologies{
    {{1, 2, 2}, {2, 2, 4}, {1, 4, 4}, {1, 4, 2}, {1, 3, 1}, {2, 1, 2}, {1, 1, 1}}};

// Decode rows on either path beside prefill rows on either.
void each_pair_of_paths(prefill_deployment d) {
    for (const prefill_path decode : {prefill_path::gather_q, prefill_path::gather_kv}) {
        d.decode_rows = decode;
        each_path(d);
    }
}

void over_each_topology(const new_batch& batch, bool tree = false) {
    for (const auto& [tp, pcp, dcp] : topologies) {
        prefill_deployment d = over(tp, pcp, dcp);
        d.tree = tree;
        d.serve(batch);
        each_pair_of_paths(d);
    }
}

} // namespace

TEST_CASE("one request may prefill while another decodes and a third verifies a tree, in any order") {
    std::vector<int> order{0, 1, 2};
    do {
        new_batch batch;
        for (const int which : order)
            batch.push_back(which == 0 ? prefills(26, 15) : (which == 1 ? decodes(41) : decodes(33, 5)));
        over_each_topology(batch, true);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a batch may have decode rows only") {
    over_each_topology({decodes(41), decodes(0), decodes(7, 3), decodes(64)});
}

TEST_CASE("a prefill of one token is on one rank, with context and without") {
    over_each_topology({prefills(0, 1)});
    over_each_topology({prefills(29, 1)});
    over_each_topology({decodes(12), prefills(29, 1), prefills(0, 1), prefills(8, 2)});
}

TEST_CASE("requests may have no new tokens") {
    over_each_topology({prefills(13, 0), prefills(26, 15), prefills(0, 0), decodes(9, 0), decodes(5)});
    over_each_topology({prefills(13, 0), decodes(9, 0)});
}

TEST_CASE("a batch may be empty") {
    over_each_topology({});
}

TEST_CASE("some prefills of a batch send their queries while others get keys") {
    for (const auto& [tp, pcp, dcp] :
         {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{1, 4, 4}, std::array{1, 4, 2}, std::array{2, 1, 2}}) {
        prefill_deployment d = over(tp, pcp, dcp);
        d.serve({prefills(100, 2), prefills(3, 40), decodes(17), prefills(90, 1), prefills(0, 9), prefills(130, 3)});
        if (!can_run(d)) continue;
        const prefill_data data = plant(d);
        const prefill_result got = run(d, data);
        INFO(describe(d));
        CHECK(got.reports[0].prefill_rows.requests_gather_q >= 2);
        CHECK(got.reports[0].prefill_rows.requests_gather_kv >= 2);
        check_exact(d, data, got);
    }
}
