// Maps of heads inside a decode: queries that are absorbed behind the gather and partial outputs that are up-projected
// before the exchange give what absorbing before and up-projecting behind give, for every merge, and fewer bytes
// travel.
#include "runs.hpp"

#include "../support/refusal.hpp"

using namespace ctxpar_test;

namespace {

using exact_policy = policy<mla<float, dynamic, dynamic>, interleave<>, merge::dynamic>;
using half_policy = policy<mla<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
using narrow_policy = policy<mla<bf16, dynamic, dynamic>, interleave<>, merge::dynamic, partial::output>;

// Weights of all heads of the model. Unmapped queries are unit vectors, one a row, whose maps are the planted queries.
struct map_weights {
    const deployment& d;
    const planted_data& data;
    std::vector<double> values; // [q_heads][value_width][mapped_width]

    map_weights(const deployment& of, const planted_data& planted) : d(of), data(planted) {
        random_numbers random(d.seed + 3);
        for (std::int64_t i = 0; i < d.q_heads * d.value_width * d.mapped_width; ++i) values.push_back(random.normal());
    }

    double query(std::int64_t head, std::int64_t to, std::int64_t from) const {
        return static_cast<double>(data.q[static_cast<std::size_t>((from * d.q_heads + head) * d.key_width + to)]);
    }
    double value(std::int64_t head, std::int64_t from, std::int64_t to) const {
        return values[static_cast<std::size_t>((head * d.value_width + from) * d.mapped_width + to)];
    }

    // What the mapped output should be. Roundings of shares are relative to no more than magnitudes by magnitudes.
    expectation mapped(const expectation& plain) const {
        expectation want = plain;
        const auto map = [&](const std::vector<double>& from, bool magnitudes) {
            std::vector<double> to;
            for (std::int64_t cell = 0; cell < plain.rows * d.q_heads && !from.empty(); ++cell)
                for (std::int64_t o = 0; o < d.mapped_width; ++o) {
                    double sum = 0.0;
                    for (std::int64_t x = 0; x < d.value_width; ++x) {
                        const double weight = value(cell % d.q_heads, x, o);
                        sum += from[static_cast<std::size_t>(cell * d.value_width + x)] *
                               (magnitudes ? std::fabs(weight) : weight);
                    }
                    to.push_back(sum);
                }
            return to;
        };
        want.out = map(plain.out, false);
        want.floor.clear();
        want.magnitude = map(plain.magnitude, true);
        return want;
    }
};

// One rank's maps, on the host, of the heads its group has gathered.
struct query_map {
    const map_weights* weights;
    std::int64_t first_head;

    template <class E, class Stream>
    void operator()(const head_view<const E>& from, const head_view<E>& to, Stream stream) const {
        suite_ranks::finish(stream);
        for (std::int64_t row = 0; row < from.rows; ++row)
            for (std::int64_t head = 0; head < from.heads; ++head)
                for (std::int64_t k = 0; k < to.width; ++k) {
                    double sum = 0.0;
                    for (std::int64_t x = 0; x < from.width; ++x)
                        sum += weights->query(first_head + head, k, x) *
                               static_cast<double>(number_of(from.at(row, head)[x]));
                    to.at(row, head)[k] = element_from<E>(static_cast<float>(sum));
                }
    }
};

struct value_map {
    const map_weights* weights;
    std::int64_t first_head;

    template <class I, class P, class Stream>
    void operator()(const head_view<const I>& from, const head_view<P>& to, Stream stream) const {
        suite_ranks::finish(stream);
        for (std::int64_t row = 0; row < from.rows; ++row)
            for (std::int64_t head = 0; head < from.heads; ++head)
                for (std::int64_t o = 0; o < to.width; ++o) {
                    double sum = 0.0;
                    for (std::int64_t x = 0; x < from.width; ++x)
                        sum += weights->value((first_head + head) % weights->d.q_heads, x, o) *
                               static_cast<double>(number_of(from.at(row, head)[x]));
                    to.at(row, head)[o] = element_from<P>(static_cast<float>(sum));
                }
    }
};

// One that wants what a half-precision product takes.
struct half_value_map : value_map {
    using input = bf16;
};

deployment latent(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    deployment d;
    d.is_mla = true;
    d.element = d.kv_element = scalar_type::f32;
    d.sizes = {tp, pcp, dcp, 1, 1, 1};
    d.q_heads = 12;
    d.value_width = 20;
    d.key_width = 26;
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{0}, {67, 2}, {1, 1}, {30, 2}};
    d.mapped_width = 8;
    d.unmapped_query_width = d.rows();
    return d;
}

