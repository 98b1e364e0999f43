// The number of ranks a request is given, against keys dealt out one by one and costs added up by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ctxpar/plan/cp_size.hpp>

#include "near.hpp"
#include "refusal.hpp"

using namespace ctxpar;
using ctxpar_test::near;
using ctxpar_test::refusal_of;
using ctxpar_test::says;

namespace {

using numbers = std::vector<std::int64_t>;

// Every call 5 us whatever its size, and bytes at 1000 a microsecond.
machine_costs machine() {
    machine_costs costs;
    costs.collectives = {{collective_op::all_gather, 2, 5, 1000}, {collective_op::all_to_all, 2, 5, 1000}};
    costs.read_bytes_per_us = 2000;
    costs.flops_per_us = 1e6;
    costs.attend_us = 3;
    costs.merge_bytes_per_us = 500;
    costs.merge_us = 2;
    return costs;
}

model_shape small_model() {
    model_shape model;
    model.heads = 12;
    model.query_width = 8;
    model.value_width = 4;
    model.bytes_per_token = 100;
    return model;
}

numbers sizes_of(const cp_size_choice& choice) {
    numbers sizes;
    for (const cp_size_option& option : choice.options) sizes.push_back(option.ranks);
    return sizes;
}

// Tokens that the fullest of `ranks` ranks has when all requests are dealt out token by token.
std::int64_t fullest(std::span<const request_load> requests, std::int64_t ranks, std::int64_t interleave) {
    numbers held(static_cast<std::size_t>(ranks), 0);
    for (const request_load& request : requests)
        for (std::int64_t left = request.keys, rank = 0; left > 0; left -= interleave, rank = (rank + 1) % ranks)
            held[static_cast<std::size_t>(rank)] += std::min(left, interleave);
    return *std::max_element(held.begin(), held.end());
}

std::int64_t best_size(const machine_costs& costs, const model_shape& model, std::int64_t length,
                       const cp_domain& domain) {
    const std::array<request_load, 1> request{{{1, length}}};
    return cp_size_costs(costs, model, request, domain).best.ranks;
}

// DeepSeek-V3 at TP8 in bf16 on a machine of 4.8 TB/s and 660 TFLOPS: microseconds of a step of 61 layers at batch 1,
// without DCP or with DCP8, whose two calls a layer make exchange_us a step.
double latent_step_us(std::int64_t length, bool shared, double exchange_us) {
    machine_costs costs;
    costs.collectives = {{collective_op::all_gather, 8, exchange_us / 61 / 2, 1e15},
                         {collective_op::all_to_all, 8, exchange_us / 61 / 2, 1e15}};
    costs.read_bytes_per_us = 4.8e6;
    costs.flops_per_us = 660e6;
    costs.merge_bytes_per_us = 1e15;
    exchange_shape shape;
    shape.ranks = shape.distinct_tp = shared ? 8 : 1;
    shape.rows = 1;
    shape.gathered_heads = shared ? 128 : 16;
    shape.query_width = 576;
    shape.value_width = 512;
    const std::array<request_load, 1> request{{{1, shared ? ownership{8, 1}.local_len(length, 0) : length}}};
    const attention_load load{shape.gathered_heads, 576, 512, 576 * 2, 0, request};
    return 61 * layer_us(costs, merge::a2a{}, shape, load).total_us();
}

// The least length at which DCP8 is not slower.
std::int64_t break_even_length(double exchange_us) {
    std::int64_t shorter = 0, longer = 1 << 24;
    while (longer - shorter > 1) {
        const std::int64_t middle = (shorter + longer) / 2;
        const bool pays = latent_step_us(middle, true, exchange_us) <= latent_step_us(middle, false, exchange_us);
        (pays ? longer : shorter) = middle;
    }
    return longer;
}

} // namespace

