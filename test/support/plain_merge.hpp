// The merge of partial softmax states in double, from its definition, and the examples every form of merge must give.
// Shares nothing with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace plain {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

enum class base { e, two };

inline double exp_of(base b, double x) {
    return b == base::e ? std::exp(x) : std::exp2(x);
}
inline double log_of(base b, double x) {
    return b == base::e ? std::log(x) : std::log2(x);
}

// One partial state of one row and head. `empty` says that its length is 0.
struct part {
    std::vector<double> out;
    double lse = -infinity;
    bool empty = false;
};

struct merged {
    std::vector<double> out;
    double lse = -infinity;
};

// O = sum_i exp(LSE_i) O_i / sum_i exp(LSE_i), LSE = log sum_i exp(LSE_i), over the parts that are not empty; a sink is
// one more term of the denominator. An LSE that is NaN or +inf makes everything NaN.
inline merged merge(const std::vector<part>& parts, std::size_t width, base b = base::e,
                    std::optional<double> sink = std::nullopt) {
    const auto counts = [](const part& p) { return !p.empty && p.lse != -infinity; };
    merged result{std::vector<double>(width, 0.0)};
    double largest = sink.value_or(-infinity);
    bool broken = sink && (std::isnan(*sink) || *sink == infinity);
    for (const part& p : parts) {
        if (!counts(p)) continue;
        broken = broken || std::isnan(p.lse) || p.lse == infinity;
        largest = std::max(largest, p.lse);
    }
    if (broken) return {std::vector<double>(width, nan), nan};
    if (largest == -infinity) return result;
    double sum = sink ? exp_of(b, *sink - largest) : 0.0;
    for (const part& p : parts)
        if (counts(p)) sum += exp_of(b, p.lse - largest);
    for (const part& p : parts) {
        if (!counts(p)) continue;
        for (std::size_t d = 0; d < width; ++d) result.out[d] += exp_of(b, p.lse - largest) / sum * p.out[d];
    }
    result.lse = largest + log_of(b, sum);
    return result;
}

// |value - expected| <= bound, and the same kind of non-finite number where `expected` is one.
inline bool near(double value, double expected, double bound) {
    if (std::isnan(expected)) return std::isnan(value);
    if (std::isinf(expected)) return value == expected;
    return std::fabs(value - expected) <= bound;
}

// What an fp32 LSE owes: 2e-6, or two units in its last place.
inline double lse_bound(double lse) {
    if (!std::isfinite(lse) || lse == 0.0) return 2e-6;
    return std::max(2e-6, 2 * std::ldexp(1.0, std::ilogb(lse) - 23));
}
inline bool near_lse(double value, double expected) {
    return near(value, expected, lse_bound(expected));
}

// ||value - expected|| / ||expected||; infinite where one is NaN and the other not, so that no NaN is passed over.
class relative_error {
public:
    void add(double value, double expected) {
        if (std::isnan(value) != std::isnan(expected)) mixed_ = true;
        if (std::isnan(expected) || std::isnan(value)) return;
        difference_ += (value - expected) * (value - expected);
        size_ += expected * expected;
    }
    double value() const {
        if (mixed_ || std::isnan(difference_)) return infinity;
        return difference_ == 0.0 ? 0.0 : std::sqrt(difference_ / size_);
    }

private:
    double difference_ = 0;
    double size_ = 0;
    bool mixed_ = false;
};

// An example: partial states, and what they merge to.
struct example {
    std::string name;
    base b = base::e;
    std::vector<double> lse;
    std::vector<std::vector<double>> out;
    std::vector<std::int64_t> lengths; // none: no part is empty by its length
    std::optional<double> sink;
    std::vector<double> merged_out;
    double merged_lse = 0;

    std::size_t width() const { return merged_out.size(); }
    bool empty(std::size_t i) const { return !lengths.empty() && lengths[i] == 0; }
    std::vector<part> parts() const {
        std::vector<part> list;
        for (std::size_t i = 0; i < lse.size(); ++i) list.push_back({out[i], lse[i], empty(i)});
        return list;
    }
};

