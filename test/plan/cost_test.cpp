// The cost model against arithmetic done by hand and formulas written once more.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <ctxpar/plan/cost.hpp>

#include "near.hpp"
#include "refusal.hpp"

using namespace ctxpar;
using ctxpar_test::near;
using ctxpar_test::refusal_of;
using ctxpar_test::says;

namespace {

constexpr auto gather = collective_op::all_gather;
constexpr auto exchange_op = collective_op::all_to_all;
constexpr auto scatter = collective_op::reduce_scatter;
constexpr auto reduce = collective_op::all_reduce;
constexpr merge_kind kinds[] = {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar};

// No two numbers alike, sizes out of order and far apart.
machine_costs machine() {
    machine_costs costs;
    costs.collectives = {{gather, 8, 10, 4000},
                         {exchange_op, 4, 7, 800},
                         {gather, 2, 4, 1000},
                         {exchange_op, 8, 12, 2000},
                         {exchange_op, 2, 5, 500}};
    costs.read_bytes_per_us = 2000;
    costs.flops_per_us = 50000;
    costs.attend_us = 3;
    costs.merge_bytes_per_us = 640;
    costs.merge_us = 2;
    costs.weight_bytes_per_us = 1600;
    return costs; // rows, requests and what is not hidden take no time unless a test says so
}

exchange_shape shape_of(std::int64_t ranks, std::int64_t m, std::int64_t rows, std::int64_t heads) {
    exchange_shape shape;
    shape.ranks = ranks;
    shape.distinct_tp = m;
    shape.rows = rows;
    shape.gathered_heads = heads;
    shape.query_width = 40;
    shape.value_width = 24;
    shape.partial_bytes = 4;
    return shape;
}

attention_load load_of(std::span<const request_load> requests, std::int64_t heads = 8) {
    return {heads, 40, 24, 128, 5000, requests};
}

// The exchange and merge of a layer, over a transport that moves bytes and adds nothing.
decode_cost plain_layer(merge_kind kind, const exchange_shape& s) {
    const machine_costs costs = machine();
    const auto n = static_cast<double>(s.ranks), m = static_cast<double>(s.distinct_tp);
    const auto rows = static_cast<double>(s.rows), heads = static_cast<double>(s.gathered_heads);
    const double q = 40, v = 24;
    const auto entry = [&](collective_op op, double ranks) { // of the sizes that are listed, 4 in the middle of 2 and 8
        if (op == exchange_op)
            return ranks == 2 ? std::pair{5.0, 500.0} : ranks == 4 ? std::pair{7.0, 800.0} : std::pair{12.0, 2000.0};
        return ranks == 2 ? std::pair{4.0, 1000.0} : ranks == 4 ? std::pair{7.0, 2500.0} : std::pair{10.0, 4000.0};
    };
    const auto us = [&](collective_op op, double ranks, double bytes) {
        return ranks == 1 ? 0 : entry(op, ranks).first + (ranks - 1) * bytes / entry(op, ranks).second;
    };
    decode_cost sum;
    double operations = 0, read = 0;
    if (!s.replicated_q) sum.exchange_us += us(gather, m, rows * heads / m * q * 2);
    if (n == 1) return {};
    const double states = rows * heads;                 // of which a rank has all, from its own keys
    const double chunk = std::ceil(states * v / n) * 4; // bytes
    if (kind == merge_kind::a2a) {
        const double message = states / n * (v * 4 + 4);
        sum.exchange_us += us(exchange_op, n, message);
        operations += s.dense_partials ? 2 : 1;
        read += (s.dense_partials ? 2 : 1) * n * message;
    } else {
        sum.exchange_us += us(gather, n, states * 4) + us(exchange_op, n, chunk);
        operations += 2;                        // scale, sum
        read += n * states * 4 + 2 * n * chunk; // LSEs of all, own partial; parts of all
        if (kind == merge_kind::ag_ar) {
            sum.exchange_us += us(gather, n, chunk);
            operations += 1; // copy
            const double placed = s.placement == output_placement::own_heads   ? heads / m
                                  : s.placement == output_placement::all_heads ? heads
                                                                               : heads / n;
            read += rows * placed * v * 4;
        }
    }
    if (kind != merge_kind::ag_ar && s.placement != output_placement::scattered) {
        const double again = s.placement == output_placement::own_heads ? n / m : n;
        if (again > 1) {
            sum.exchange_us += us(gather, again, states / n * v * 2);
            operations += 1;
            read += again * states / n * v * 2;
            if (s.merged_lse && kind == merge_kind::a2a) {
                sum.exchange_us += us(gather, again, states / n * 4);
                operations += 1;
                read += again * states / n * 4;
            }
        }
    }
    sum.merge_us = operations * costs.merge_us + read / costs.merge_bytes_per_us;
    return sum;
}

// A user's merge: what ag_ar does, and its LSEs sent by hand in two calls.
struct twice : merge::ag_ar {
    static constexpr const char* name() { return "twice"; }
    static constexpr void schedule(const exchange_shape& shape, collective_schedule& list) {
        list.add({gather, group_role::kv, scalar_type::f32, static_cast<std::int32_t>(shape.ranks), 100, "halves", 2});
    }
};

} // namespace

