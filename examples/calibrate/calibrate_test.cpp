#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "calibrate.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <thread>

#include <ctxpar/core/error.hpp>

#include "attention_fit.hpp"
#include "costs.hpp"
#include "host_rank.hpp"
#include "layers.hpp"
#include "measure_weights.hpp"

namespace {

using demo::attention_point;
using demo::model_dims;
using demo::requests;

constexpr model_dims gqa{false, 8, 2};
constexpr model_dims mla{true, 4, 1};

bool close(double got, double wanted, double share = 1e-6) {
    const bool holds = std::fabs(got - wanted) <= share * std::fabs(wanted) + 1e-9;
    if (!holds) MESSAGE("got ", got, ", wanted ", wanted);
    return holds;
}

// Points of a machine that is as the model says.
std::vector<attention_point> points_of(const ctxpar::machine_costs& costs, const model_dims& model) {
    std::vector<attention_point> points;
    for (const std::int64_t batch : {1, 4})
        for (const std::int64_t rows : {1, 2, 4, 16})
            for (const std::int64_t keys : {64, 512, 4096, 16384}) {
                const requests all(static_cast<std::size_t>(batch), {rows, keys});
                const ctxpar::attention_load load{
                    model.heads, model.query_width(), model.value_width(), model.token_bytes(), 0, all};
                points.push_back(demo::attention_point_of(model, all, ctxpar::attention_us(costs, load)));
            }
    return points;
}

ctxpar::machine_costs machine(double serial) {
    ctxpar::machine_costs costs;
    costs.attend_us = 7;
    costs.request_us = 5;
    costs.row_numbers_per_us = 900;
    costs.read_bytes_per_us = 11000;
    costs.flops_per_us = 300000;
    costs.serial_share = serial;
    costs.merge_bytes_per_us = 1;
    return costs;
}

// A machine whose clock is what its calls say they take: 50 bytes/us to other ranks, 100 of weights.
double& clock_us() {
    thread_local double us = 0;
    return us;
}

class clocked_communicator {
public:
    using stream_type = ctxpar::host_stream;
    static constexpr bool reproducible = true;

    explicit clocked_communicator(ctxpar::local_communicator& world) : world_(world) {}
    int rank() const { return world_.rank(); }
    int size() const { return world_.size(); }
    void check() { world_.check(); }
    void wait(stream_type stream) { world_.wait(stream); }
    std::uint64_t bytes_sent() const { return world_.bytes_sent(); }
    ctxpar::check_level checks() const { return world_.checks(); }
    void agree(std::uint64_t digest, const char* what, stream_type stream) { world_.agree(digest, what, stream); }
    void all_gather(const void* send, void* recv, std::size_t bytes, stream_type stream, ctxpar::collective_note note) {
        world_.all_gather(send, recv, bytes, stream, note);
        spend(3, bytes);
    }
    void all_to_all(const void* send, void* recv, std::size_t bytes, stream_type stream, ctxpar::collective_note note) {
        world_.all_to_all(send, recv, bytes, stream, note);
        spend(4, bytes);
    }
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, stream_type stream, ctxpar::collective_note note) {
        world_.all_to_all(send, send_bytes, recv, recv_bytes, stream, note);
    }
    void reduce_scatter(const void*, void*, std::size_t count, ctxpar::scalar_type, stream_type,
                        ctxpar::collective_note) {
        spend(5, count * sizeof(float));
    }
    // Parts of the sum, and the sums.
    void all_reduce(const void*, void*, std::size_t count, ctxpar::scalar_type, stream_type, ctxpar::collective_note) {
        spend(6, 2 * count * sizeof(float) / static_cast<std::size_t>(size()));
    }

private:
    void spend(double us, std::size_t bytes) { clock_us() += us + static_cast<double>(bytes) * (size() - 1) / 50; }
    ctxpar::local_communicator& world_;
};
static_assert(ctxpar::reducing_communicator<clocked_communicator>);

struct clocked_kind : demo::host_kind<clocked_communicator> {
    static inline thread_local float wrong_by = 0;
    static void project(const demo::projection& all, const ctxpar::bf16* weights, const float* rows, float* out,
                        stream_type) {
        demo::project_on_host(all, weights, rows, out);
        *out *= 1 + wrong_by;
        clock_us() += 7 + static_cast<double>(2 * all.inputs * all.outputs) / 100;
    }
};