namespace detail {

inline const double ln2 = std::log(2.0);
inline const double ln3 = std::log(3.0);
inline const double ln8 = std::log(8.0);

// Partial states in both bases, with and without lengths and sinks.
inline void add_general(std::vector<example>& all) {
    const double inf = infinity;
    all.push_back({"equal", base::e, {0, 0}, {{1, 2, 3, 4}, {5, 6, 7, 8}}, {}, {}, {3, 4, 5, 6}, 0.693147181});
    all.push_back({"equal, base 2", base::two, {0, 0}, {{1, 2, 3, 4}, {5, 6, 7, 8}}, {}, {}, {3, 4, 5, 6}, 1});
    all.push_back({"one far below", base::e, {-100, 0}, {{0, 0}, {1, 1}}, {}, {}, {1, 1}, 0});
    all.push_back({"1 and 2", base::e, {1, 2}, {{2, 4}, {6, 8}}, {}, {}, {4.92423431, 6.92423431}, 2.31326169});
    all.push_back(
        {"1 and 2, base 2", base::two, {1, 2}, {{2, 4}, {6, 8}}, {}, {}, {4.66666667, 6.66666667}, 2.5849625});
    const std::vector<double> four{.3, -1.7, -inf, 2.25};
    const std::vector<std::vector<double>> outs{{1, -1}, {2, .5}, {nan, nan}, {-3, 4}};
    all.push_back({"four", base::e, four, outs, {}, {}, {-2.4271603, 3.32953722}, 2.39973705});
    all.push_back({"four, base 2", base::two, four, outs, {}, {}, {-1.97335521, 2.85113559}, 2.65438031});
    all.push_back(
        {"weights 1 2 5", base::e, {0, 0.693147181, 1.609437912}, {{1}, {10}, {100}}, {}, {}, {65.125}, 2.07944154});
    all.push_back({"2 and 8", base::e, {ln2, ln8}, {{0}, {10}}, {}, {}, {8}, 2.302585});
    all.push_back({"the same numbers, base 2", base::two, {ln2, ln8}, {{0}, {10}}, {}, {}, {7.233032}, 2.546769});
    all.push_back({"1 and 3, base 2", base::two, {1, 3}, {{0}, {10}}, {}, {}, {8}, 3.321928});
    all.push_back({"1 and 3", base::e, {1, 3}, {{0}, {10}}, {}, {}, {8.807971}, 3.126928});
    all.push_back({"a prefix in two steps",
                   base::e,
                   {ln2 + std::log(5.0), ln2 + std::log(5.0)},
                   {{8}, {4}},
                   {},
                   {},
                   {6},
                   2.995732});
    all.push_back(
        {"four shards", base::e, {0.693147, 1.098612, 1.386294, 0}, {{1}, {2}, {3}, {4}}, {}, {}, {2.4}, 2.302585});
}

// Parts without keys, and LSEs that are no numbers.
inline void add_empty_and_broken(std::vector<example>& all) {
    const double inf = infinity;
    all.push_back({"-inf", base::e, {-inf, 0}, {{nan}, {3}}, {}, {}, {3}, 0});
    all.push_back({"all -inf", base::e, {-inf, -inf}, {{nan}, {5}}, {}, {}, {0}, -inf});
    all.push_back({"three -inf", base::e, {-inf, -inf, -inf}, {{nan}, {nan}, {nan}}, {}, {}, {0}, -inf});
    all.push_back({"NaN", base::e, {nan, 0}, {{nan}, {3}}, {}, {}, {nan}, nan});
    all.push_back({"+inf", base::e, {inf, 0}, {{nan}, {3}}, {}, {}, {nan}, nan});
    all.push_back({"+inf of length 0", base::e, {inf, 0}, {{nan}, {3}}, {0, 4}, {}, {3}, 0});
    all.push_back({"all of length 0", base::e, {nan, inf}, {{nan}, {3}}, {0, 0}, {}, {0}, -inf});
    all.push_back({"a length of 0", base::e, {ln2, ln2, 0}, {{5}, {7}, {0}}, {2, 2, 0}, {}, {6}, 1.386294});
    all.push_back({"no lengths", base::e, {ln2, ln2, 0}, {{5}, {7}, {0}}, {}, {}, {4.8}, 1.609437912});
    all.push_back({"one in the middle", base::e, {0, -inf, ln3}, {{1}, {2}, {3}}, {}, {}, {2.5}, 1.386294});
    all.push_back({"+inf is empty", base::e, {0.7, inf}, {{3}, {99}}, {2, 0}, {}, {3}, 0.7});
    all.push_back({"+inf is live", base::e, {0.7, inf}, {{3}, {99}}, {2, 1}, {}, {nan}, nan});
    all.push_back({"+inf without lengths", base::e, {0.7, inf}, {{3}, {99}}, {}, {}, {nan}, nan});
    all.push_back({"NaN is empty", base::e, {0.7, nan}, {{3}, {99}}, {2, 0}, {}, {3}, 0.7});
    all.push_back({"NaN is live", base::e, {0.7, nan}, {{3}, {99}}, {2, 1}, {}, {nan}, nan});
    all.push_back({"an LSE that an empty part left", base::e, {1, 12.3}, {{5}, {777}}, {2, 0}, {}, {5}, 1});
    all.push_back({"a NaN without weight", base::e, {0, -inf}, {{2}, {nan}}, {}, {}, {2}, 0});
    all.push_back({"a NaN with weight", base::e, {0, 0}, {{2}, {nan}}, {}, {}, {nan}, 0.693147});
}

// Large LSEs and sinks.
inline void add_large_and_sinks(std::vector<example>& all) {
    const double inf = infinity;
    all.push_back({"1000", base::e, {1000, 1001}, {{1}, {2}}, {}, {}, {1.73105858}, 1001.31326});
    all.push_back({"-1000", base::e, {-1000, -999}, {{1}, {2}}, {}, {}, {1.73105858}, -998.686738});
    all.push_back({"0 and 1000", base::e, {0, 1000}, {{1}, {3}}, {}, {}, {3}, 1000});
    all.push_back({"1000 twice", base::e, {1000, 1000}, {{1}, {3}}, {}, {}, {2}, 1000.693147});
    all.push_back({"-60000 twice", base::e, {-60000, -60000}, {{1}, {3}}, {}, {}, {2}, -59999.306853});
    all.push_back({"a sink", base::e, {1, 2}, {{2, 4}, {6, 8}}, {}, 0.5, {4.23363811, 5.95314934}, 2.46436878});
    all.push_back({"a sink, base 2", base::two, {1, 2}, {{2, 4}, {6, 8}}, {}, 1.0, {3.5, 5}, 3});
    all.push_back({"a sink of 0", base::e, {ln2, ln2}, {{2}, {4}}, {}, 0.0, {2.4}, 1.609438});
    all.push_back({"a sink of 0, base 2", base::two, {1, 1}, {{2}, {4}}, {}, 0.0, {2.4}, 2.321928});
    all.push_back({"a sink alone", base::e, {-inf, -inf}, {{nan}, {1}}, {}, 0.25, {0}, 0.25});
    all.push_back({"a sink and lengths of 0", base::e, {5, nan}, {{nan}, {1}}, {0, 0}, -3.0, {0}, -3});
    all.push_back({"a sink of -inf", base::e, {1, 2}, {{2}, {6}}, {}, -inf, {4.92423431}, 2.31326169});
    all.push_back({"a sink of -inf alone", base::e, {-inf, -inf}, {{nan}, {6}}, {}, -inf, {0}, -inf});
    all.push_back({"a NaN sink", base::e, {1, 2}, {{2}, {6}}, {}, nan, {nan}, nan});
    all.push_back({"a +inf sink", base::e, {1, 2}, {{2}, {6}}, {}, inf, {nan}, nan});
}

} // namespace detail

inline const std::vector<example>& examples() {
    static const std::vector<example> all = [] {
        std::vector<example> list;
        detail::add_general(list);
        detail::add_empty_and_broken(list);
        detail::add_large_and_sinks(list);
        return list;
    }();
    return all;
}

} // namespace plain