TEST_CASE("Costs of all sizes by hand") {
    const std::array<request_load, 2> requests{{{1, 1000}, {2, 600}}};
    model_shape model = small_model();
    model.merge = merge_kind::a2a;
    const cp_size_choice choice = cp_size_costs(machine(), model, requests, {4, 1, -1});
    REQUIRE((sizes_of(choice) == numbers{1, 2, 4}));
    const struct {
        std::int64_t tokens;
        double attention, exchange, merge;
    } wanted[] = {
        {1600, 3 + 80, 0, 0},
        // 3 rows, 6 of 12 heads: messages of 18 vectors of 20 bytes; 18 of 8 bytes are gathered again
        {800, 3 + 40, (5 + 0.36) + (5 + 0.144), 4 + 2 * (360 + 144) / 500.0},
        {400, 3 + 20, (5 + 3 * 0.18) + (5 + 3 * 0.072), 4 + 4 * (180 + 72) / 500.0},
    };
    for (std::size_t i = 0; i < 3; ++i) {
        const cp_size_option& option = choice.options[i];
        CHECK(option.tokens == wanted[i].tokens);
        CHECK(option.legal);
        CHECK(option.fits);
        CHECK(near(option.cost.attention_us, wanted[i].attention));
        CHECK(near(option.cost.exchange_us, wanted[i].exchange));
        CHECK(near(option.cost.merge_us, wanted[i].merge));
        CHECK(option.cost.projection_us == 0);
    }
    CHECK(choice.best.ranks == 4);
    CHECK(choice.best.cost.total_us() == choice.options[2].cost.total_us());
    model.scattered_output = true; // no second collective, no copy
    const cp_size_choice scattered = cp_size_costs(machine(), model, requests, {4, 1, -1});
    CHECK(near(scattered.options[2].cost.exchange_us, 5 + 3 * 0.18));
    CHECK(near(scattered.options[2].cost.merge_us, 2 + 4 * 180 / 500.0));
    model.output_bytes = 8;
    model.partial_bytes = 2;
    model.scattered_output = false;
    const cp_size_choice bytes = cp_size_costs(machine(), model, requests, {2, 1, -1});
    CHECK(near(bytes.options[1].cost.exchange_us, (5 + 18 * 12 / 1000.0) + (5 + 18 * 32 / 1000.0)));
}

TEST_CASE("Attention that is bound by FLOPs takes those of all heads over the shard") {
    machine_costs costs = machine();
    costs.flops_per_us = 100;
    const std::array<request_load, 2> requests{{{1, 40}, {3, 20}}};
    const cp_size_choice choice = cp_size_costs(costs, small_model(), requests, {2, 1, -1});
    CHECK(near(choice.options[0].cost.attention_us, 3 + 2 * 12 * 12 * (40 + 3 * 20) / 100.0));
    CHECK(near(choice.options[1].cost.attention_us, 3 + 2 * 12 * 12 * (20 + 3 * 10) / 100.0));
}

TEST_CASE("The slowest rank's keys are those of the fullest, at any interleave") {
    for (const std::int64_t interleave : {1, 4, 7})
        for (const std::int64_t longest : {0, 1, 5, 13, 48, 95}) {
            const std::array<request_load, 3> requests{{{1, longest}, {2, 17}, {1, 2 * longest}}};
            const cp_size_choice choice = cp_size_costs(machine(), small_model(), requests, {12, interleave, -1});
            CHECK((sizes_of(choice) == numbers{1, 2, 3, 4, 6, 12}));
            for (const cp_size_option& option : choice.options) {
                const auto tokens = fullest(requests, option.ranks, interleave);
                CHECK(option.tokens == tokens);
                CHECK(near(option.cost.attention_us, 3 + static_cast<double>(tokens) / 20));
            }
        }
}

