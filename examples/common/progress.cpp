#include "progress.hpp"

#include <cstddef>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace demo {
namespace {

constexpr std::chrono::seconds between_lines{10};

} // namespace

progress::progress(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(total), terminal_(isatty(fileno(stderr)) != 0) {}

progress::~progress() {
    if (terminal_) fmt::print(stderr, "\r{:79}\r", "");
}

void progress::add(std::int64_t done) {
    const std::int64_t now = done_.fetch_add(done, std::memory_order_relaxed) + done;
    if (total_ <= 0) return;
    const std::unique_lock lock(printing_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    terminal_ ? show_bar(now) : show_line(now);
}

void progress::show_bar(std::int64_t now) {
    const auto part = static_cast<std::int64_t>(40.0 * static_cast<double>(now) / static_cast<double>(total_));
    if (part <= bar_) return;
    bar_ = part;
    fmt::print(stderr, "\r{:<28}[{:<40}]", label_, std::string(static_cast<std::size_t>(part), '#'));
    std::fflush(stderr);
}

void progress::show_line(std::int64_t now) {
    const clock::time_point time = clock::now();
    if (time - line_ < between_lines) return;
    line_ = time;
    fmt::print(stderr, "{}: {:.0f}% after {:.0f} s\n", label_,
               100.0 * static_cast<double>(now) / static_cast<double>(total_),
               std::chrono::duration<double>(time - start_).count());
}

} // namespace demo
