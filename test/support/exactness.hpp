// What a deployment must give, and how far from it a result may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "planted.hpp"

namespace ctxpar_test {

// The whole model's output, rows of all requests one after another, pads last.
struct expectation {
    std::int64_t rows = 0;
    std::vector<double> out;            // [rows][q_heads][value_width]
    std::vector<double> lse;            // [rows][q_heads], natural
    std::vector<double> score_rounding; // [rows][q_heads] as of the reference
    std::vector<double> floor;          // [rows][q_heads][value_width] as of the reference; empty: 0
    std::vector<double>
        magnitude; // [rows][q_heads][value_width] sum over shards of |share|; where partials are rounded
};

// What a rank returned, as fp32 numbers, which hold all types exactly.
struct rank_output {
    std::vector<float> out; // [rows][heads held][value_width]
    std::vector<float> lse; // [rows][heads held]
};

// Keys and values as the cache holds them, and the factors of its scales.
struct cached_sequence {
    std::vector<float> k, v;             // stored
    std::vector<float> k_scale, v_scale; // [length][kv_heads]; empty: 1
};

namespace detail {

// The factor of one cell of a plane, cells being (token, head).
inline float factor_of(const deployment& d, const planted_data& data, bool is_value, std::int64_t cell,
                       const std::vector<float>& plane, std::int64_t width) {
    const std::int64_t head = cell % d.kv_heads;
    const bool of_values = is_value && !d.is_mla;
    if (d.scales == scale_choice::none) return 1.0F;
    if (d.scales == scale_choice::tensor) return of_values ? 0.03F : 0.05F;
    if (d.scales == scale_choice::head)
        return data.head_scales[static_cast<std::size_t>((of_values ? d.kv_heads : 0) + head)];
    // Types with the range of fp32 need no factor.
    const number_format& format = format_of(d.kv_element);
    if (format.exponent_bits == 8) return 1.0F;
    // Of the cell, or of all heads that lie on the same rank.
    const std::int64_t held = d.scales == scale_choice::token ? 1 : std::max<std::int64_t>(1, d.kv_heads / d.sizes.tp);
    const std::int64_t first = cell / held * held;
    float largest = 0.0F;
    for (std::int64_t i = first * width; i < (first + held) * width; ++i)
        largest = std::max(largest, std::fabs(plane[static_cast<std::size_t>(i)]));
    return largest > 0.0F ? largest / static_cast<float>(value_of(format, format.largest())) : 1.0F;
}

inline void cache_plane(const deployment& d, const planted_data& data, bool is_value, std::int64_t width,
                        const std::vector<float>& from, std::vector<float>& stored, std::vector<float>& factors) {
    stored = from;
    if (d.scales == scale_choice::none && d.kv_element == d.element) return;
    factors.resize(from.size() / static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < factors.size(); ++i) {
        const auto cell = static_cast<std::int64_t>(i);
        factors[i] = factor_of(d, data, is_value, cell, from, width);
        for (float* x = stored.data() + cell * width; x < stored.data() + (cell + 1) * width; ++x)
            *x = static_cast<float>(rounded_to(format_of(d.kv_element), *x / factors[i]));
    }
}

} // namespace detail

inline cached_sequence cached(const deployment& d, const planted_data& data, std::size_t index) {
    cached_sequence cache;
    detail::cache_plane(d, data, false, d.key_width, data.sequences[index].k, cache.k, cache.k_scale);
    if (!d.is_mla) detail::cache_plane(d, data, true, d.value_width, data.sequences[index].v, cache.v, cache.v_scale);
    return cache;
}

// One request as the reference wants it; refers to `data` and `cache`.
inline attention_problem problem_of(const deployment& d, const planted_data& data, const cached_sequence& cache,
                                    std::size_t index) {
    std::int64_t first_row = 0;
    for (std::size_t i = 0; i < index; ++i) first_row += d.requests[i].rows;
    attention_problem ask;
    ask.length = d.requests[index].length;
    ask.rows = d.requests[index].rows;
    ask.q_heads = d.q_heads;
    ask.kv_heads = d.kv_heads;
    ask.key_width = d.key_width;
    ask.value_width = d.value_width;
    ask.q = data.q.data() + first_row * d.q_heads * d.key_width;
    ask.k = cache.k.data();
    ask.v = d.is_mla ? nullptr : cache.v.data();
    ask.k_scale = cache.k_scale.empty() ? nullptr : cache.k_scale.data();
    ask.v_scale = cache.v_scale.empty() ? nullptr : cache.v_scale.data();
    ask.scale = softmax_scale_of(d);
    ask.soft_cap = d.soft_cap;
    ask.sinks = d.sinks ? data.sinks.data() : nullptr;
    ask.window = d.mask.window;
    ask.chunk = d.mask.chunk;
    ask.prefix = d.mask.prefix;
    ask.tree = d.tree ? data.tree_bits.data() + first_row : nullptr;
    return ask;
}

namespace detail {

// sum over shards of |their share of the output|: what roundings of partials are relative to.
inline void add_magnitude(const deployment& d, attention_problem ask, const attention_result& whole,
                          std::vector<double>& magnitude) {
    const std::size_t start = magnitude.size();
    magnitude.resize(start + whole.out.size());
    ask.sinks = nullptr;
    for (std::int64_t shard = 0; shard < d.dcp(); ++shard) {
        const attention_result part = attend(ask, [&](std::int64_t token) { return d.owner(token) == shard; });
        for (std::size_t i = 0; i < part.out.size(); ++i) {
            const std::size_t at = i / static_cast<std::size_t>(d.value_width);
            if (part.lse[at] != minus_infinity)
                magnitude[start + i] += std::fabs(part.out[i]) * std::exp(part.lse[at] - whole.lse[at]);
        }
    }
}

// Whether something narrow crosses ranks, or is added by the caller.
inline bool rounds_shares(const deployment& d) {
    const bool narrow_sums = d.placement == output_placement::partial_sums && d.output != scalar_type::f32;
    return d.partials == partial::output || narrow_sums;
}

} // namespace detail

inline expectation expected(const deployment& d, const planted_data& data) {
    expectation want;
    want.rows = d.rows() + d.pad_rows;
    for (std::size_t i = 0; i < d.requests.size(); ++i) {
        const cached_sequence cache = cached(d, data, i);
        const attention_problem ask = problem_of(d, data, cache, i);
        const attention_result result = attend(ask);
        want.out.insert(want.out.end(), result.out.begin(), result.out.end());
        want.lse.insert(want.lse.end(), result.lse.begin(), result.lse.end());
        want.floor.insert(want.floor.end(), result.floor.begin(), result.floor.end());
        want.score_rounding.insert(want.score_rounding.end(), result.score_rounding.begin(),
                                   result.score_rounding.end());
        if (detail::rounds_shares(d)) detail::add_magnitude(d, ask, result, want.magnitude);
    }
    const auto cells = static_cast<std::size_t>(want.rows * d.q_heads);
    want.out.resize(cells * static_cast<std::size_t>(d.value_width), 0.0);
    want.floor.resize(want.out.size(), 0.0);
    want.lse.resize(cells, minus_infinity);
    want.score_rounding.resize(cells, 0.0);
    want.magnitude.resize(detail::rounds_shares(d) ? want.out.size() : 0, 0.0);
    return want;
}

// Distances as shares of what is allowed: a result is right where both are at most 1.
struct distance {
    double out = 0.0;           // of all outputs together
    double lse = 0.0;           // the largest of all LSEs
    double lse_of_scores = 0.0; // the same, where the rounding of scores is allowed beside
    bool right() const { return out <= 1.0 && lse <= 1.0; }
};

// fp32 output of fp32 probabilities is within 2e-6 of the reference, relative L2 over the whole output. Every rounding
// to a narrow type on the way adds at most half a unit in the last place of what is rounded: of the result once where
// the output is narrow; of each shard's share once with A2A, twice with AG+RS (as attended, as scaled), and with AG+AR
// once more, where the sum is sent back. The last one is of the sum, which is no larger than the shares together.
// Partial sums are shares until the caller adds them: rounded as attended and as scaled, to the type of partials, and
// once where they are narrow for the first time in the output.
inline constexpr double exact_bound = 2e-6;

// Half a unit in the last place of a value in a narrow type; 0 for fp32, whose roundings are part of the bound.
inline double half_ulp(scalar_type type, double value) {
    const number_format& format = format_of(type);
    if (type == scalar_type::f32 || value == 0.0) return 0.0;
    return std::ldexp(1.0, std::max(std::ilogb(value), 1 - format.bias()) - format.mantissa_bits - 1);
}

// The roundings of a shard's share on its way to the result. One rank merges where there is something to merge with, or
// a map that writes partials.
inline double part_roundings(const deployment& d) {
    if (d.partials == partial::fp32) return detail::rounds_shares(d) ? 1.0 : 0.0;
    if (d.dcp() == 1) return d.sinks || d.mapped_width > 0 ? 1.0 : 0.0;
    return d.merge == merge_kind::a2a ? 1.0 : (d.merge == merge_kind::ag_ar ? 3.0 : 2.0);
}

inline double ulp_of(double value) {
    const auto single = static_cast<float>(std::fabs(value));
    return std::nextafter(single, std::numeric_limits<float>::infinity()) - single;
}

// An LSE is within 2e-6 or two units in its last place; in base 2 as many times log2 e, and one unit for converting it.
// Beside that, where scores are large, what fp32 may lose in them. The first bound alone holds for all but about one
// in 100,000 LSEs of 10.
inline double lse_bound(double natural, lse_base base, double score_rounding = 0.0) {
    const double bound = std::max(2e-6, 2.0 * ulp_of(natural)) + score_rounding;
    return base == lse_base::natural ? bound : (bound / std::log(2.0) + ulp_of(natural / std::log(2.0)));
}

namespace detail {

// `natural` is what the LSE should be, `got` what it is, in `base`.
inline double lse_distance(double natural, double got, lse_base base, double score_rounding = 0.0) {
    if (natural == minus_infinity) return got == minus_infinity ? 0.0 : std::numeric_limits<double>::infinity();
    const double want = base == lse_base::natural ? natural : natural / std::log(2.0);
    const double error = std::fabs(got - want) / lse_bound(natural, base, score_rounding);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

} // namespace detail

namespace detail {

// What the ranks return, shares added over each dcp group as the sum behind the output projection adds them.
inline std::vector<std::vector<double>> added_outputs(const deployment& d, const std::vector<rank_output>& got) {
    std::vector<std::vector<double>> sums;
    for (const rank_output& rank : got) sums.emplace_back(rank.out.begin(), rank.out.end());
    if (d.placement != output_placement::partial_sums) return sums;
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
        std::fill(sums[rank].begin(), sums[rank].end(), 0.0);
        for (std::size_t other = 0; other < got.size(); ++other) {
            if (facts_of(d, static_cast<std::int64_t>(other)).group !=
                facts_of(d, static_cast<std::int64_t>(rank)).group)
                continue;
            for (std::size_t i = 0; i < sums[rank].size(); ++i) sums[rank][i] += static_cast<double>(got[other].out[i]);
        }
    }
    return sums;
}

} // namespace detail

// How far all ranks' outputs together are from the reference.
inline distance distance_between(const deployment& d, const expectation& want, const std::vector<rank_output>& got) {
    const std::vector<std::vector<double>> outputs = detail::added_outputs(d, got);
    const double largest = part_roundings(d) * half_ulp(d.element, 1.0); // of a share, relative
    double error = 0.0, norm = 0.0, roundings = 0.0;
    distance result;
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
        const heads_held held = facts_of(d, static_cast<std::int64_t>(rank)).output;
        for (std::int64_t i = 0; i < want.rows * held.count; ++i) {
            const std::int64_t at = i / held.count * d.q_heads + held.first + i % held.count;
            const double lse = want.lse[static_cast<std::size_t>(at)];
            if (d.merged_lse) {
                const double got_lse = got[rank].lse[static_cast<std::size_t>(i)];
                const double rounding = want.score_rounding[static_cast<std::size_t>(at)];
                result.lse = std::max(result.lse, detail::lse_distance(lse, got_lse, d.lse));
                result.lse_of_scores =
                    std::max(result.lse_of_scores, detail::lse_distance(lse, got_lse, d.lse, rounding));
            }
            for (std::int64_t x = 0; x < d.value_width; ++x) {
                const auto element = static_cast<std::size_t>(at * d.value_width + x);
                const double right = want.out[element];
                const double wrong = outputs[rank][static_cast<std::size_t>(i * d.value_width + x)] - right;
                const double rounding =
                    half_ulp(d.output, right) + (largest > 0.0 ? largest * want.magnitude[element] : 0.0);
                error += wrong * wrong;
                const double floor = want.floor.empty() ? 0.0 : want.floor[element];
                norm += std::max(right * right, floor * floor);
                roundings += rounding * rounding;
                if (lse == minus_infinity && !(wrong == 0.0)) error = std::numeric_limits<double>::infinity();
            }
        }
    }
    const double allowed = exact_bound * std::sqrt(norm) + std::sqrt(roundings);
    result.out = error == 0.0 ? 0.0 : std::sqrt(error) / allowed;
    if (std::isnan(result.out)) result.out = std::numeric_limits<double>::infinity();
    return result;
}

} // namespace ctxpar_test
