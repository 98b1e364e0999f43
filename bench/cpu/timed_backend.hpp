// The CPU backend with a watch on two of its operations, so that a step can be told apart into its parts. A watch costs
// two readings of the clock.
#pragma once

#include <chrono>
#include <memory>

#include <ctxpar/backend/cpu.hpp>

namespace bench {

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct part_seconds {
    double attend = 0.0;
    double merge = 0.0; // arithmetic of the merge, without what crosses ranks
};

// Copies share what they measured, as they share their threads.
class timed_backend : public ctxpar::cpu_backend {
public:
    explicit timed_backend(const ctxpar::cpu_options& options = {})
        : ctxpar::cpu_backend(options), spent_(std::make_shared<part_seconds>()) {}

    part_seconds& spent() { return *spent_; }

    template <class Args>
    void attend(const Args& args, ctxpar::host_stream stream) {
        const double begin = seconds_now();
        ctxpar::cpu_backend::attend(args, stream);
        spent_->attend += seconds_now() - begin;
    }

    template <class Parts, class Out, class Lse>
    void merge(const Parts& parts, const Out& out, const Lse& lse_out, ctxpar::host_stream stream) {
        const double begin = seconds_now();
        ctxpar::cpu_backend::merge(parts, out, lse_out, stream);
        spent_->merge += seconds_now() - begin;
    }

private:
    std::shared_ptr<part_seconds> spent_;
};

static_assert(ctxpar::backend<timed_backend>);

} // namespace bench
