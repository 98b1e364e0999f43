// The digest by which ranks notice that they were made differently, and the limits of a shape.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>

#include <ctxpar/attention/mla.hpp>
#include <ctxpar/decode/checks.hpp>
#include <ctxpar/merge/dynamic.hpp>

using namespace ctxpar;

namespace {

using run_time = policy<gqa<bf16, dynamic>, interleave<>, merge::dynamic>;

run_time chosen(std::int64_t width, std::int64_t tokens, merge_kind kind) {
    return {gqa<bf16, dynamic>{width}, {tokens}, {kind}};
}

decode_shape four_ranks() {
    decode_shape shape;
    shape.sizes = {.tp = 4, .dcp = 4};
    shape.q_heads = 8;
    shape.longest = 64;
    return shape;
}

mesh mesh_of(const decode_shape& shape) {
    return {shape.sizes, {attention_kind::gqa, shape.q_heads, shape.kv_heads}, shape.rules};
}

template <class Policy>
std::uint64_t digest_of(const Policy& made, const decode_shape& shape) {
    return detail::decoder_facts(made, shape, mesh_of(shape)).digest_of_all();
}

} // namespace

TEST_CASE("anything that must agree changes the digest, and the rank does not") {
    const decode_shape base = four_ranks();
    std::set<std::uint64_t> seen;
    std::size_t count = 0;
    const auto differs = [&](std::uint64_t digest) {
        seen.insert(digest);
        ++count;
    };
    differs(digest_of(chosen(64, 16, merge_kind::a2a), base));
    differs(digest_of(chosen(32, 16, merge_kind::a2a), base));
    differs(digest_of(chosen(64, 8, merge_kind::a2a), base));
    differs(digest_of(chosen(64, 16, merge_kind::ag_rs), base));
    differs(digest_of(policy<gqa<f16, 64>, interleave<16>, merge::a2a>{}, base));
    differs(digest_of(policy<gqa<bf16, 64, 64, fp8_e4m3>, interleave<16>, merge::a2a>{}, base));
    differs(digest_of(policy<gqa<bf16, 64>, interleave<16>, merge::a2a, partial::output>{}, base));
    const auto changed = [&](auto change) {
        decode_shape shape = base;
        change(shape);
        differs(digest_of(chosen(64, 16, merge_kind::a2a), shape));
    };
    changed([](decode_shape& s) { s.sizes.dcp = 2; });
    changed([](decode_shape& s) { s.q_heads = 16; });
    changed([](decode_shape& s) { s.placement = output_placement::scattered; });
    changed([](decode_shape& s) { s.replicated_q = true; });
    changed([](decode_shape& s) { s.merged_lse = true; });
    changed([](decode_shape& s) { s.output = scalar_type::f32; });
    changed([](decode_shape& s) { s.longest = 65; });
    changed([](decode_shape& s) { s.mapped_width = 16; });
    changed([](decode_shape& s) { s.unmapped_query_width = 16; });
    {
        decode_shape sums = base;
        sums.placement = output_placement::partial_sums;
        differs(digest_of(chosen(64, 16, merge_kind::deferred), sums));
    }
    CHECK(seen.size() == count);

    // The same policy made by types or by values is the same; so is a shape on another rank with another pool.
    CHECK(digest_of(policy<gqa<bf16, 64>, interleave<16>, merge::a2a>{}, base) ==
          digest_of(chosen(64, 16, merge_kind::a2a), base));
    decode_shape elsewhere = base;
    elsewhere.rank = 3;
    elsewhere.pool_blocks = 7;
    CHECK(seen.count(digest_of(chosen(64, 16, merge_kind::a2a), elsewhere)) == 1);
}

TEST_CASE("a schedule's digest follows every call's operation, group, type, size and bytes") {
    collective_schedule list;
    list.add({collective_op::all_gather, group_role::kv, scalar_type::f32, 4, 64, "LSE"});
    const std::uint64_t base = detail::digest_of(list);
    const auto changed = [&](auto change) {
        collective_schedule other = list;
        change(other.calls[0]);
        return detail::digest_of(other);
    };
    CHECK(changed([](collective_call& c) { c.op = collective_op::all_to_all; }) != base);
    CHECK(changed([](collective_call& c) { c.group = group_role::query; }) != base);
    CHECK(changed([](collective_call& c) { c.type = scalar_type::bf16; }) != base);
    CHECK(changed([](collective_call& c) { c.size = 2; }) != base);
    CHECK(changed([](collective_call& c) { c.bytes = 65; }) != base);
    CHECK(changed([](collective_call& c) { c.what = "other words"; }) == base);
}

TEST_CASE("a shape whose buffers can not be counted in 63 bits is refused") {
    CHECK(detail::product_fits({1 << 20, 128, 576, 8}));
    CHECK_FALSE(detail::product_fits({std::int64_t{1} << 40, 1 << 10, 1 << 10}));
    decode_shape shape = four_ranks();
    shape.max_rows = std::int64_t{1} << 48;
    const auto made = chosen(64, 16, merge_kind::a2a);
    CHECK_THROWS_AS(detail::check_policy(made, shape, mesh_of(shape)), config_error);
    for (const auto field : {&decode_shape::mapped_width, &decode_shape::unmapped_query_width}) {
        shape = four_ranks();
        shape.*field = std::int64_t{1} << 55;
        CHECK_THROWS_AS(detail::check_policy(made, shape, mesh_of(shape)), config_error);
    }
}

TEST_CASE("exchange_of states what the policy and the shape are") {
    decode_shape shape = four_ranks();
    shape.output = scalar_type::f32;
    shape.placement = output_placement::all_heads;
    const policy<gqa<bf16, 64, 32>, interleave<16>, merge::a2a, partial::output> made{};
    const exchange_shape exchange = detail::exchange_of(made, shape, mesh_of(shape), 5, true);
    CHECK(exchange.ranks == 4);
    CHECK(exchange.distinct_tp == 4);
    CHECK(exchange.rows == 5);
    CHECK(exchange.gathered_heads == 8);
    CHECK(exchange.query_width == 64);
    CHECK(exchange.value_width == 32);
    CHECK(exchange.query_bytes == 2);
    CHECK(exchange.partial_bytes == 2);
    CHECK(exchange.output_bytes == 4);
    CHECK(exchange.partial_type == scalar_type::bf16);
    CHECK(exchange.output_type == scalar_type::f32);
    CHECK(exchange.dense_partials);
    CHECK(exchange.placement == output_placement::all_heads);
    shape.unmapped_query_width = 24;
    shape.mapped_width = 40;
    const exchange_shape mapped = detail::exchange_of(made, shape, mesh_of(shape), 5, true);
    CHECK(mapped.query_width == 24);
    CHECK(mapped.value_width == 40);
}
