// What watches the engine: compares its rows with the unsharded run, counts bytes, and prints a line a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/prefill/step.hpp>

#include "options.hpp"
#include "schedule.hpp"
#include "unsharded.hpp"

namespace demo {

// One rank's.
class watch {
public:
    static constexpr double bound = 2e-6; // what fp32 output owes, in relative L2

    watch(const options& given, const std::vector<unsharded_step>& right) : given_(given), right_(right) {}

    // The injected fault: requests that decode are said to have a token less in the cache than they have.
    void spoil(step_input& step) const;

    void layer_begins(std::uint64_t bytes_sent) { bytes_ -= bytes_sent; }
    void layer_ends(std::uint64_t bytes_sent) { bytes_ += bytes_sent; }

    // All rows of a layer, with the heads of this rank, of which the first is the model's first_head.
    void compare(std::int64_t layer, const std::vector<float>& got, std::int64_t rows, std::int64_t first_head);

    // All ranks tell each other what they found; rank 0 prints.
    template <ctxpar::communicator Communicator>
    void step_ends(Communicator& world, const step_input& in, const ctxpar::prefill_step& step,
                   const std::vector<std::int64_t>& sampled) {
        const finding own = found(in, step, sampled);
        std::vector<finding> all(static_cast<std::size_t>(world.size()));
        world.all_gather(&own, all.data(), sizeof(finding), {}, {"findings"});
        conclude(all, world.rank() == 0, in, step);
    }

    // The largest error of a row, over all ranks and steps.
    double worst() const { return worst_; }
    // Whether every rank sampled the tokens of the unsharded run and sent the bytes that the schedules state.
    bool as_expected() const { return as_expected_; }

private:
    // Of one rank in one step.
    struct finding {
        double error;
        bool as_expected;
    };
    finding found(const step_input& in, const ctxpar::prefill_step& step,
                  const std::vector<std::int64_t>& sampled) const;
    void conclude(const std::vector<finding>& all, bool prints, const step_input& in, const ctxpar::prefill_step& step);

    const options& given_;
    const std::vector<unsharded_step>& right_;
    std::size_t step_ = 0;
    std::uint64_t bytes_ = 0; // sent in the step
    double error_ = 0.0;      // of the step
    double worst_ = 0.0;
    bool as_expected_ = true;
};

} // namespace demo