TEST_CASE("A call costs its latency and the bytes to all other ranks") {
    const machine_costs costs = machine();
    CHECK(near(call_us(costs, gather, 2, 3000), 4 + 3));
    CHECK(near(call_us(costs, gather, 8, 400), 10 + 7 * 0.1));
    CHECK(near(call_us(costs, exchange_op, 4, 1600), 7 + 3 * 2));
    CHECK(near(call_us(costs, gather, 8, 400, 3), 30 + 7 * 0.1)); // bytes are those of all calls
    CHECK(call_us(costs, gather, 1, 1e9) == 0);
    CHECK(call_us(machine_costs{}, reduce, 1, 1e9) == 0);
}

TEST_CASE("Between two sizes both numbers are linear in log2 of the size, beyond the ends they stay") {
    const machine_costs costs = machine();
    CHECK(near(call_us(costs, gather, 4, 5000), 7 + 3 * 5000 / 2500.0)); // log2: 1, 2, 3
    const double part = std::log(1.5) / std::log(2.0);                   // of the way from 2 to 4
    CHECK(near(call_us(costs, exchange_op, 3, 700), 5 + 2 * part + 2 * 700 / (500 + 300 * part)));
    const double late = std::log(1.75) / std::log(2.0); // of the way from 4 to 8, not from 2
    CHECK(near(call_us(costs, exchange_op, 7, 700), 7 + 5 * late + 6 * 700 / (800 + 1200 * late)));
    CHECK(near(call_us(costs, gather, 64, 4000), 10 + 63));
    machine_costs large = costs;
    large.collectives = {{gather, 16, 9, 100}, {gather, 8, 6, 50}};
    CHECK(near(call_us(large, gather, 3, 50), 6 + 2));
    CHECK(near(call_us(large, gather, 32, 50), 9 + 15.5));
    std::vector<collective_cost> turned(costs.collectives.rbegin(), costs.collectives.rend());
    for (std::int32_t size = 2; size < 40; ++size) {
        large.collectives = turned;
        CHECK(call_us(large, exchange_op, size, 123) == call_us(costs, exchange_op, size, 123));
        large.collectives = {costs.collectives[0]}; // one entry is all sizes'
        CHECK(near(call_us(large, gather, size, 400), 10 + (size - 1) * 0.1));
    }
}

TEST_CASE("A reduction that is not listed is made of calls that move bytes") {
    machine_costs costs = machine();
    CHECK(near(call_us(costs, scatter, 4, 1600, 2), 14 + 3 * 2));
    CHECK(near(call_us(costs, reduce, 4, 3200), (7 + 3 * 1600 / 800.0) + (7 + 3 * 1600 / 2500.0)));
    CHECK(near(call_us(costs, reduce, 4, 3200, 2), (14 + 3 * 1600 / 800.0) + (14 + 3 * 1600 / 2500.0)));
    costs.collectives.push_back({scatter, 4, 1, 300});
    CHECK(near(call_us(costs, scatter, 4, 1600), 1 + 16));
    CHECK(near(call_us(costs, reduce, 4, 3200), (1 + 16) + (7 + 3 * 1600 / 2500.0)));
    costs.collectives.push_back({reduce, 4, 2, 100});
    CHECK(near(call_us(costs, reduce, 4, 3200), 2 + 96));
    CHECK(near(call_us(costs, scatter, 4, 1600), 1 + 16));
}

