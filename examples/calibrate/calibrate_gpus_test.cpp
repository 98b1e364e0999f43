// Calibrations over ranks with GPUs that test/simt emulates: what they write, and what they refuse. Times of an
// emulator mean nothing.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "calibrate_gpus.cu"

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <simt/device.hpp>
#include <simt/nccl.hpp>

#include "common/calibration.hpp"

namespace {

using demo::calibration_task;

calibration_task task_over(const std::string& transport, std::int64_t ranks) {
    calibration_task task;
    task.program = "test";
    task.transport = transport;
    task.ranks = ranks;
    task.layers = 3;
    task.model = {false, 4, 2};
    task.how = {1, 100, true};
    return task;
}

std::string refusal(const calibration_task& task, std::string& text) {
    try {
        int status = 0;
        (void)demo::calibrate(task, status);
    } catch (const ctxpar::config_error& error) {
        text = error.what();
        return error.code();
    }
    return {};
}

bool has(const std::string& text, const char* part) {
    const bool found = text.find(part) != std::string::npos;
    if (!found) MESSAGE("'", text, "' lacks '", part, "'");
    return found;
}

demo::calibration_report report_of(const calibration_task& task) {
    int status = 1;
    const auto report = demo::calibrate(task, status);
    REQUIRE(report.has_value());
    CHECK(status == 0);
    return *report;
}

// Of a report whose steps were compared with one rank alone.
void check_report(const demo::calibration_report& report, const calibration_task& task) {
    const demo::calibration& file = report.file;
    CHECK(file.transport == task.transport);
    CHECK(file.backend == "cuda");
    CHECK(file.device == "emulated device");
    CHECK(file.ranks == task.ranks);
    CHECK(has(file.machine, "emulated device, compute capability 9.0, 4 processors"));
    CHECK(file.costs.weight_bytes_per_us > 0);
    CHECK_NOTHROW(ctxpar::check(file.costs));
    REQUIRE(!report.checked.empty());
    for (const demo::checked_step& step : report.checked) {
        CHECK(step.times.error <= demo::most_error);
        CHECK(step.times.error > 0); // the ranks did add in another order
        for (const double us : step.times.measured_us) CHECK(us > 0);
    }
    const std::string path = "calibration_of_" + task.transport + ".json";
    demo::write_calibration(path, file);
    const demo::calibration read = demo::read_calibration(path);
    CHECK(demo::calibration_text(read) == demo::calibration_text(file));
}

std::set<std::pair<ctxpar::collective_op, std::int32_t>> entries_of(const demo::calibration_report& report) {
    std::set<std::pair<ctxpar::collective_op, std::int32_t>> found;
    for (const ctxpar::collective_cost& entry : report.file.costs.collectives) found.emplace(entry.op, entry.size);
    return found;
}

} // namespace

TEST_CASE("ranks of NCCL, each with a GPU, write what can be read; their sums have costs of their own") {
    const simt::device gpus({.devices = 2});
    const std::uint64_t calls = simt::nccl_counters().collectives;
    const calibration_task task = task_over("nccl", 2);
    const demo::calibration_report report = report_of(task);
    check_report(report, task);
    CHECK(has(report.file.machine, "2 ranks, 1 a GPU"));
    CHECK(entries_of(report) ==
          std::set<std::pair<ctxpar::collective_op, std::int32_t>>{{ctxpar::collective_op::all_gather, 2},
                                                                   {ctxpar::collective_op::all_to_all, 2},
                                                                   {ctxpar::collective_op::reduce_scatter, 2},
                                                                   {ctxpar::collective_op::all_reduce, 2}});
    CHECK(simt::nccl_counters().collectives > calls + 50);
    CHECK(simt::nccl_counters().live_communicators == 0);
}

TEST_CASE("ranks that share one GPU do it without NCCL, in groups of every size") {
    const simt::device gpu;
    calibration_task task = task_over("local_cuda", 4);
    const std::uint64_t calls = simt::nccl_counters().collectives;
    const demo::calibration_report report = report_of(task);
    check_report(report, task);
    CHECK(has(report.file.machine, "4 ranks, 4 a GPU"));
    CHECK(entries_of(report).size() == 4); // two of 2 ranks, two of 4
    CHECK(simt::nccl_counters().collectives == calls);
    CHECK(simt::device_counters().launches_of.count(reinterpret_cast<const void*>(&demo::project_kernel<1>)) == 1);
}