TEST_CASE("A size must scatter the heads only where the merge or the output does") {
    const std::array<request_load, 1> requests{{{1, 5000}}};
    model_shape model = small_model();
    model.heads = 4;
    const cp_domain domain{6, 1, -1};
    const auto legal = [&](const cp_size_choice& choice) {
        numbers sizes;
        for (const cp_size_option& option : choice.options) {
            if (option.legal) sizes.push_back(option.ranks);
            CHECK((option.cost.total_us() > 0) == option.legal);
        }
        return sizes;
    };
    const cp_size_choice any = cp_size_costs(machine(), model, requests, domain);
    CHECK((legal(any) == numbers{1, 2, 3, 6}));
    CHECK(any.options[1].merge == merge_kind::a2a);
    CHECK(any.options[2].merge == merge_kind::ag_ar);
    CHECK(any.best.ranks == 6);
    model.merge = merge_kind::ag_ar;
    CHECK((legal(cp_size_costs(machine(), model, requests, domain)) == numbers{1, 2, 3, 6}));
    for (const auto kind : {merge_kind::a2a, merge_kind::ag_rs}) {
        model.merge = kind;
        const cp_size_choice choice = cp_size_costs(machine(), model, requests, domain);
        CHECK((legal(choice) == numbers{1, 2}));
        CHECK(choice.best.ranks == 2);
        CHECK(choice.best.merge == kind);
    }
    model.scattered_output = true;
    model.merge.reset();
    CHECK((legal(cp_size_costs(machine(), model, requests, domain)) == numbers{1, 2}));
    model.merge = merge_kind::ag_ar;
    CHECK((legal(cp_size_costs(machine(), model, requests, domain)) == numbers{1, 2}));
}

TEST_CASE("The best size has room; a refusal says what each would need") {
    machine_costs costs = machine();
    costs.collectives.clear();
    for (const auto op : {collective_op::all_gather, collective_op::all_to_all}) { // so that fewer ranks are better
        costs.collectives.push_back({op, 2, 1000, 1000});
        costs.collectives.push_back({op, 4, 2000, 1000});
    }
    const std::array<request_load, 2> requests{{{1, 1000}, {1, 601}}};
    const auto chosen = [&](std::int64_t capacity) {
        return cp_size_costs(costs, small_model(), requests, {4, 1, capacity});
    };
    CHECK(chosen(-1).best.ranks == 1);
    CHECK(chosen(1601).best.ranks == 1);
    const cp_size_choice tight = chosen(1600);
    CHECK(tight.best.ranks == 2);
    CHECK(!tight.options[0].fits);
    CHECK(tight.options[1].fits);
    CHECK(near(tight.options[0].cost.total_us(), 3 + 1601 / 20.0)); // what it would cost is known all the same
    CHECK(chosen(801).best.ranks == 2);
    CHECK(chosen(800).best.ranks == 4);
    CHECK(chosen(401).best.ranks == 4);
    CHECK(says(refusal_of([&] { chosen(400); }), "capacity",
               {"domain of 4 ranks", "1 rank would hold 1601", "2 ranks would hold 801", "4 ranks would hold 401",
                "room for 400"}));
    model_shape model = small_model();
    model.heads = 2;
    model.merge = merge_kind::a2a;
    CHECK(says(refusal_of([&] {
                   cp_size_costs(costs, model, requests, {4, 1, 401});
               }),
               "capacity", {"2 ranks would hold 801", "4 ranks do not divide the 2 heads", "room for 401"}));
    CHECK(cp_size_costs(costs, small_model(), {}, {4, 1, 0}).best.ranks == 1);
}

TEST_CASE("Of equal sizes the smallest is chosen") {
    machine_costs costs = machine();
    costs.merge_us = 0;
    costs.merge_bytes_per_us = 1e300;
    for (collective_cost& entry : costs.collectives) entry = {entry.op, 2, 0, 1e300};
    const std::array<request_load, 1> requests{{{1, 16}}};
    const cp_size_choice choice = cp_size_costs(costs, small_model(), requests, {4, 16, -1}); // rank 0 has all
    CHECK(near(choice.options[2].cost.total_us(), choice.options[0].cost.total_us()));
    CHECK(choice.best.ranks == 1);
}