TEST_CASE("An op that cannot be had is refused with those that are listed") {
    machine_costs costs = machine();
    costs.collectives = {{gather, 8, 10, 4000}, {gather, 2, 4, 1000}};
    for (const collective_op op : {exchange_op, scatter, reduce})
        CHECK(says(refusal_of([&] { call_us(costs, op, 4, 1); }), "costs",
                   {"no cost of an all_to_all", "all_gather over 8 ranks, all_gather over 2 ranks"}));
    CHECK(says(refusal_of([&] { call_us(machine_costs{}, gather, 4, 1); }), "costs", {"all_gather", "nothing"}));
    costs.collectives = {{exchange_op, 8, 10, 4000}};
    CHECK(says(refusal_of([&] { call_us(costs, reduce, 4, 1); }), "costs", {"no cost of an all_gather"}));
}

TEST_CASE("Numbers that no machine has are refused, with the entry and the value") {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    constexpr double infinite = std::numeric_limits<double>::infinity();
    const auto refused = [](auto change, std::initializer_list<const char*> words) {
        machine_costs costs = machine();
        change(costs);
        return says(refusal_of([&] { check(costs); }), "costs", words);
    };
    CHECK(refusal_of([] { check(machine()); }) == "none");
    CHECK(refused([](auto& c) { c.collectives[1].size = 1; }, {"all_to_all over 1 ranks", "at least 2"}));
    CHECK(refused([](auto& c) { c.collectives[3].size = 4; }, {"all_to_all over 4 ranks", "listed twice"}));
    CHECK(refused([](auto& c) { c.collectives[2].call_us = -0.5; }, {"call_us", "all_gather over 2", "-0.5"}));
    for (const double value : {nan, infinite}) {
        CHECK(refused([=](auto& c) { c.collectives[2].call_us = value; }, {"call_us", "all_gather over 2"}));
        CHECK(refused([=](auto& c) { c.attend_us = value; }, {"attend_us"}));
        CHECK(refused([=](auto& c) { c.merge_us = value; }, {"merge_us"}));
        CHECK(refused([=](auto& c) { c.weight_bytes_per_us = value; }, {"weight_bytes_per_us"}));
        CHECK(refused([=](auto& c) { c.request_us = value; }, {"request_us"}));
        CHECK(refused([=](auto& c) { c.row_numbers_per_us = value; }, {"row_numbers_per_us"}));
        CHECK(refused([=](auto& c) { c.serial_share = value; }, {"serial_share"}));
    }
    for (const double value : {nan, infinite, 0.0, -1e-9}) {
        CHECK(refused([=](auto& c) { c.collectives[4].bytes_per_us = value; }, {"bytes_per_us", "all_to_all over 2"}));
        CHECK(refused([=](auto& c) { c.read_bytes_per_us = value; }, {"read_bytes_per_us", "above 0"}));
        CHECK(refused([=](auto& c) { c.flops_per_us = value; }, {"flops_per_us"}));
        CHECK(refused([=](auto& c) { c.merge_bytes_per_us = value; }, {"merge_bytes_per_us"}));
    }
    CHECK(refused([](auto& c) { c.read_bytes_per_us = -1e-9; }, {"-1e-09"}));
    for (const double value : {-1.0, -1e-9}) {
        CHECK(refused([=](auto& c) { c.attend_us = value; }, {"attend_us", "at least 0"}));
        CHECK(refused([=](auto& c) { c.merge_us = value; }, {"merge_us"}));
        CHECK(refused([=](auto& c) { c.weight_bytes_per_us = value; }, {"weight_bytes_per_us"}));
        CHECK(refused([=](auto& c) { c.request_us = value; }, {"request_us", "at least 0"}));
        CHECK(refused([=](auto& c) { c.row_numbers_per_us = value; }, {"row_numbers_per_us", "at least 0"}));
        CHECK(refused([=](auto& c) { c.serial_share = value; }, {"serial_share", "at least 0"}));
    }
    CHECK(refused([](auto& c) { c.serial_share = 1.5; }, {"serial_share is 1.5", "from 0 to 1"}));
    machine_costs free = machine(); // what may be zero
    free.attend_us = free.merge_us = free.weight_bytes_per_us = 0;
    for (collective_cost& entry : free.collectives) entry.call_us = 0;
    CHECK(refusal_of([&] { check(free); }) == "none");
    free.collectives.clear();
    CHECK(refusal_of([&] { check(free); }) == "none");
}