// As q a rank has the unit vector of each row, for every head.
template <class Rank>
void set_unmapped_queries(const deployment& d, Rank& rank) {
    std::vector<float> q;
    for (std::int64_t row = 0; row < d.rows(); ++row)
        for (std::int64_t head = 0; head < rank.facts().queries.count; ++head)
            for (std::int64_t x = 0; x < d.rows(); ++x) q.push_back(x == row ? 1.0F : 0.0F);
    rank.set_queries(q);
}

enum class map_fault { none, other_head };

template <class Policy, class ValueMap = value_map, class Out = float>
distance run_mapped(const deployment& d, map_fault fault = map_fault::none) {
    const planted_data data = plant(d);
    const map_weights weights(d, data);
    const auto maps_of = [&](auto& rank) {
        const std::int64_t first = rank.facts().gathered.first;
        const std::int64_t odd = fault == map_fault::none ? first : first + 1;
        ValueMap values;
        values.weights = &weights;
        values.first_head = odd;
        if constexpr (std::is_same_v<typename Policy::element, float>) {
            return head_maps{query_map{&weights, first}, values};
        } else {
            return head_maps{no_map{}, values};
        }
    };
    const run_result got = run_ranks<Policy, Out, lse_base::natural>(
        d, data, policy_for<Policy>(d), plain_backends(d),
        [&](auto& rank, const decode_step&) {
            if (d.unmapped_query_width > 0) set_unmapped_queries(d, rank);
        },
        maps_of);
    INFO(describe(d));
    CHECK(got.problem() == "");
    for (const rank_report& report : got.reports) {
        CHECK(report.bytes_sent == report.schedule.bytes_sent());
        CHECK(report.bytes_sent == report.exchange.total);
    }
    deployment mapped = d;
    mapped.value_width = d.mapped_width;
    return distance_between(mapped, weights.mapped(expected(d, data)), got.outputs);
}

void check_mapped(const deployment& d) {
    if (!is_drawn(d)) return;
    const distance far = run_mapped<exact_policy>(d);
    INFO(describe(d));
    CHECK(far.out <= 1.0);
    CHECK(far.lse <= 1.0);
}

const std::array<std::array<std::int64_t, 3>, 8> topologies{
    {{1, 1, 1}, {2, 1, 1}, {2, 1, 2}, {3, 1, 3}, {4, 1, 4}, {1, 4, 4}, {2, 2, 4}, {1, 3, 3}}};

// Every merge with every placement that it serves.
template <class Check>
void each_merge(deployment d, const Check& check) {
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a, merge_kind::deferred}) {
        for (const output_placement placement : {output_placement::own_heads, output_placement::scattered,
                                                 output_placement::all_heads, output_placement::partial_sums}) {
            if ((merge == merge_kind::deferred) != (placement == output_placement::partial_sums)) continue;
            d.merge = merge;
            d.placement = placement;
            d.replicated_q = d.seed % 2 == 0;
            d.sinks = d.seed % 3 == 0;
            d.strided_views = d.seed % 4 == 1;
            ++d.seed;
            check(d);
        }
    }
}

} // namespace

TEST_CASE("mapped queries and outputs are those of maps before and behind the attention, over every group and merge") {
    for (const auto& [tp, pcp, dcp] : topologies) each_merge(latent(tp, pcp, dcp), check_mapped);
}

TEST_CASE("mapped outputs may be wider than values, of odd width, and of heads that ranks do not divide") {
    for (const std::int64_t width : {1, 7, 33}) {
        deployment d = latent(2, 2, 4);
        d.mapped_width = width;
        each_merge(d, check_mapped);
    }
    deployment d = latent(1, 4, 4);
    d.q_heads = 5;
    d.merge = merge_kind::ag_ar;
    check_mapped(d);
    d.merge = merge_kind::deferred;
    d.placement = output_placement::partial_sums;
    check_mapped(d);
}

