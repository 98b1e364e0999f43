// Collectives among ranks that are threads: what they wait for one another, and what they copy. Bytes are those that a
// rank gives each of its peers; the rate counts every byte that any rank receives from another as read and written.
// They are in a cache, as what one layer exchanges is: there is no ceiling to compare them with.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "crew.hpp"
#include "exchange.hpp"
#include "suite.hpp"

namespace bench {
namespace {

class local_exchange final : public prepared {
public:
    local_exchange(collective which, int ranks, std::size_t bytes, const plan_of_run& run)
        : bytes_(bytes), cpus_(std::min(run.cpus, ranks)), crew_(ranks) {
        for (int rank = 0; rank < ranks; ++rank) all_.emplace_back(which, rank, ranks, bytes);
    }
    std::string verify() override {
        run(0);
        for (const exchange_buffers& own : all_)
            if (!own.right()) return "a rank did not receive what was sent to it";
        return {};
    }
    void run(std::int64_t) override {
        crew_.run([&](int rank) { all_[static_cast<std::size_t>(rank)].run(crew_.comm(rank)); });
    }
    void report(benchmark::State& state) override {
        const auto ranks = static_cast<double>(all_.size());
        const double received = ranks * (ranks - 1.0) * static_cast<double>(bytes_);
        const double all = 2.0 * received * static_cast<double>(state.iterations()); // read and written
        state.counters["copy_GB_per_s"] = benchmark::Counter(all / 1e9, benchmark::Counter::kIsRate);
        state.counters["cpus"] = cpus_;
    }

private:
    std::size_t bytes_;
    int cpus_;
    crew crew_;
    std::vector<exchange_buffers> all_;
};

} // namespace

void add_collectives(const plan_of_run& run) {
    for (const collective which : {collective::all_gather, collective::all_to_all, collective::all_to_all_sizes})
        for (const int ranks : {2, 4, 8})
            for (const std::size_t bytes : {std::size_t{1} << 10, std::size_t{1} << 16, std::size_t{1} << 22}) {
                const std::size_t used = run.smoke ? std::min(bytes, std::size_t{1} << 12) : bytes;
                add(run, name_of_exchange("local", which, ranks, used), static_cast<double>(used) * ranks * ranks * 2,
                    [which, ranks, used, &run] { return std::make_unique<local_exchange>(which, ranks, used, run); });
            }
}

} // namespace bench