TEST_CASE("Attention is bound by the bytes of all requests or by the FLOPs of all rows") {
    const machine_costs costs = machine();
    const std::array<request_load, 2> one_row{{{1, 1000}, {1, 3000}}};
    // 4000 keys: 128 bytes each at 2000; 2 * 4 heads * 64 FLOPs each at 50000
    CHECK(near(attention_us(costs, load_of(one_row, 4)), 3 + 256));
    CHECK(near(attention_us(costs, load_of(one_row, 40)), 3 + 409.6));
    const std::array<request_load, 2> many_rows{{{30, 1000}, {1, 3000}}}; // 33000 pairs
    CHECK(near(attention_us(costs, load_of(many_rows, 4)), 3 + 33000 * 512 / 50000.0));
    CHECK(attention_us(costs, load_of({})) == 3);
    const std::array<request_load, 1> empty{{{5, 0}}};
    CHECK(attention_us(costs, load_of(empty)) == 3);
    const std::array<request_load, 1> huge{{{1, std::int64_t{1} << 61}}}; // products are past 63 bits
    CHECK(near(attention_us(costs, load_of(huge, 4)), std::ldexp(128.0 / 2000, 61)));
}

TEST_CASE("Requests and rows of an attention call cost time too, on every rank that shares them") {
    machine_costs costs = machine();
    const std::array<request_load, 2> requests{{{2, 1000}, {5, 3000}}};
    const double bound = 17000 * 8 * 64 * 2 / 50000.0; // FLOPs of 17000 pairs
    costs.request_us = 10;
    CHECK(near(attention_us(costs, load_of(requests)), 3 + 2 * 10 + bound));
    costs.row_numbers_per_us = 32; // 7 rows of 8 heads of 40 + 24 numbers
    CHECK(near(attention_us(costs, load_of(requests)), 3 + 2 * 10 + 7 * 8 * 64 / 32.0 + bound));
    const std::array<request_load, 2> without_keys{{{2, 0}, {5, 0}}};
    CHECK(near(attention_us(costs, load_of(without_keys)), 3 + 2 * 10 + 7 * 8 * 64 / 32.0));
    CHECK(attention_us(costs, load_of({})) == 3);
}

TEST_CASE("Of reads and arithmetic the smaller is hidden behind the larger, but for a share") {
    machine_costs costs = machine();
    const std::array<request_load, 1> requests{
        {{1, 1000}}}; // 64 us of reads; of 4 heads 10.24 of arithmetic, of 40 102.4
    for (const double share : {0.0, 0.25, 1.0}) {
        costs.serial_share = share;
        CHECK(near(attention_us(costs, load_of(requests, 4)), 3 + 64 + share * 10.24));
        CHECK(near(attention_us(costs, load_of(requests, 40)), 3 + 102.4 + share * 64));
    }
}

TEST_CASE("A layer by hand: MLA-like A2A over 4 ranks of a TP group") {
    const std::array<request_load, 2> requests{{{1, 600}, {1, 200}}};
    exchange_shape shape = shape_of(4, 4, 2, 8);
    const decode_cost cost = layer_us(machine(), merge::a2a{}, shape, load_of(requests));
    CHECK(near(cost.attention_us, 3 + 51.2));                                      // 800 keys * 128 / 2000
    CHECK(near(cost.exchange_us, (7 + 3 * 320 / 2500.0) + (7 + 3 * 400 / 800.0))); // 2*2*40*2; 2*2*(24*4+4)
    CHECK(near(cost.merge_us, 2 + 1600 / 640.0));
    CHECK(cost.projection_us == 0);
    CHECK(near(cost.total_us(), 54.2 + 7.384 + 8.5 + 4.5));
    shape.replicated_q = true; // 6 more heads of 5000 bytes
    const decode_cost replicated = layer_us(machine(), merge::a2a{}, shape, load_of(requests));
    CHECK(near(replicated.exchange_us, 8.5));
    CHECK(near(replicated.projection_us, 6 * 5000 / 1600.0));
    CHECK(near(replicated.total_us(), 54.2 + 8.5 + 4.5 + 18.75));
    machine_costs costs = machine();
    costs.weight_bytes_per_us = 0;
    CHECK(near(layer_us(costs, merge::a2a{}, shape, load_of(requests)).projection_us, 6 * 5000 / 2000.0));
}