TEST_CASE("partial outputs are rounded behind their map") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        deployment d = latent(tp, pcp, dcp);
        d.element = d.kv_element = scalar_type::bf16;
        d.unmapped_query_width = 0;
        d.partials = partial::output;
        each_merge(d, [](const deployment& each) {
            if (!is_drawn(each)) return;
            INFO(describe(each));
            CHECK(run_mapped<narrow_policy>(each).right());
        });
    }
    // One rank that has a merge to make: half a unit in the last place, of each number by itself.
    deployment d = latent(1, 1, 1);
    d.element = d.kv_element = scalar_type::bf16;
    d.unmapped_query_width = 0;
    d.partials = partial::output;
    const planted_data data = plant(d);
    const map_weights weights(d, data);
    const run_result got = run_ranks<narrow_policy, float, lse_base::natural>(
        d, data, policy_for<narrow_policy>(d), plain_backends(d), [](auto&, const decode_step&) {},
        [&](auto&) {
            return head_maps{no_map{}, value_map{&weights, 0}};
        });
    const expectation want = weights.mapped(expected(d, data));
    std::int64_t too_far = 0;
    for (std::size_t i = 0; i < want.out.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got.outputs[0].out[i]) - want.out[i]);
        too_far += error > 1.001 * half_ulp(scalar_type::bf16, want.out[i]) + 1e-5 * want.magnitude[i] ? 1 : 0;
    }
    CHECK(too_far == 0);
}

TEST_CASE("a map may take partial outputs in the policy's element") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        deployment d = latent(tp, pcp, dcp);
        d.element = d.kv_element = scalar_type::bf16;
        d.unmapped_query_width = 0;
        d.partials = partial::output;
        d.output = scalar_type::bf16;
        if (!is_drawn(d)) continue;
        INFO(describe(d));
        CHECK(run_mapped<narrow_policy, half_value_map, bf16>(d).out <= 2.0); // one rounding more
    }
}

TEST_CASE("weights of another head are found") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        const deployment d = latent(tp, pcp, dcp);
        INFO(describe(d));
        if (is_drawn(d)) CHECK(run_mapped<exact_policy>(d, map_fault::other_head).out > 10.0);
    }
}

TEST_CASE("absorbed queries and up-projected outputs send the bytes of their widths") {
    deployment d = latent(4, 1, 4);
    const auto bytes = [&](const deployment& of) {
        const mesh ranks(of.sizes, {attention_kind::mla, of.q_heads, 1});
        return exchange(merge::a2a{}, ctxpar::detail::exchange_of(policy_for<exact_policy>(of), shape_of(of, 0, -1),
                                                                  ranks, of.rows(), false));
    };
    const auto rows = static_cast<std::uint64_t>(d.rows());
    CHECK(bytes(d).gather_q == 3 * rows * 3 * 6 * 4);
    CHECK(bytes(d).outputs == 3 * rows * 3 * (8 * 4 + 4));
    d.unmapped_query_width = d.mapped_width = 0;
    CHECK(bytes(d).gather_q == 3 * rows * 3 * 26 * 4);
    CHECK(bytes(d).outputs == 3 * rows * 3 * (20 * 4 + 4));

    // DeepSeek-V3 over 8 ranks at 128 rows: 8.8 MiB a rank and layer in place of 29.8.
    exchange_shape v3;
    v3.ranks = v3.distinct_tp = 8;
    v3.rows = v3.gathered_heads = 128;
    v3.query_width = 192;
    v3.value_width = 128;
    CHECK(std::fabs(static_cast<double>(exchange(merge::a2a{}, v3).total) / 1048576 - 8.8) < 0.05);
    v3.query_width = 576;
    v3.value_width = 512;
    CHECK(std::fabs(static_cast<double>(exchange(merge::a2a{}, v3).total) / 1048576 - 29.8) < 0.05);
}