class clocked_rank {
public:
    using kind = clocked_kind;
    explicit clocked_rank(clocked_communicator& comm) : comm_(comm) {}
    int rank() const { return comm_.rank(); }
    int size() const { return comm_.size(); }
    clocked_communicator& comm() { return comm_; }
    static ctxpar::host_stream stream() { return {}; }
    void tell(const double& own, double* all) { comm_.all_gather(&own, all, sizeof(own), {}, {"a measured time"}); }
    void begin() { begin_ = clock_us(); }
    double end_us() const { return clock_us() - begin_; }

private:
    clocked_communicator& comm_;
    double begin_ = 0;
};

std::string code_of(const demo::calibration_task& task) {
    try {
        demo::check_task(task);
    } catch (const ctxpar::config_error& error) {
        return error.code();
    }
    return {};
}

} // namespace

TEST_CASE("a line is found though some points are far off it") {
    std::vector<demo::point> points;
    for (const double x : {64, 512, 4096, 16384, 65536, 262144, 1048576}) points.push_back({x, 30 + x / 5000});
    demo::line fitted = demo::fit_line(points);
    CHECK(close(fitted.fixed, 30));
    CHECK(close(demo::rate_of(fitted), 5000));
    points[1].us = 900; // somebody else had the core
    points[4].us = 10;
    fitted = demo::fit_line(points);
    CHECK(close(fitted.fixed, 30, 0.05));
    CHECK(close(demo::rate_of(fitted), 5000, 0.2));
    CHECK(demo::fit_line({{1, 5}, {10, 4}, {100, 3}}).slope == 0); // less for more is noise
    CHECK(demo::rate_of(demo::fit_line({{1, 5}, {10, 4}, {100, 3}})) == demo::free_rate);
    CHECK(demo::fit_line({{100, 1}, {1000, 1000}}).fixed == 0);
    CHECK(demo::median({3, 1, 2}) == 2);
    CHECK(demo::median({4, 1, 2, 3}) == 2.5);
    CHECK(demo::median({}) == 0);
}

TEST_CASE("the costs of attention are found again, whether reads hide arithmetic or not") {
    for (const double serial : {0.0, 0.5, 1.0})
        for (const model_dims& model : {gqa, mla}) {
            INFO(serial, " ", model.attention());
            const ctxpar::machine_costs wanted = machine(serial);
            ctxpar::machine_costs got;
            demo::fit_attention(points_of(wanted, model), got);
            CHECK(close(got.attend_us, wanted.attend_us, 1e-3));
            CHECK(close(got.request_us, wanted.request_us, 1e-3));
            CHECK(close(got.row_numbers_per_us, wanted.row_numbers_per_us, 1e-3));
            CHECK(close(got.read_bytes_per_us, wanted.read_bytes_per_us, 1e-3));
            CHECK(close(got.flops_per_us, wanted.flops_per_us, 1e-3));
            CHECK(close(got.serial_share, serial));
        }
}

TEST_CASE("what costs nothing is found to cost nothing, and no cost is below it") {
    ctxpar::machine_costs free = machine(1);
    free.request_us = free.row_numbers_per_us = 0;
    ctxpar::machine_costs got;
    demo::fit_attention(points_of(free, gqa), got);
    CHECK(got.request_us < 1e-3);
    CHECK((got.row_numbers_per_us == 0 || got.row_numbers_per_us > 1e6));
    std::vector<attention_point> points = points_of(machine(1), gqa);
    for (std::size_t i = 0; i < points.size(); ++i) points[i].us *= i % 2 == 0 ? 0.5 : 1.7; // nothing fits
    demo::fit_attention(points, got);
    got.merge_bytes_per_us = 1;
    CHECK_NOTHROW(ctxpar::check(got));
}

TEST_CASE("points that tell little, such as arithmetic alone, give numbers all the same") {
    ctxpar::machine_costs slow = machine(0);
    slow.flops_per_us = 10; // hides every read
    ctxpar::machine_costs got;
    demo::fit_attention(points_of(slow, gqa), got);
    got.merge_bytes_per_us = 1;
    CHECK_NOTHROW(ctxpar::check(got));
    CHECK(close(got.flops_per_us, 10, 1e-3));
    demo::fit_attention({{1, 10, 0, 0, 20}, {4, 10, 0, 0, 26}, {1, 40, 0, 0, 50}}, got); // no keys
    CHECK(close(got.attend_us, 8));
    CHECK(close(got.request_us, 2));
    CHECK(close(got.row_numbers_per_us, 1));
    CHECK(got.read_bytes_per_us == demo::free_rate);
    demo::fit_attention({{1, 10, 10, 10, 20}}, got);
    CHECK_NOTHROW(ctxpar::check(got));
}