TEST_CASE("Exchange and arithmetic are those of the merges, for any shape and placement") {
    const std::array<request_load, 1> requests{{{3, 50}}};
    for (const merge_kind kind : kinds)
        for (const std::int64_t ranks : {1, 2, 4, 8})
            for (std::int64_t m = 1; m <= ranks; m *= 2)
                for (const std::int64_t rows : {0, 1, 3})
                    for (const std::int64_t heads : {8, 24})
                        for (const auto placement :
                             {output_placement::own_heads, output_placement::scattered, output_placement::all_heads})
                            for (int bits = 0; bits < 8; ++bits) {
                                exchange_shape shape = shape_of(ranks, m, rows, heads);
                                shape.placement = placement;
                                shape.replicated_q = (bits & 1) != 0;
                                shape.merged_lse = (bits & 2) != 0;
                                shape.dense_partials = (bits & 4) != 0;
                                const decode_cost wanted = plain_layer(kind, shape);
                                const auto got = layer_us(machine(), merge::dynamic{kind}, shape, load_of(requests));
                                CHECK(near(got.exchange_us, wanted.exchange_us));
                                CHECK(near(got.merge_us, wanted.merge_us));
                                const auto more = static_cast<double>(shape.replicated_q ? heads - heads / m : 0);
                                CHECK(near(got.projection_us, more * 5000 / 1600));
                            }
}

TEST_CASE("Heads that the ranks do not divide cost AG+AR a part more") {
    exchange_shape shape = shape_of(4, 2, 1, 6); // 144 outputs in 4 chunks of 36; of 10 they are 15
    const auto exact = plain_layer(merge_kind::ag_ar, shape);
    CHECK(near(layer_us(machine(), merge::ag_ar{}, shape, load_of({})).exchange_us, exact.exchange_us));
    shape.value_width = 1; // 6 outputs in 4 chunks of 2: 7 + 3*24/2500 for the LSE, chunks of 8 bytes
    const double queries = 4 + 1 * 3 * 40 * 2 / 1000.0;
    const double wanted = queries + (7 + 3 * 24 / 2500.0) + (7 + 3 * 8 / 800.0) + (7 + 3 * 8 / 2500.0);
    CHECK(near(layer_us(machine(), merge::ag_ar{}, shape, load_of({})).exchange_us, wanted));
}

TEST_CASE("A reduction with a cost of its own is not added again") {
    machine_costs costs = machine();
    costs.collectives.push_back({reduce, 4, 2, 100});
    const exchange_shape shape = shape_of(4, 4, 1, 8); // 8 states: 768 bytes of partials, 4 chunks of 192, 32 of LSE
    CHECK(near(layer_us(costs, merge::ag_ar{}, shape, load_of({})).merge_us, 2 * 2 + (4 * 32 + 768 + 192) / 640.0));
    CHECK(near(layer_us(costs, merge::ag_rs{}, shape, load_of({})).merge_us, 2 * 2 + (4 * 32 + 768 + 768) / 640.0));
    costs.collectives.back().op = scatter;
    CHECK(near(layer_us(costs, merge::ag_rs{}, shape, load_of({})).merge_us, 2 * 2 + (4 * 32 + 768 + 192) / 640.0));
    CHECK(near(layer_us(costs, merge::ag_ar{}, shape, load_of({})).merge_us, 2 * 2 + (4 * 32 + 768 + 192) / 640.0));
}

TEST_CASE("Rows of a prefill that are spread over ranks") {
    exchange_shape shape = shape_of(4, 2, 6, 4); // 2 row owners: 3 own rows of 2 heads
    shape.row_owners = 2;
    const decode_cost cost = layer_us(machine(), merge::a2a{}, shape, load_of({}));
    CHECK(near(cost.exchange_us, (7 + 3 * (3 * 2 * 40 * 2) / 2500.0) + (7 + 3 * (3 * 2 * 100) / 800.0)));
    CHECK(near(cost.merge_us, 2 + 4 * 3 * 2 * 100 / 640.0));
}

