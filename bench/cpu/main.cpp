// The benchmarks of the CPU backend. The machine's ceilings are measured before and after them; a run in which others
// used the machine says that it is not accepted, in its exit status and in its JSON.
//
//   cpu_bench [options] [options of Google Benchmark, such as --benchmark_filter=decode/gqa --benchmark_out=file]
//     --smoke        every benchmark once, tiny: results are compared, times mean nothing
//     --cpus=N       the first N of the CPUs that it may use; all
//     --any_machine  goes on where the ceilings are in doubt, and says that the run is not accepted
//
// Exit status: 0 accepted, 1 a result was wrong, 2 wrong usage, 3 not accepted.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "machine.hpp"
#include "suite.hpp"

namespace bench {
namespace {

enum exit_status { accepted = 0, wrong_result = 1, wrong_usage = 2, not_accepted = 3 };

struct options {
    bool smoke = false;
    bool any_machine = false;
    int cpus = 0;
    std::string out; // of Google Benchmark's own option
};

std::string number_text(double value) {
    char text[48];
    std::snprintf(text, sizeof(text), "%.4g", value);
    return text;
}

void add_context(const ceilings& measured, const std::string& when) {
    for (const ceiling& each : measured.all) {
        const std::string name = "ceiling_" + when + "_" + std::to_string(each.threads) + "_";
        benchmark::AddCustomContext(name + "read_GB_per_s", number_text(each.read_bytes / 1e9));
        benchmark::AddCustomContext(name + "copy_GB_per_s", number_text(each.copy_bytes / 1e9));
        benchmark::AddCustomContext(name + "GFLOP_per_s", number_text(each.flops / 1e9));
    }
}

void add_verdict(const std::string& problem) {
    benchmark::AddCustomContext("accepted", problem.empty() ? "true" : "false");
    benchmark::AddCustomContext("not_accepted_because", problem);
}

// Keeps what was measured until the ceilings have been measured again: shares are then of the larger ones.
class late_reporter : public benchmark::JSONReporter {
public:
    late_reporter(const ceilings& before, const options& given) : before_(before), given_(given) {}

    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>& runs) override { kept_.push_back(runs); }
    void Finalize() override {
        const ceilings after = measure_ceilings(given_.smoke);
        const ceilings best = best_of(before_, after);
        problem_ = problem_of(given_, before_, after);
        add_context(after, "after");
        add_context(best, "best");
        add_verdict(problem_);
        JSONReporter::ReportContext(Context());
        for (std::vector<Run>& runs : kept_) {
            for (Run& run : runs) restate(run, best);
            JSONReporter::ReportRuns(runs);
        }
        JSONReporter::Finalize();
    }

    const std::string& problem() const { return problem_; }

    static std::string problem_of(const options& given, const ceilings& before, const ceilings& after) {
        if (given.smoke) return "a smoke test measures nothing";
        const std::string early = doubt(before);
        if (!early.empty()) return early + ", before the benchmarks";
        const std::string late = doubt(after);
        return late.empty() ? late : late + ", after the benchmarks";
    }

private:
    void restate(Run& run, const ceilings& best) const {
        const auto threads = run.counters.find("cpus");
        if (threads == run.counters.end()) return;
        const ceiling& was = before_.of(static_cast<int>(threads->second.value));
        const ceiling& is = best.of(static_cast<int>(threads->second.value));
        scale(run, "of_read", was.read_bytes / is.read_bytes);
        scale(run, "of_copy", was.copy_bytes / is.copy_bytes);
        scale(run, "of_compute", was.flops / is.flops);
    }
    static void scale(Run& run, const char* name, double factor) {
        const auto found = run.counters.find(name);
        if (found != run.counters.end()) found->second.value *= factor;
    }

    ceilings before_;
    options given_;
    std::vector<std::vector<Run>> kept_;
    std::string problem_;
};

// Takes this program's own options out of the arguments.
bool parse(int& count, char** arguments, options& given) {
    int kept = 1;
    for (int i = 1; i < count; ++i) {
        const std::string text = arguments[i];
        if (text == "--smoke") {
            given.smoke = true;
        } else if (text == "--any_machine") {
            given.any_machine = true;
        } else if (text.rfind("--cpus=", 0) == 0) {
            given.cpus = std::atoi(text.c_str() + 7);
            if (given.cpus < 1) return false;
        } else {
            if (text.rfind("--benchmark_out=", 0) == 0) given.out = text.substr(16);
            arguments[kept++] = arguments[i];
        }
    }
    count = kept;
    return true;
}

void print(const ceilings& measured) {
    for (const ceiling& each : measured.all)
        std::fprintf(stderr, "ceiling of %d thread%s: read %.1f GB/s, copy %.1f GB/s, %s %.0f GFLOP/s\n", each.threads,
                     each.threads == 1 ? "" : "s", each.read_bytes / 1e9, each.copy_bytes / 1e9,
                     measured.compute.c_str(), each.flops / 1e9);
}

void add_all(const plan_of_run& run) {
    add_merge(run);
    add_collectives(run);
    add_decode_gqa(run);
    add_decode_mla(run);
    add_prefill(run);
}

int run(const options& given) {
    use_cpus(given.cpus);
    plan_of_run plan;
    plan.smoke = given.smoke;
    plan.cpus = cpus();
    plan.best = measure_ceilings(given.smoke);
    plan.memory = 0.7 * free_memory();
    print(plan.best);
    benchmark::AddCustomContext("compute_ceiling", plan.best.compute);
    benchmark::AddCustomContext("cpus_used", std::to_string(plan.cpus));
    add_context(plan.best, "before");

    const std::string problem = late_reporter::problem_of(given, plan.best, plan.best);
    if (!problem.empty() && !given.smoke && !given.any_machine) {
        std::fprintf(stderr, "NOT ACCEPTED: %s\n", problem.c_str());
        if (given.out.empty()) return not_accepted;
        add_verdict(problem);
        std::ofstream file(given.out);
        benchmark::JSONReporter empty;
        empty.SetOutputStream(&file);
        empty.SetErrorStream(&file);
        empty.ReportContext(benchmark::BenchmarkReporter::Context());
        empty.Finalize();
        return not_accepted;
    }

    add_all(plan);
    benchmark::ConsoleReporter console(benchmark::ConsoleReporter::OO_None);
    late_reporter late(plan.best, given);
    std::string verdict;
    if (given.out.empty()) {
        benchmark::RunSpecifiedBenchmarks(&console);
        verdict = late_reporter::problem_of(given, plan.best, measure_ceilings(given.smoke));
    } else {
        benchmark::RunSpecifiedBenchmarks(&console, &late);
        verdict = late.problem();
    }
    if (any_wrong()) return wrong_result;
    if (given.smoke || verdict.empty()) return accepted;
    std::fprintf(stderr, "NOT ACCEPTED: %s\n", verdict.c_str());
    return not_accepted;
}

} // namespace
} // namespace bench

int main(int count, char** arguments) {
    bench::options given;
    if (!bench::parse(count, arguments, given)) {
        std::fprintf(stderr, "--cpus takes a number from 1 on\n");
        return bench::wrong_usage;
    }
    benchmark::Initialize(&count, arguments);
    if (benchmark::ReportUnrecognizedArguments(count, arguments)) return bench::wrong_usage;
    try {
        return bench::run(given);
    } catch (const std::exception& thrown) {
        std::fprintf(stderr, "%s\n", thrown.what());
        return bench::wrong_result;
    }
}