TEST_CASE("requests are spread whole, the largest first, to the replica with the least") {
    const requests all = {{1, 10}, {2, 100}, {3, 50}, {4, 40}, {5, 1}};
    const std::vector<requests> parts = demo::spread_requests(all, 2);
    REQUIRE(parts.size() == 2);
    const auto keys = [](const requests& part) {
        std::multiset<std::int64_t> found;
        for (const ctxpar::request_load& each : part) found.insert(each.keys * 10 + each.rows);
        return found;
    };
    CHECK(keys(parts[0]) == std::multiset<std::int64_t>{1002, 15});
    CHECK(keys(parts[1]) == std::multiset<std::int64_t>{503, 404, 101});
    CHECK(demo::spread_requests({{1, 9}}, 3)[1].empty());
}

TEST_CASE("the slowest replica decides what replicas take") {
    const ctxpar::machine_costs costs = machine(0);
    const double alone = demo::predicted_apart_us(costs, gqa, {{1, 8000}}, 2);
    CHECK(close(demo::predicted_apart_us(costs, gqa, {{1, 8000}, {1, 10}}, 2), alone));
    CHECK(close(demo::predicted_apart_us(costs, gqa, {{1, 8000}, {1, 8000}}, 2), alone));
    CHECK(demo::predicted_apart_us(costs, gqa, {{1, 8000}, {1, 8000}, {1, 8000}}, 2) > 1.9 * alone);
    ctxpar::machine_costs shared = costs;
    shared.collectives = {{ctxpar::collective_op::all_gather, 2, 0, 1e9},
                          {ctxpar::collective_op::all_to_all, 2, 100, 1e9}};
    shared.merge_bytes_per_us = 1e9;
    const double together = demo::predicted_shared_us(shared, gqa, {{1, 8000}}, 2, ctxpar::merge_kind::a2a);
    CHECK(close(together, 100 + demo::predicted_apart_us(costs, gqa, {{1, 4000}}, 2), 1e-3));
    // AG+AR exchanges the sums' halves once, AG+RS whole ones once: one all_to_all each
    CHECK(demo::predicted_shared_us(shared, gqa, {{1, 8000}}, 2, ctxpar::merge_kind::ag_rs) > 100);
}

TEST_CASE("outputs that are not the same are some distance apart, and what is no number is far") {
    const std::vector<float> wanted = {3, 4};
    CHECK(demo::distance(wanted, wanted) == 0);
    CHECK(close(demo::distance({3, 4.5}, wanted), 0.1));
    CHECK(demo::distance({3}, wanted) == 1);
    CHECK(demo::distance({3, std::numeric_limits<float>::quiet_NaN()}, wanted) == 1);
    CHECK(demo::distance({300, 4}, wanted) == 1);
}

TEST_CASE("a pool gives its memory in turn and holds bf16 numbers") {
    demo::number_pool pool(std::size_t{4} << 20);
    std::byte* const first = pool.next(1 << 20);
    CHECK(first == pool.data());
    CHECK(pool.next(1 << 20) == first + (1 << 20));
    CHECK(pool.next(3 << 20) == first); // no room for it behind the two
    for (std::size_t at : {std::size_t{0}, (std::size_t{4} << 20) - 8}) {
        std::uint64_t word = 0;
        std::memcpy(&word, pool.data() + at, sizeof(word));
        for (int i = 0; i < 4; ++i, word >>= 16)
            CHECK(((word >> 7 & 0xff) == 0x7d || (word >> 7 & 0xff) == 0x7e)); // 0.25 and 0.5
    }
    CHECK(demo::four_numbers(1, 2) == demo::four_numbers(1, 2));
    CHECK(demo::four_numbers(1, 2) != demo::four_numbers(2, 1));
}