TEST_CASE("latent attention over NCCL is measured too") {
    const simt::device gpus({.devices = 2});
    calibration_task task = task_over("nccl", 2);
    task.model = {true, 2, 1};
    const demo::calibration_report report = report_of(task);
    check_report(report, task);
    CHECK(report.file.attention == "mla");
    CHECK(report.file.model.bytes_per_token == 1152);
}

TEST_CASE("more ranks than GPUs are refused by name for NCCL, before a rank exists, and no GPU for both") {
    std::string text;
    {
        const simt::device gpus({.devices = 2});
        CHECK(refusal(task_over("nccl", 4), text) == "devices");
        CHECK(has(text, "4 ranks and 2 GPUs here; transport nccl has a GPU for each rank"));
        CHECK(has(text, "local_cuda"));
        CHECK(simt::device_counters().allocations == 0);
    }
    const simt::device none({.devices = 0});
    for (const char* const transport : {"nccl", "local_cuda"}) {
        CHECK(refusal(task_over(transport, 2), text) == "devices");
        CHECK(has(text, (std::string("transport ") + transport).c_str()));
        CHECK(has(text, "there is no GPU here"));
    }
}

TEST_CASE("ranks of NCCL that would share a GPU are refused on all, and too little memory of a GPU") {
    const simt::device gpus({.devices = 2});
    std::string text;
    std::atomic<int> refused{0};
    try {
        ctxpar::run_local_ranks(3, {}, [&](ctxpar::local_communicator& world) {
            try {
                demo::device_rank<ctxpar::nccl_communicator, ctxpar::local_communicator> own(world);
            } catch (const ctxpar::config_error&) {
                ++refused;
                throw;
            }
        });
    } catch (const ctxpar::config_error& error) {
        text = error.what();
    }
    CHECK(refused == 3);
    CHECK(has(text, "0000:00:00.0"));
    calibration_task many = task_over("local_cuda", 64); // 32 a GPU, of 1 GiB
    many.model = {false, 64, 2};
    CHECK(refusal(many, text) == "memory");
    CHECK(has(text, "16 MiB of a GPU's memory for each of 64 ranks; there must be 32"));
}

TEST_CASE("a projection on a device is the one added in double, for every number of rows") {
    const simt::device gpu;
    const demo::timed_stream stream;
    using kind = demo::device_kind<ctxpar::local_cuda_communicator>;
    demo::device_pool pool(std::size_t{1} << 20, stream.get());
    const auto* const weights = reinterpret_cast<const ctxpar::bf16*>(pool.data());
    for (const std::int64_t inputs : {32, 256, 1440})
        for (const std::int64_t rows : {1, 2, 7, 8, 9, 16}) {
            INFO(inputs, " inputs, ", rows, " rows");
            const demo::projection all{rows, inputs, 48};
            const std::vector<ctxpar::bf16> numbers = demo::rows_to_project(all);
            const auto own = kind::moved(numbers, stream.get());
            auto out =
                kind::moved(std::vector<float>(static_cast<std::size_t>(rows * all.outputs), -1.0F), stream.get());
            kind::project(all, weights, own.data(), out.data(), stream.get());
            const std::vector<float> got = kind::copied(std::as_const(out).data(), rows * all.outputs, stream.get());
            const auto there = kind::copied(weights, inputs * all.outputs, stream.get());
            CHECK(demo::distance(got, demo::projected(all, there.data(), numbers.data())) <=
                  demo::most_projection_error);
        }
}

TEST_CASE("the time of a device is that of its stream") {
    const simt::device gpus({.devices = 2});
    ctxpar::run_local_ranks(2, {}, [](ctxpar::local_communicator& world) {
        demo::device_rank<ctxpar::nccl_communicator, ctxpar::local_communicator> own(world);
        demo::team ranks(own);
        const auto rest = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
        const double us = ranks.time([&] {
            if (world.rank() == 1) ctxpar::cuda::check(cudaLaunchHostFunc(own.stream(), rest, nullptr), "host");
        });
        CHECK(us >= 20'000);
    });
}