TEST_CASE("A user's merge costs what its schedule says") {
    const decode_cost cost = layer_us(machine(), twice{}, shape_of(2, 1, 1, 8), load_of({}));
    CHECK(near(cost.exchange_us, 2 * 4 + 100 / 1000.0));
    CHECK(near(cost.merge_us, 2 + 200 / 640.0));
}

TEST_CASE("A merge is legal where the decoder takes it") {
    const std::array<request_load, 1> requests{{{1, 100}}};
    const exchange_shape shape = shape_of(4, 2, 1, 6);
    const merge_choice choice = best_merge(machine(), shape, load_of(requests, 6));
    CHECK(choice.kind == merge_kind::ag_ar);
    for (const merge_option& option : choice.options) {
        CHECK(option.legal == (option.kind == merge_kind::ag_ar));
        CHECK((option.cost.total_us() > 0) == option.legal);
    }
    CHECK(choice.cost.total_us() == choice.options[2].cost.total_us());
    for (const auto kind : {merge_kind::a2a, merge_kind::ag_rs})
        CHECK(says(refusal_of([&] { layer_us(machine(), merge::dynamic{kind}, shape, load_of(requests)); }),
                   "scatter_heads", {"6 gathered heads", "4 ranks", "ag_ar"}));
    exchange_shape spread = shape; // 6 heads of 2 row owners make 12 messages' worth
    spread.row_owners = 2;
    spread.rows = 2;
    const auto all_but_deferred = [&](const exchange_shape& of) {
        for (const merge_option& option : best_merge(machine(), of, load_of(requests)).options)
            CHECK(option.legal == (option.kind != merge_kind::deferred));
    };
    all_but_deferred(spread);
    exchange_shape scattered = shape;
    scattered.placement = output_placement::scattered;
    CHECK(says(refusal_of([&] { best_merge(machine(), scattered, load_of(requests)); }), "scatter_heads", {"6", "4"}));
    scattered.gathered_heads = 8;
    all_but_deferred(scattered);
}