TEST_CASE("attention is planned for its own widths, whatever travels") {
    const deployment d = latent(2, 1, 2);
    const planted_data data = plant(d);
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        decode_rank<exact_policy> rank(world, d, data, policy_for<exact_policy>(d), suite_ranks::backend());
        const decode_step step = rank.plan();
        CHECK(step.attention.query_width == 26);
        CHECK(step.attention.value_width == 20);
        CHECK(step.shape.query_width == d.unmapped_query_width);
        CHECK(step.shape.value_width == 8);
        rank.wait();
    });
}

TEST_CASE("maps are refused where the shape has no room for them, and missed where it has") {
    const auto refused = [](const auto& maps, std::int64_t query_width, std::int64_t value_width) {
        decode_shape shape;
        shape.unmapped_query_width = query_width;
        shape.mapped_width = value_width;
        return refusal_of([&] { ctxpar::detail::check_maps(maps, shape); });
    };
    const head_maps values{no_map{}, value_map{}};
    const head_maps queries{query_map{}, no_map{}};
    CHECK(refused(head_maps<>{}, 0, 0) == "none");
    CHECK(refused(values, 0, 8) == "none");
    CHECK(refused(queries, 6, 0) == "none");
    CHECK(refused(head_maps{query_map{}, value_map{}}, 5, 8) == "none");
    CHECK(says(refused(head_maps<>{}, 0, 8), "map", {"no map of values", "mapped_width 8"}));
    CHECK(says(refused(head_maps<>{}, 5, 0), "map", {"no map of queries", "unmapped_query_width 5"}));
    CHECK(says(refused(values, 0, 0), "map", {"a map of values", "mapped_width 0"}));
    CHECK(says(refused(queries, 0, 8), "map", {"a map of queries", "unmapped_query_width 0"}));

    // By the decoder, before anything is written; and its widths are those of q and out.
    const auto decode = [](deployment d, auto change) {
        const planted_data data = plant(d);
        std::string refusal;
        suite_ranks::run(d, [&](suite_ranks::communicator& world) {
            decode_rank<exact_policy> rank(world, d, data, policy_for<exact_policy>(d), suite_ranks::backend());
            const decode_step step = rank.plan();
            std::vector<float> out(static_cast<std::size_t>(d.rows() * d.q_heads * 40), -5.0F);
            refusal = refusal_of([&] { change(rank, step, out.data()); });
            for (const float each : out) CHECK(each == -5.0F);
            rank.wait();
        });
        return refusal;
    };
    deployment d = latent(1, 1, 1);
    d.merged_lse = false;
    CHECK(says(decode(d,
                      [&](auto& rank, const decode_step& step, float* out) {
                          rank.decode(step, dense_view(out, d.rows(), d.q_heads, 8), head_view<natural_lse>{});
                      }),
               "map", {"no map of queries"}));
    const auto with_maps = [&](std::int64_t width, bool unmapped) {
        return [&d, width, unmapped](auto& rank, const decode_step& step, float* out) {
            if (unmapped) set_unmapped_queries(d, rank);
            if (!unmapped) rank.set_queries(std::vector<float>(static_cast<std::size_t>(d.rows() * d.q_heads * 26)));
            auto q = rank.queries();
            if (!unmapped) q.width = 26;
            kv_view<const float> cache = rank.pool().view();
            rank.used().decode(step, q, cache, dense_view(out, d.rows(), d.q_heads, width), layer_options<>{},
                               head_maps{query_map{}, value_map{}}, rank.stream());
        };
    };
    CHECK(says(decode(d, with_maps(20, true)), "shape", {"out has", "20 elements", "heads of 8"}));
    CHECK(says(decode(d, with_maps(8, false)), "shape", {"q has", "26 elements", "heads of 6"}));

    decode_shape shape;
    shape.longest = 1;
    shape.mapped_width = -1;
    CHECK(says(refusal_of([&] { ctxpar::detail::check_decode_shape(shape); }), "size", {"mapped_width", "-1"}));
    shape.mapped_width = 0;
    shape.unmapped_query_width = -2;
    CHECK(says(refusal_of([&] { ctxpar::detail::check_decode_shape(shape); }), "size", {"unmapped_query_width", "-2"}));
}
