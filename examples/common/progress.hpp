// How far long work is, on standard error: a bar on a terminal, elsewhere a line now and then.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace demo {

// Counts work of any number of threads.
class progress {
public:
    progress(std::string label, std::int64_t total);
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;
    ~progress();

    void add(std::int64_t done);

private:
    using clock = std::chrono::steady_clock;

    void show_bar(std::int64_t now);
    void show_line(std::int64_t now);

    std::string label_;
    std::int64_t total_;
    bool terminal_;
    std::atomic<std::int64_t> done_{0};
    std::mutex printing_;
    std::int64_t bar_ = -1; // its length as it was printed last
    clock::time_point start_ = clock::now();
    clock::time_point line_ = start_; // when the last line was printed
};

} // namespace demo
