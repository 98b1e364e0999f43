// A policy whose parts are types is an empty object, and gives the bits of the same policy made of values.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

template <class Policy>
void check_static(deployment d, merge_kind merge) {
    static_assert(std::is_empty_v<Policy>);
    d.merge = merge;
    d.interleave = Policy::interleave_type::size();
    d.q_heads = 16;
    d.requests = {{0}, {131, 2}, {64}, {3}};
    d.block_size = 4;
    const planted_data data = plant(d);
    const run_result got = run_ranks<Policy>(d, data, Policy{}, plain_backends(d));
    INFO(describe(d));
    CHECK(distance_between(d, expected(d, data), got.outputs).right());
    CHECK(same_bits(got, run(d, data)));
}

} // namespace

TEST_CASE("static grouped-query policies give the bits of dynamic ones") {
    deployment d;
    d.sizes = {2, 2, 4, 1, 1, 1};
    d.key_width = d.value_width = 128;
    check_static<policy<gqa<bf16, 128>, interleave<16>, merge::a2a>>(d, merge_kind::a2a);
    d.value_width = 80;
    d.replicated_q = true;
    check_static<policy<gqa<bf16, 128, 80>, interleave<1>, merge::ag_rs>>(d, merge_kind::ag_rs);
}

TEST_CASE("static latent policies give the bits of dynamic ones") {
    deployment d;
    d.sizes = {4, 1, 4, 1, 1, 1};
    d.is_mla = true;
    d.key_width = 576;
    d.value_width = 512;
    check_static<policy<mla<bf16, 512, 64>, interleave<3>, merge::ag_ar>>(d, merge_kind::ag_ar);
}