TEST_CASE("a projection is the one added in double, for every number of rows") {
    demo::number_pool pool(std::size_t{4} << 20);
    const auto* const weights = reinterpret_cast<const ctxpar::bf16*>(pool.data());
    for (std::int64_t rows = 1; rows <= demo::projection::most_rows; ++rows) {
        INFO(rows);
        const demo::projection all{rows, 96, 48};
        const std::vector<ctxpar::bf16> numbers = demo::rows_to_project(all);
        const std::vector<float> wide(numbers.begin(), numbers.end());
        const std::vector<double> right = demo::projected(all, weights, numbers.data());
        std::vector<float> out(static_cast<std::size_t>(rows * all.outputs), -1.0F);
        demo::project_on_host(all, weights, wide.data(), out.data());
        CHECK(demo::distance(out, right) <= demo::most_projection_error);
        out.back() += 1;
        CHECK(demo::distance(out, right) > 1e-3);
    }
    // Small enough to be added by hand.
    std::vector<ctxpar::bf16> w(16 * 32), x(2 * 32);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = ctxpar::bf16(i < 32 ? 1.0F : -2.0F);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = ctxpar::bf16(static_cast<float>(i / 32));
    const std::vector<double> sums = demo::projected({2, 32, 16}, w.data(), x.data());
    CHECK(sums[3] == 3 * 32);
    CHECK(sums[16 + 5] == -2 * 5 * 32);
}

TEST_CASE("weights are as fast as reading more of them takes longer, whatever a call costs") {
    ctxpar::run_local_ranks(2, {}, [](ctxpar::local_communicator& world) {
        clocked_communicator comm(world);
        clocked_rank own(comm);
        demo::team ranks(own);
        demo::number_pool pool(std::size_t{8} << 20);
        const demo::effort how{1, 100, true};
        CHECK(close(demo::measure_weights(ranks, {false, 8, 2}, pool, how), 100));
        CHECK(close(demo::measure_weights(ranks, {false, 1024, 2}, pool, how), 100)); // more than the pool has room for
    });
}

TEST_CASE("a product that is wrong on one rank is refused on all") {
    std::atomic<int> refused{0};
    ctxpar::run_local_ranks(3, {}, [&](ctxpar::local_communicator& world) {
        clocked_communicator comm(world);
        clocked_rank own(comm);
        demo::team ranks(own);
        demo::number_pool pool(std::size_t{2} << 20);
        const demo::effort how{1, 100, true};
        CHECK_NOTHROW(demo::projection_us(ranks, {3, 64, 64}, pool, how, true));
        clocked_kind::wrong_by = world.rank() == 1 ? 0.5F : 0;
        try {
            demo::projection_us(ranks, {3, 64, 64}, pool, how, true);
        } catch (const ctxpar::config_error& error) {
            refused += error.code() == "result" ? 1 : 0;
        }
        clocked_kind::wrong_by = 0;
    });
    CHECK(refused == 3);
}

TEST_CASE("collectives that take what the model says are found again, in bytes to each other rank") {
    ctxpar::run_local_ranks(4, {}, [](ctxpar::local_communicator& world) {
        clocked_communicator comm(world);
        clocked_rank own(comm);
        demo::team ranks(own);
        demo::number_pool pool(std::size_t{2} << 20);
        const std::vector<ctxpar::collective_cost> costs = demo::measure_collectives(ranks, pool, {1, 100, true});
        REQUIRE(costs.size() == 4);
        for (std::size_t i = 0; i < costs.size(); ++i) {
            CHECK(costs[i].op == static_cast<ctxpar::collective_op>(i));
            CHECK(costs[i].size == 4);
            CHECK(close(costs[i].call_us, 3 + static_cast<double>(i)));
            CHECK(close(costs[i].bytes_per_us, 50));
        }
    });
}

TEST_CASE("a thread's own work is part of the host's") {
    const double host = demo::host_seconds(), own = demo::thread_seconds();
    for (const double end = demo::now_us() + 100'000; demo::now_us() < end;) {
    }
    const double spent = demo::thread_seconds() - own;
    CHECK(spent > 0.001);
    CHECK(spent < 0.2);
    if (host > 0) CHECK(demo::host_seconds() - host >= spent - 0.05); // ticks are of 10 ms
}

