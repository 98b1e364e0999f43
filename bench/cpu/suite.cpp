#include "suite.hpp"

#include <cstdio>
#include <exception>
#include <set>
#include <utility>

namespace bench {
namespace {

bool wrong = false;

// The benchmark that is prepared at the moment; another one's memory is given back first.
struct {
    std::string name;
    std::unique_ptr<prepared> what;
    std::string problem;
} current;

void prepare_once(const std::string& name, const std::function<std::unique_ptr<prepared>()>& prepare) {
    if (current.name == name) return;
    current.what.reset();
    current.name = name;
    try {
        current.what = prepare();
        current.problem = current.what->verify();
    } catch (const std::exception& thrown) {
        current.problem = thrown.what();
    }
}

} // namespace

void add(const plan_of_run& run, const std::string& name, double memory_bytes,
         const std::function<std::unique_ptr<prepared>()>& prepare) {
    static std::set<std::string> names;
    if (!names.insert(name).second) return;
    if (memory_bytes > run.memory) {
        std::fprintf(stderr, "left out, for want of memory: %s\n", name.c_str());
        return;
    }
    auto* const made = benchmark::RegisterBenchmark(name.c_str(), [name, prepare](benchmark::State& state) {
        prepare_once(name, prepare);
        if (!current.problem.empty()) {
            wrong = true;
            std::fprintf(stderr, "WRONG %s: %s\n", name.c_str(), current.problem.c_str());
            state.SkipWithError(current.problem.c_str());
            return;
        }
        std::int64_t iteration = 0;
        for (auto _ : state) current.what->run(iteration++);
        current.what->report(state);
    });
    made->UseRealTime()->Unit(benchmark::kMicrosecond);
    if (run.smoke) made->Iterations(1);
}

bool any_wrong() {
    return wrong;
}

void rate(benchmark::State& state, const char* name, double of_one, const char* share, double ceiling) {
    const double all = of_one * static_cast<double>(state.iterations());
    state.counters[name] = benchmark::Counter(all / 1e9, benchmark::Counter::kIsRate);
    state.counters[share] = benchmark::Counter(all / ceiling, benchmark::Counter::kIsRate);
}

} // namespace bench
