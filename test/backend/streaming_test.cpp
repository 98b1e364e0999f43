// The kernels that read rows where they lie, by themselves: plain arrays against sums in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <support/instruction_sets.hpp>

#include <ctxpar/backend/cpu/streaming.hpp>

using namespace ctxpar;
using ctxpar_test::instruction_sets;

namespace {

// Rows at places in any order, and the pointers that a kernel takes.
template <class T>
struct some_rows {
    some_rows(std::int64_t count, std::int64_t width, std::mt19937& random) : memory(offset + 40 * width) {
        std::normal_distribution<float> normal;
        for (T& x : memory) x = static_cast<T>(normal(random));
        for (std::int64_t t = 0; t < cpu::stream_keys; ++t)
            pointers[t] = memory.data() + (std::min(t, count - 1) * 7 % 40) * width;
        all = {pointers, offset, count, width};
    }
    double at(std::int64_t t, std::int64_t d) const {
        return static_cast<double>(static_cast<float>(pointers[t][offset + d]));
    }

    static constexpr std::int64_t offset = 24;
    std::vector<T> memory;
    const T* pointers[cpu::stream_keys];
    cpu::stream_rows<T> all;
};

// Element d of pair i, as kernels want it in chunks of 2 x lanes.
template <class T>
std::size_t place(std::int64_t lanes, std::int64_t pairs, std::int64_t i, std::int64_t d) {
    const std::int64_t chunk = 2 * lanes;
    return static_cast<std::size_t>(d / chunk * pairs * chunk + i * chunk + cpu::chunk_place<T>(lanes, d % chunk));
}

template <class T>
void check_scores(cpu::isa set, std::int64_t pairs, std::int64_t width, std::int64_t count) {
    std::mt19937 random(static_cast<unsigned>(pairs * 1000 + width + count));
    std::normal_distribution<float> normal;
    const auto kernels = cpu::stream_kernels_of<T>(set);
    const some_rows<T> keys(count, width, random);
    std::vector<float> q(static_cast<std::size_t>(pairs * width));
    for (float& x : q) x = normal(random);
    std::vector<float> scores(static_cast<std::size_t>(cpu::stream_keys * pairs), 9e9F);
    cpu::stream_ahead nothing;
    kernels.score(pairs)(keys.all, q.data(), scores.data(), nothing);
    double apart = 0;
    for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t i = 0; i < pairs; ++i) {
            double wanted = 0;
            for (std::int64_t d = 0; d < width; ++d)
                wanted += static_cast<double>(q[place<T>(kernels.query_lanes, pairs, i, d)]) * keys.at(t, d);
            apart = std::max(apart,
                             std::fabs(static_cast<double>(scores[static_cast<std::size_t>(t * pairs + i)]) - wanted));
        }
    }
    CHECK(apart <= 4e-6 * std::sqrt(static_cast<double>(width) / 32));
}

template <class T>
void check_values(cpu::isa set, std::int64_t pairs, std::int64_t width, std::int64_t count) {
    std::mt19937 random(static_cast<unsigned>(pairs * 2000 + width + count));
    std::uniform_real_distribution<float> weight(0.0F, 1.0F);
    const auto kernels = cpu::stream_kernels_of<T>(set);
    const some_rows<T> values(count, width, random);
    std::vector<float> p(static_cast<std::size_t>(cpu::stream_keys * pairs), 9e9F);
    for (std::int64_t at = 0; at < count * pairs; ++at) p[static_cast<std::size_t>(at)] = weight(random);
    std::vector<float> keep(static_cast<std::size_t>(pairs));
    for (float& x : keep) x = weight(random);
    std::vector<float> out(static_cast<std::size_t>(pairs * width), 2.0F);
    cpu::stream_ahead nothing;
    kernels.add(pairs)(values.all, p.data(), keep.data(), out.data(), nothing);
    double apart = 0;
    for (std::int64_t i = 0; i < pairs; ++i) {
        for (std::int64_t d = 0; d < width; ++d) {
            double wanted = 2.0 * static_cast<double>(keep[static_cast<std::size_t>(i)]);
            for (std::int64_t t = 0; t < count; ++t)
                wanted += static_cast<double>(p[static_cast<std::size_t>(t * pairs + i)]) * values.at(t, d);
            apart = std::max(apart, std::fabs(static_cast<double>(out[place<T>(kernels.lanes, pairs, i, d)]) - wanted));
        }
    }
    CHECK(apart <= 1e-5);
}

template <class T>
void check_rows() {
    for (const cpu::isa set : instruction_sets()) {
        CAPTURE(std::string(name_of(set)));
        for (const std::int64_t pairs : {2, 4, 8}) {
            for (const std::int64_t width : {32, 64, 96, 128, 160, 256, 576}) {
                for (const std::int64_t count : {1, 2, 7, 31, 32}) {
                    CAPTURE(pairs);
                    CAPTURE(width);
                    CAPTURE(count);
                    check_scores<T>(set, pairs, width, count);
                    check_values<T>(set, pairs, width, count);
                }
            }
        }
    }
}

} // namespace

TEST_CASE("Scores and weighted values of rows of any type are those in double") {
    check_rows<float>();
    check_rows<bf16>();
    check_rows<f16>();
}

TEST_CASE("A softmax over keys that come in several steps is that over all of them") {
    for (const cpu::isa set : instruction_sets()) {
        CAPTURE(std::string(name_of(set)));
        const auto kernels = cpu::stream_kernels_of<float>(set);
        for (const std::int64_t pairs : {2, 4, 8}) {
            CAPTURE(pairs);
            std::mt19937 random(11);
            std::normal_distribution<float> normal;
            cpu::stream_state state = cpu::stream_state::none();
            std::vector<double> total(static_cast<std::size_t>(pairs), 0.0); // relative to exp(0)
            std::vector<double> carried(static_cast<std::size_t>(pairs), 0.0);
            const float factor = 0.5F;
            for (int step = 0; step < 20; ++step) {
                std::vector<float> p(static_cast<std::size_t>(cpu::stream_keys * pairs));
                for (float& x : p) x = 3.0F * normal(random) + static_cast<float>(step);
                if (step == 0) std::fill(p.begin(), p.end(), -std::numeric_limits<float>::infinity()); // nothing yet
                for (std::size_t at = 0; at < p.size(); ++at)
                    total[at % total.size()] += std::exp(static_cast<double>(p[at] * factor));
                float keep[cpu::stream_pairs];
                kernels.weigh(pairs)(p.data(), cpu::stream_keys, factor, state, keep);
                for (std::size_t i = 0; i < total.size(); ++i) carried[i] *= static_cast<double>(keep[i]);
                for (std::size_t at = 0; at < p.size(); ++at) {
                    CHECK((p[at] >= 0.0F && p[at] <= 1.0F));
                    carried[at % total.size()] += static_cast<double>(p[at]);
                }
            }
            for (std::size_t i = 0; i < total.size(); ++i) {
                const double lse_value =
                    static_cast<double>(state.max[i]) + std::log(static_cast<double>(state.sum[i]));
                CHECK(std::fabs(lse_value - std::log(total[i])) <= 3e-6);
                CHECK(carried[i] == doctest::Approx(static_cast<double>(state.sum[i])).epsilon(1e-5));
            }
        }
    }
}
