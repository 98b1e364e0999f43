// Where the ranks of this process get their steps: a scheduler behind a lock, on the clock of the machine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "schedule.hpp"

namespace serve {

class desk {
public:
    desk(scheduler& steps, std::int64_t ranks);

    // The next step of a rank, which it waits for; null when all is served, or a rank gave up.
    std::shared_ptr<const step> next(std::int64_t rank);

    // A rank has computed its part; sampled as engine::run gives it. When all of its ranks have, the step ends.
    void done(const std::shared_ptr<const step>& taken, const std::vector<std::vector<std::int32_t>>& sampled);

    void give_up();

private:
    struct taken_step {
        std::shared_ptr<const step> what;
        std::vector<std::vector<std::int32_t>> sampled;
        std::int64_t missing = 0; // ranks that still compute
    };
    double now_s() const;
    void begin_all();

    scheduler& steps_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> idle_;                            // [ranks]
    std::vector<std::shared_ptr<const step>> assigned_; // [ranks]
    std::vector<taken_step> taken_;
    bool gave_up_ = false;
};

} // namespace serve