TEST_CASE("The deferred merge is offered where partial sums are wanted, and costs its gather and its scaling") {
    const std::array<request_load, 1> requests{{{1, 100}}};
    exchange_shape shape = shape_of(4, 2, 2, 6); // N need not divide the heads
    shape.placement = output_placement::partial_sums;
    shape.replicated_q = true;
    attention_load load = load_of(requests, 6);
    const merge_choice choice = best_merge(machine(), shape, load);
    CHECK(choice.kind == merge_kind::deferred);
    CHECK(choice.options[3].kind == merge_kind::deferred);
    for (const merge_option& option : choice.options) CHECK(option.legal == (option.kind == merge_kind::deferred));
    CHECK(near(choice.cost.exchange_us, 7 + 3 * (2 * 6 * 4) / 2500.0));
    const double lses = 4 * 2 * 6 * 4, own = 2 * 6 * 24 * 4; // of all ranks; the partial of this one
    CHECK(near(choice.cost.merge_us, 2 * 2 + (lses + 2 * own) / 640.0));
    exchange_shape fp32 = shape; // no copy to another type
    fp32.output_bytes = 4;
    CHECK(near(best_merge(machine(), fp32, load).cost.merge_us, 2 + (lses + own) / 640.0));
    CHECK(near(choice.cost.projection_us, 3 * 5000 / 1600.0)); // of Q, for the heads of others
    for (const auto placement :
         {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
        shape.placement = placement;
        CHECK(says(refusal_of([&] { layer_us(machine(), merge::deferred{}, shape, load); }), "placement",
                   {"deferred", name_of(placement)}));
    }
    shape.placement = output_placement::partial_sums;
    CHECK(says(refusal_of([&] { layer_us(machine(), merge::a2a{}, shape, load); }), "placement", {"a2a"}));
    shape.ranks = shape.distinct_tp = 1;
    CHECK(near(best_merge(machine(), shape, load).cost.total_us(), 3 + 6.4));
}

TEST_CASE("Weights of the output projection are those of the heads that are placed") {
    attention_load load = load_of({});
    load.output_weight_bytes_per_head = 3200;
    exchange_shape shape = shape_of(4, 2, 1, 8);
    const struct {
        output_placement placement;
        merge_kind kind;
        double heads;
    } all[] = {{output_placement::own_heads, merge_kind::a2a, 4},
               {output_placement::scattered, merge_kind::ag_rs, 2},
               {output_placement::all_heads, merge_kind::ag_ar, 8},
               {output_placement::partial_sums, merge_kind::deferred, 8}};
    for (const auto& one : all) {
        shape.placement = one.placement;
        CHECK(near(layer_us(machine(), merge::dynamic{one.kind}, shape, load).projection_us, one.heads * 2));
    }
}

TEST_CASE("The best merge is the least total, whichever it is") {
    const exchange_shape shape = shape_of(4, 4, 2, 8);
    machine_costs costs = machine();
    CHECK(best_merge(costs, shape, load_of({})).kind == merge_kind::a2a); // fewest calls
    costs.collectives = {{gather, 4, 1, 4000}, {exchange_op, 4, 1000, 10}, {scatter, 4, 3, 900}, {reduce, 4, 30, 900}};
    CHECK(best_merge(costs, shape, load_of({})).kind == merge_kind::ag_rs);
    costs.collectives[3].call_us = 1;
    costs.collectives[3].bytes_per_us = 1e6;
    const merge_choice choice = best_merge(costs, shape, load_of({}));
    CHECK(choice.kind == merge_kind::ag_ar);
    for (const merge_option& option : choice.options) {
        if (!option.legal) continue;
        const decode_cost alone = layer_us(costs, merge::dynamic{option.kind}, shape, load_of({}));
        CHECK(option.cost.total_us() == alone.total_us());
        CHECK(choice.cost.total_us() <= option.cost.total_us());
    }
    CHECK(merge::dynamic{choice.kind}.name() == merge::ag_ar::name());
    costs.read_bytes_per_us = 0;
    CHECK(says(refusal_of([&] { best_merge(costs, shape, load_of({})); }), "costs", {"read_bytes_per_us"}));
}

TEST_CASE("Of equal merges the one with the fewest collectives is chosen") {
    const std::array<request_load, 1> requests{{{1, 100}}};
    const merge_choice alone = best_merge(machine(), shape_of(1, 1, 1, 8), load_of(requests));
    const merge_choice empty = [&] { // calls cost nothing and there are no rows
        machine_costs costs = machine();
        costs.merge_us = 0;
        for (collective_cost& entry : costs.collectives) entry.call_us = 0;
        return best_merge(costs, shape_of(4, 4, 0, 8), load_of(requests));
    }();
    for (const merge_choice& choice : {alone, empty}) {
        CHECK(choice.kind == merge_kind::a2a);
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(choice.options[i].kind == kinds[i]);
            CHECK(choice.options[i].legal);
            CHECK(near(choice.options[i].cost.total_us(), 3 + 6.4));
        }
    }
    machine_costs costs = machine(); // ag_rs and ag_ar alike, and a2a far dearer
    costs.merge_us = 0;
    costs.collectives = {{gather, 4, 0, 100}, {exchange_op, 4, 500, 100}, {scatter, 4, 0, 100}, {reduce, 4, 0, 100}};
    CHECK(best_merge(costs, shape_of(4, 4, 0, 8), load_of(requests)).kind == merge_kind::ag_rs);
}

TEST_CASE("More of anything never costs less") {
    machine_costs costs = machine();
    costs.request_us = 1;
    costs.row_numbers_per_us = 100;
    costs.serial_share = 0.5;
    for (const collective_op op : {gather, exchange_op, scatter, reduce})
        for (std::int32_t size = 2; size < 20; ++size)
            for (double bytes = 0; bytes < 1e6; bytes = 3 * bytes + 1) {
                CHECK(call_us(costs, op, size, bytes) < call_us(costs, op, size, 3 * bytes + 1));
                CHECK(call_us(costs, op, size, bytes) < call_us(costs, op, size, bytes, 2));
            }
    for (const merge_kind kind : kinds)
        for (const std::int64_t ranks : {2, 4, 8}) {
            double before = 0;
            for (std::int64_t rows = 1; rows < 100; rows += 7) {
                const std::array<request_load, 2> requests{{{rows, 10 * rows}, {1, 50}}};
                const auto cost =
                    layer_us(costs, merge::dynamic{kind}, shape_of(ranks, 2, rows + 1, 8), load_of(requests));
                CHECK(cost.total_us() > before);
                before = cost.total_us();
            }
        }
}
