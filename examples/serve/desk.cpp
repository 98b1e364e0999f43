#include "desk.hpp"

#include <algorithm>

namespace serve {

desk::desk(scheduler& steps, std::int64_t ranks)
    : steps_(steps), idle_(static_cast<std::size_t>(ranks), false), assigned_(static_cast<std::size_t>(ranks)) {}

double desk::now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

// Gives steps to all ranks that have nothing to do. One that has done its part of a step waits for the others.
void desk::begin_all() {
    const auto in_step = [this](std::size_t rank) {
        return std::any_of(taken_.begin(), taken_.end(), [rank](const taken_step& each) {
            return each.what->ranks.holds(static_cast<std::int64_t>(rank));
        });
    };
    bool news = steps_.finished();
    for (std::size_t rank = 0; rank < idle_.size(); ++rank) {
        if (!idle_[rank] || in_step(rank)) continue;
        const std::shared_ptr<const step> made = steps_.begin(static_cast<std::int64_t>(rank), now_s());
        if (made == nullptr) continue;
        news = true;
        taken_.push_back({made, std::vector<std::vector<std::int32_t>>(made->batches.size()), made->ranks.ranks});
        for (std::int64_t each = made->ranks.first; each < end_of(made->ranks); ++each) {
            idle_[static_cast<std::size_t>(each)] = false;
            assigned_[static_cast<std::size_t>(each)] = made;
        }
    }
    if (news) changed_.notify_all();
}

std::shared_ptr<const step> desk::next(std::int64_t rank) {
    const auto index = static_cast<std::size_t>(rank);
    std::unique_lock lock(mutex_);
    idle_[index] = true;
    while (true) {
        if (assigned_[index] == nullptr && !gave_up_) begin_all();
        if (assigned_[index] != nullptr) return std::exchange(assigned_[index], nullptr);
        if (steps_.finished() || gave_up_) return nullptr;
        const std::optional<double> arrival = steps_.next_arrival_s();
        if (arrival) {
            changed_.wait_until(lock, start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                   std::chrono::duration<double>(*arrival)));
        } else {
            changed_.wait(lock);
        }
    }
}

void desk::done(const std::shared_ptr<const step>& taken, const std::vector<std::vector<std::int32_t>>& sampled) {
    const std::lock_guard lock(mutex_);
    const auto at =
        std::find_if(taken_.begin(), taken_.end(), [&](const taken_step& each) { return each.what == taken; });
    for (std::size_t b = 0; b < sampled.size(); ++b)
        if (!sampled[b].empty()) at->sampled[b] = sampled[b];
    if (--at->missing > 0) return;
    steps_.end(*at->what, at->sampled, now_s());
    taken_.erase(at);
    begin_all();
}

void desk::give_up() {
    const std::lock_guard lock(mutex_);
    gave_up_ = true;
    changed_.notify_all();
}

} // namespace serve
