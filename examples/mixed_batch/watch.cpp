#include "watch.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "common/text.hpp"

namespace demo {
namespace {

constexpr const char* line = "{:>4}  {:>4}  {:>6}  {:>10}  {:>7}  {:<41}  {}\n";

// How the rows of the step's prefills met their keys, and why.
std::string path_of(const ctxpar::path_choice& choice) {
    const std::int64_t q = choice.requests_gather_q;
    const std::int64_t kv = choice.requests_gather_kv;
    if (q + kv == 0) return "-";
    const std::string both = fmt::format("{} gather_q, {} gather_kv", q, kv);
    return fmt::format("{}: {}", kv == 0 ? "gather_q" : (q == 0 ? "gather_kv" : both), choice.reason);
}

} // namespace

void watch::spoil(step_input& step) const {
    for (std::size_t i = 0; given_.computed_short && i < step.requests.size(); ++i)
        if (step.kinds[i] == 1) --step.computed[i];
}

void watch::compare(std::int64_t layer, const std::vector<float>& got, std::int64_t rows, std::int64_t first_head) {
    error_ = std::max(error_, worst_row(right_[step_], layer, got, rows, first_head));
}

watch::finding watch::found(const step_input& in, const ctxpar::prefill_step& step,
                            const std::vector<std::int64_t>& sampled) const {
    const unsharded_step& right = right_[step_];
    finding own{error_, bytes_ == step.schedule.bytes_sent() * options::layers};
    for (std::size_t i = 0; i < sampled.size(); ++i)
        own.as_expected = own.as_expected && (!in.samples[i] || sampled[i] == right.sampled[i]);
    return own;
}

void watch::conclude(const std::vector<finding>& all, bool prints, const step_input& in,
                     const ctxpar::prefill_step& step) {
    double error = 0.0;
    for (const finding& each : all) {
        error = std::max(error, each.error);
        as_expected_ = as_expected_ && each.as_expected;
    }
    worst_ = std::max(worst_, error);
    if (prints) {
        if (step_ == 0)
            fmt::print(line, "step", "rows", "a rank", "bytes sent", "error", "prefills meet their keys", "");
        fmt::print(line, step_, in.rows(), step.rows(), grouped(bytes_), fmt::format("{:.1e}", error),
                   path_of(step.prefill_rows), in.text());
        std::fflush(stdout);
    }
    ++step_;
    bytes_ = 0;
    error_ = 0.0;
}

} // namespace demo