TEST_CASE("Longer requests never want a smaller size") {
    const model_shape model = small_model();
    for (const std::int64_t interleave : {1, 16}) {
        std::int64_t before = 1, changes = 0;
        for (std::int64_t length = 0; length < 4000; length += 3) {
            const std::int64_t size = best_size(machine(), model, length, {8, interleave, -1});
            CHECK(size >= before);
            changes += size != before ? 1 : 0;
            before = size;
        }
        CHECK(before == 8);
        CHECK(changes >= 1);
    }
    std::int64_t before = 1;
    for (std::int64_t length = 0; length < 12 * 4 * 100; length += 12 * 4) { // whole rounds of every size
        const std::int64_t size = best_size(machine(), model, length, {12, 4, -1});
        CHECK(size >= before);
        before = size;
    }
    CHECK(before == 12);
}

TEST_CASE("One replica has no choice, and a merge takes no more than 256 ranks") {
    machine_costs costs = machine();
    costs.collectives.clear(); // nothing is called
    const std::array<request_load, 1> requests{{{1, 5000}}};
    const cp_size_choice alone = cp_size_costs(costs, small_model(), requests, {1, 16, -1});
    CHECK((sizes_of(alone) == numbers{1}));
    CHECK(alone.best.cost.total_us() == 3 + 250);
    CHECK(says(refusal_of([&] { cp_size_costs(costs, small_model(), requests, {2, 16, -1}); }), "costs", {"no cost"}));
    CHECK(sizes_of(cp_size_costs(machine(), small_model(), requests, {1024, 1, -1})).back() == 256);
}

TEST_CASE("What is no domain, model or request is refused") {
    const std::array<request_load, 1> good{{{1, 100}}};
    const auto refused = [&](const model_shape& model, std::span<const request_load> requests,
                             const cp_domain& domain) {
        return refusal_of([&] { cp_size_costs(machine(), model, requests, domain); });
    };
    CHECK(says(refused(small_model(), good, {0, 1, -1}), "ranks", {"0"}));
    CHECK(says(refused(small_model(), good, {2, 0, -1}), "interleave", {"0"}));
    CHECK(says(refused(small_model(), good, {2, 1, -2}), "capacity", {"-2"}));
    const std::array<request_load, 1> negative{{{1, -1}}}, idle{{{0, 1}}};
    CHECK(says(refused(small_model(), negative, {2, 1, -1}), "length", {"-1"}));
    CHECK(says(refused(small_model(), idle, {2, 1, -1}), "rows", {"0", "at least 1"}));
    constexpr auto largest = std::numeric_limits<std::int64_t>::max();
    const std::array<request_load, 2> long_ones{{{1, largest}, {1, 1}}}, many{{{1, 1}, {2147483647, 1}}};
    CHECK(says(refused(small_model(), long_ones, {2, 1, -1}), "length", {"63 bits"}));
    CHECK(says(refused(small_model(), many, {2, 1, -1}), "rows", {"2147483647"}));
    for (const auto field : {&model_shape::heads, &model_shape::query_width, &model_shape::value_width,
                             &model_shape::bytes_per_token, &model_shape::partial_bytes, &model_shape::output_bytes}) {
        model_shape model = small_model();
        model.*field = 0;
        CHECK(says(refused(model, good, {2, 1, -1}), "size", {"0", "at least 1"}));
    }
    model_shape sums = small_model();
    sums.merge = merge_kind::deferred;
    CHECK(says(refused(sums, good, {2, 1, -1}), "placement", {"deferred", "partial sums", "ag_ar"}));
    machine_costs costs = machine();
    costs.flops_per_us = 0;
    CHECK(says(refusal_of([&] { cp_size_costs(costs, small_model(), good, {2, 1, -1}); }), "costs", {"flops_per_us"}));
}

TEST_CASE("Published break-even lengths of MLA with DCP8 come out") {
    const double saved = latent_step_us(1 << 20, false, 0) - latent_step_us(1 << 20, true, 0);
    CHECK(std::fabs(saved - 12000) < 50); // 12.0 ms per 1M tokens
    CHECK(std::fabs(latent_step_us(1 << 20, false, 0) - 15350) < 10);
    CHECK(std::fabs(latent_step_us(1 << 20, true, 0) - 3370) < 10);
    const auto slow = static_cast<double>(break_even_length(2500));
    const auto fast = static_cast<double>(break_even_length(300));
    CHECK(std::fabs(slow / 220000 - 1) < 0.01);
    CHECK(std::fabs(fast / 27000 - 1) < 0.03);
}

