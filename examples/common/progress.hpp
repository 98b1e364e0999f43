// A progress bar on a terminal; nothing where the output goes elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace demo {

// Counts work of any number of threads.
class progress {
public:
    progress(std::string label, std::int64_t total)
        : label_(std::move(label)), total_(total), shown_(isatty(fileno(stderr)) != 0) {}
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;
    ~progress() {
        if (shown_) fmt::print(stderr, "\r{:79}\r", "");
    }

    void add(std::int64_t done) {
        const std::int64_t now = done_.fetch_add(done, std::memory_order_relaxed) + done;
        if (!shown_ || total_ <= 0) return;
        const auto part = static_cast<std::int64_t>(40.0 * static_cast<double>(now) / static_cast<double>(total_));
        const std::unique_lock lock(printing_, std::try_to_lock);
        if (!lock.owns_lock() || part <= last_) return;
        last_ = part;
        const auto bar = static_cast<std::size_t>(part);
        fmt::print(stderr, "\r{:<12}[{:<40}]", label_, std::string(bar, '#'));
        std::fflush(stderr);
    }

private:
    std::string label_;
    std::int64_t total_;
    bool shown_;
    std::atomic<std::int64_t> done_{0};
    std::mutex printing_;
    std::int64_t last_ = -1;
};

} // namespace demo
