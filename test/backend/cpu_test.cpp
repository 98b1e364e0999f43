// The CPU backend as an object: its threads, its count of operations, and the metadata it fills in.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <attention/plain_batch.hpp>

#include <ctxpar/backend/cpu.hpp>

using namespace ctxpar;

namespace {

std::string refusal(std::int64_t threads) {
    try {
        const cpu_backend backend({.threads = threads});
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "";
}

plain::batch random_batch(std::mt19937_64& random) {
    const auto upto = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % (n + 1)); };
    plain::batch given;
    given.columns = 20;
    for (std::int64_t r = upto(4); r >= 0; --r) {
        given.query_rows.push_back(upto(3));
        given.lengths.push_back(upto(20) == 0 ? -1 : given.query_rows.back() + upto(40));
        for (std::int64_t b = 0; b < given.columns; ++b) given.blocks.push_back(upto(30) == 0 ? -1 : upto(90));
    }
    given.rows = std::accumulate(given.query_rows.begin(), given.query_rows.end(), std::int64_t{0}) + upto(2);
    given.mask = {upto(1) * upto(9), 0, upto(1) * upto(3)};
    given.pool_blocks = 90;
    return given;
}

} // namespace

TEST_CASE("A backend works on the threads that its engine lends it") {
    cpu::executor lent;
    std::int64_t given = 0;
    lent.context = &given;
    lent.threads = 2;
    lent.run = [](void* context, std::int64_t items, cpu::executor::work_function work, const void* data) {
        for (std::int64_t item = 0; item < items; ++item) work(data, item, item % 2);
        *static_cast<std::int64_t*>(context) += items;
    };
    cpu_backend backend({.executor = lent});
    CHECK(backend.threads() == 2);
    std::vector<float> memory(5 * 2 * 3, 1.0F);
    backend.clear_rows(dense_view(memory.data(), 5, 2, 3), {});
    CHECK(given == 5);
    CHECK(memory == std::vector<float>(memory.size(), 0.0F));
}

TEST_CASE("A backend has the threads it was asked for, and refuses none and thousands") {
    CHECK(cpu_backend().threads() == 1);
    CHECK(cpu_backend({.threads = 3}).threads() == 3);
    CHECK(cpu_backend().instructions() == cpu::best_isa());
    CHECK(cpu_backend({1, cpu::isa::portable}).instructions() == cpu::isa::portable);
    for (const std::int64_t threads : {0, -2, 5000}) CHECK(refusal(threads) == "threads");
}

TEST_CASE("Copies share threads and the count of operations; two backends share nothing") {
    cpu_backend first({.threads = 2});
    cpu_backend copy = first;
    cpu_backend other({.threads = 2});
    float x = 1;
    const auto view = dense_view(&x, 1, 1, 1);
    first.copy(head_view<const float>(view), 0, view, {});
    CHECK(copy.launches() == 1);
    copy.copy(head_view<const float>(view), 0, view, {});
    CHECK(first.launches() == 2);
    CHECK(other.launches() == 0);
    CHECK(copy.threads() == 2);
}

TEST_CASE("Every operation counts once, also where there is nothing to do") {
    cpu_backend backend;
    plain::batch none;
    plain::batch_check check(none, {});
    CHECK(check.run([&](const metadata_args& args) { backend.metadata(args, {}); }) == "");
    CHECK(backend.launches() == 1);
    append_args<float, float> rows;
    backend.append(rows, {});
    CHECK(backend.launches() == 2);
    attend_args<float, float, float, lse_base::natural> args;
    std::vector<segment> padding(1);
    args.plan.arrays.segments = padding.data();
    backend.attend(args, {});
    CHECK(backend.launches() == 3);
    merge_parts<float, lse_base::natural> parts;
    const head_view<float> out;
    const head_view<natural_lse> lses;
    backend.merge(parts, out, lses, {});
    backend.scale(parts, 0, head_view<const float>(), out, {}, lses, {});
    backend.sum_parts(nullptr, 0, head_view<const float>(), out, {});
    backend.pack(head_view<const float>(), head_view<const natural_lse>(), out, {});
    backend.copy(head_view<const float>(), 0, out, {});
    CHECK(backend.launches() == 8);
}

TEST_CASE("The metadata of good and bad batches is what asking every token gives") {
    cpu_backend backend({.threads = 2});
    std::mt19937_64 random(80);
    std::int64_t bad = 0;
    for (int round = 0; round < 300; ++round) {
        const plain::batch given = random_batch(random);
        const shard part{1 + round % 4, round % (1 + round % 4), 1 + round % 5};
        plain::batch_check check(given, part);
        CHECK(check.run([&](const metadata_args& args) { backend.metadata(args, {}); }) == "");
        bad += check.memory().status.bad_entries;
    }
    CHECK(bad > 100);
}

TEST_CASE("The CPU states what it does: natural LSEs, P in fp32, empty rows written, strided outputs") {
    CHECK(backend<cpu_backend>);
    CHECK(cpu_backend::attend_lse_base == lse_base::natural);
    CHECK(std::is_same_v<cpu_backend::p_type, float>);
    CHECK(cpu_backend::writes_empty_rows);
    CHECK(cpu_backend::takes_intervals);
    CHECK(cpu_backend::host_memory);
    CHECK_FALSE(cpu_backend::dense_partials);
    CHECK(cpu_backend().attend_thread_floats(576, 512) > 32 * (576 + 512));
}