TEST_CASE("A reshard reads and sends the bytes of its busiest rank") {
    CHECK(near(resharded_us(machine(), 6000, 500), 3 + 12));
    CHECK(resharded_us(machine(), 0, 500) == 0);
    CHECK(says(refusal_of([] { resharded_us(machine(), 1, 0); }), "costs", {"bytes_per_us", "0"}));
    CHECK(says(refusal_of([] { resharded_us(machine_costs{}, 1, 1); }), "costs", {"read_bytes_per_us"}));
    CHECK(says(refusal_of([] { resharded_us(machine(), -1, 1); }), "costs", {"bytes", "-1"}));
}

TEST_CASE("a prefill is the attention of its rows, their way to the shards and back, and what a row takes else") {
    machine_costs costs;
    costs.collectives = {{collective_op::all_gather, 2, 5, 1000}, {collective_op::all_to_all, 2, 7, 500}};
    costs.read_bytes_per_us = 2000;
    costs.flops_per_us = 1000;
    costs.attend_us = 3;
    costs.merge_bytes_per_us = 250;
    costs.merge_us = 2;
    model_shape model;
    model.heads = 12;
    model.query_width = 8;
    model.value_width = 4;
    model.bytes_per_token = 100;
    model.partial_bytes = 4;
    model.output_bytes = 2;
    // 41 new tokens of 100 see 80 on the average: 40 of them on each of two ranks, 1 token a chunk.
    const double alone = 3 + 2.0 * 41 * 12 * (8 + 4) * 80 / 1000 + 41 * 1.5;
    CHECK(near(prefill_us(costs, model, {1, 1}, 100, 41, 1.5), alone));
    const double gathered = 5 + 21.0 * (12 * 8 * 2 + 100) / 1000;
    const double back = 7 + 21.0 * 12 * (4 * 4 + 4) / 500;
    const double merged = 2 + 2 * 21.0 * 12 * (4 * 4 + 4) / 250;
    const double pair = 3 + 2.0 * 41 * 12 * (8 + 4) * 40 / 1000 + 21 * 1.5 + gathered + back + merged;
    CHECK(near(prefill_us(costs, model, {2, 1}, 100, 41, 1.5), pair));
    CHECK(says(refusal_of([&] { prefill_us(costs, model, {2, 1}, 100, 101); }), "rows", {"at most all of them"}));
    CHECK(says(refusal_of([&] { prefill_us(costs, model, {2, 1}, 100, 0); }), "rows", {"at least 1"}));
    CHECK(says(refusal_of([&] { prefill_us(costs, model, {2, 1}, 100, 1, -1); }), "costs", {"row_us"}));
}

TEST_CASE("A move pays after the least number of steps that save as much") {
    CHECK(break_even(100, 30, 20) == 10);
    CHECK(break_even(101, 30, 20) == 11);
    CHECK(break_even(1, 30, 20) == 1);
    CHECK(break_even(0, 30, 20) == 0);
    CHECK(!break_even(100, 20, 20));
    CHECK(!break_even(0, 20, 20));
    CHECK(!break_even(0, 20, 30));
    CHECK(!break_even(1e300, 2, 1));
    for (const double move : {1.0, 64.0, 1000.0, 4097.0})
        for (const double saving : {0.25, 1.0, 3.0, 5000.0}) {
            const auto steps = static_cast<double>(break_even(move, 6000 + saving, 6000).value());
            CHECK(steps * saving >= move);
            CHECK((steps - 1) * saving < move);
        }
    CHECK(says(refusal_of([] { break_even(-1, 2, 1); }), "costs", {"move_us", "-1"}));
    CHECK(says(refusal_of([] { break_even(1, std::numeric_limits<double>::infinity(), 1); }), "costs", {"before_us"}));
    CHECK(says(refusal_of([] { break_even(1, 2, -1); }), "costs", {"after_us"}));
}