TEST_CASE("times are those of the slowest rank, on all") {
    ctxpar::run_local_ranks(3, {}, [](ctxpar::local_communicator& world) {
        demo::host_rank own(world);
        demo::team ranks(own);
        CHECK(ranks.largest(world.rank() == 1 ? 7 : world.rank()) == 7);
        CHECK(ranks.sum(world.rank() + 1) == 6);
        const double us = ranks.time([&] {
            if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        });
        CHECK(us >= 20'000);
        int calls = 0;
        const std::vector<double> medians = ranks.medians(2, 3, [&](std::size_t which) {
            ++calls;
            return calls <= 2 ? 1e9 : which == 0 ? 5.0 : 6.0; // the first round is not counted
        });
        CHECK(medians == std::vector<double>{5, 6});
        CHECK(calls == 8);
    });
}

TEST_CASE("layers of ranks that share the keys are those of one rank, and a token that is not appended is missed") {
    ctxpar::run_local_ranks(2, {}, [](ctxpar::local_communicator& world) {
        for (const model_dims& model : {gqa, mla}) {
            const requests all = {{2, 75}, {1, 33}, {3, 40}};
            demo::number_pool pool(std::size_t{8} << 20);
            using C = ctxpar::local_communicator;
            const auto whole = demo::make_layers<C>(model, all, ctxpar::merge_kind::a2a, pool, nullptr);
            demo::first_step(*whole, pool);
            const auto shared = demo::make_layers(model, all, ctxpar::merge_kind::ag_ar, pool, &world);
            demo::first_step(*shared, pool);
            CHECK(demo::distance(shared->output(), whole->output()) <= demo::most_error);
            CHECK(demo::distance(shared->output(), whole->output()) > 0); // the ranks did add in another order
            demo::number_pool other(std::size_t{8} << 20);
            shared->fill(other.data());
            shared->decode(other.data());
            CHECK(demo::distance(shared->output(), whole->output()) > 1e-3);
            CHECK(shared->cache_bytes() < whole->cache_bytes());
            const requests large = {{1, 1 << 20}};
            CHECK_THROWS_AS(demo::make_layers<C>(model, large, ctxpar::merge_kind::a2a, pool, nullptr),
                            ctxpar::config_error);
        }
    });
}

TEST_CASE("a small calibration is one that can be read, and its results are right") {
    demo::calibration_task task;
    task.program = "test";
    task.ranks = 4;
    task.layers = 3;
    task.model = gqa;
    task.how = {1, 100, true};
    int status = 1;
    const auto report = demo::calibrate(task, status);
    REQUIRE(report.has_value());
    CHECK(status == 0);
    CHECK_NOTHROW(demo::calibration_text(report->file));
    CHECK(report->file.layers == 3);
    CHECK(report->file.ranks == 4);
    CHECK(report->file.transport == "local");
    CHECK(report->file.backend == "cpu");
    CHECK(report->file.device == demo::processor_name());
    CHECK(report->file.costs.weight_bytes_per_us > 0);
    CHECK(report->file.kv_heads == 2);
    CHECK(report->file.model.bytes_per_token == 2 * 2 * 256);
    std::set<std::pair<ctxpar::collective_op, std::int32_t>> found;
    for (const ctxpar::collective_cost& entry : report->file.costs.collectives) found.emplace(entry.op, entry.size);
    CHECK(found.size() == 4); // two of 2 ranks, two of 4
    REQUIRE(!report->checked.empty());
    for (const demo::checked_step& step : report->checked) {
        CHECK(step.times.error <= demo::most_error);
        CHECK(step.times.error > 0); // the ranks did add in another order
        for (const double us : step.times.measured_us) CHECK(us > 0);
    }
}

TEST_CASE("what can not be measured is refused first") {
    demo::calibration_task task;
    CHECK(code_of(task).empty());
    const auto refused = [&](const auto& change) {
        demo::calibration_task changed = task;
        change(changed);
        return code_of(changed) == "usage";
    };
    CHECK(refused([](auto& t) { t.ranks = 1; }));
    CHECK(refused([](auto& t) { t.ranks = 65; }));
    CHECK(refused([](auto& t) { t.model.heads = 33; }));
    CHECK(refused([](auto& t) { t.model.heads = 0; }));
    CHECK(refused([](auto& t) { t.model.heads = 2048; }));
    CHECK(refused([](auto& t) { t.model.kv_heads = 3; }));
    CHECK(refused([](auto& t) { t.model.kv_heads = 0; }));
    CHECK(refused([](auto& t) { t.model.latent = true; }));
    CHECK(refused([](auto& t) { t.layers = 0; }));
    CHECK(demo::text_of({{1, 5}, {1, 5}, {3, 8}}) == "2 x 1 row, 5 tokens + 1 x 3 rows, 8 tokens");
}
