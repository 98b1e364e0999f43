// Latent attention of prefills is the unsharded attention, absorbed for all rows, or up-projected for prefill rows.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

prefill_deployment latent(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.is_mla = true;
    d.value_width = 32;
    d.key_width = 48;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 2;
    d.block_size = 4;
    d.seed = static_cast<std::uint64_t>(tp * 100 + pcp * 10 + dcp);
    d.serve({prefills(0, 19), prefills(37, 9), decodes(63, 2), prefills(50, 1), prefills(21, 0), prefills(8, 26)});
    return d;
}

prefill_deployment up_projected_rows(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d = latent(tp, pcp, dcp);
    d.element = d.kv_element = scalar_type::f32;
    d.nope_width = 20;
    d.projected_value_width = 24;
    return d;
}

const std::array<std::array<std::int64_t, 3>, 12> topologies{{{1, 1, 1},
                                                              {2, 1, 2},
                                                              {4, 1, 2},
                                                              {1, 2, 1},
                                                              {1, 2, 2},
                                                              {2, 2, 2},
                                                              {2, 2, 4},
                                                              {1, 3, 3},
                                                              {2, 3, 6},
                                                              {1, 4, 2},
                                                              {1, 4, 4},
                                                              {2, 4, 8}}};

} // namespace

TEST_CASE("absorbed prefill rows over any group give the unsharded attention") {
    int count = 0;
    for (const auto& [tp, pcp, dcp] : topologies) {
        prefill_deployment d = latent(tp, pcp, dcp);
        d.merge = static_cast<merge_kind>(count % 3);
        d.split = static_cast<zigzag_split>(count % 2 == 0 ? 0 : count % 3);
        d.context_rows = count % 2 == 0 ? 2 * dcp * d.interleave : 1024;
        d.strided_views = count % 3 == 1;
        each_path(d);
        ++count;
    }
}

TEST_CASE("latent rows of prefills may have any width and interleave") {
    for (const std::int64_t interleave : {1, 3, 16}) {
        prefill_deployment d = latent(2, 2, 4);
        d.value_width = interleave == 3 ? 5 : 24;
        d.key_width = interleave == 3 ? 7 : 33;
        d.interleave = interleave;
        d.context_rows = 64;
        each_path(d);
    }
}

TEST_CASE("every step of a chunked latent prefill gives the unsharded attention") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{2, 1, 2}}) {
        prefill_deployment d = latent(tp, pcp, dcp);
        d.earlier_steps = 4;
        d.attends_earlier = true;
        d.context_rows = 4 * dcp * d.interleave;
        each_path(d);
    }
}

TEST_CASE("up-projected prefill rows over any group give the unsharded attention of up-projected keys") {
    int count = 0;
    for (const auto& [tp, pcp, dcp] : topologies) {
        prefill_deployment d = up_projected_rows(tp, pcp, dcp);
        d.split = static_cast<zigzag_split>(count % 3);
        for (const std::int64_t units : {2, 3, 100}) {
            d.context_rows = units * dcp * d.interleave;
            d.merge = static_cast<merge_kind>(count % 3);
            d.strided_views = count % 2 == 1;
            d.earlier_steps = count % 2;
            ++d.seed;
            ++count;
            check_exact(d);
        }
    }
}

TEST_CASE("every step of a chunked up-projected prefill gives the unsharded attention") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{1, 3, 1}}) {
        prefill_deployment d = up_projected_rows(tp, pcp, dcp);
        d.earlier_steps = 3;
        d.attends_earlier = true;
        d.context_rows = 5 * dcp * d.interleave;
        check_exact(d);
    }
}

// Rows that are rounded to bf16 after the up-projection are attended exactly as they are. Against rows that are not
// rounded the error is that of the rounding: half a unit in the last place, 2^-9, of keys, whose scores are about 6,
// and of values.
TEST_CASE("up-projected rows of bf16 are rounded once") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{2, 1, 2}}) {
        prefill_deployment d = up_projected_rows(tp, pcp, dcp);
        d.element = d.kv_element = scalar_type::bf16;
        d.context_rows = 8 * dcp * d.interleave;
        if (!can_run(d)) continue;
        const prefill_data data = plant(d);
        const prefill_result got = run(d, data);
        check_exact(d, data, got);
        const auto unrounded = expected_step(d, data, d.batch, scalar_type::f32);
        const double error = distances(d, d.batch, unrounded, got.outputs()).relative_error();
        CHECK(error <= 8e-3);
        CHECK(error >= 1e-4);
    }
}
