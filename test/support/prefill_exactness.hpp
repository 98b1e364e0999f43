// What a deployment with prefills must give, and how far from it the rows of all ranks are.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "exactness.hpp"
#include "prefill_planted.hpp"

namespace ctxpar_test {

// The new rows of one request over the whole model.
struct expected_rows {
    std::int64_t width = 0; // of an output
    attention_result result;
    std::vector<double> magnitude; // as in expectation; where partials are rounded
};

// What a rank returned for a step: its rows, filling included.
struct prefill_output {
    std::vector<float> out;       // [rows][heads][value_width]
    std::vector<float> lse;       // [rows][heads]
    std::vector<float> projected; // [rows][heads][projected_value_width], of up-projected rows
};

// Keys and values of one request for every query head, up-projected from what is cached, which an engine gets in the
// element type, and rounded to `type`.
struct projected_cache {
    std::vector<float> k; // [length][q_heads][nope + rope]
    std::vector<float> v; // [length][q_heads][projected value]
};

inline projected_cache project(const prefill_deployment& d, const prefill_data& data, const cached_sequence& cache,
                               std::int64_t length, scalar_type type) {
    projected_cache all;
    const std::int64_t latent = d.value_width;
    std::vector<float> row(static_cast<std::size_t>(d.key_width));
    for (std::int64_t token = 0; token < length; ++token) {
        for (std::size_t x = 0; x < row.size(); ++x) {
            const auto at = static_cast<std::size_t>(token) * row.size() + x;
            const float factor = cache.k_scale.empty() ? 1.0F : cache.k_scale[static_cast<std::size_t>(token)];
            row[x] = static_cast<float>(rounded_to(format_of(d.element), static_cast<double>(cache.k[at] * factor)));
        }
        for (std::int64_t head = 0; head < d.q_heads; ++head) {
            const auto key = up_projected(data.key_weights, head, d.nope_width, row.data(), latent);
            detail::append_rounded(format_of(type), key, all.k);
            all.k.insert(all.k.end(), row.begin() + latent, row.end());
            const auto value = up_projected(data.value_weights, head, d.projected_value_width, row.data(), latent);
            detail::append_rounded(format_of(type), value, all.v);
        }
    }
    return all;
}

// One request of a step as the reference wants it.
inline attention_problem problem_of_step(const prefill_deployment& d, const prefill_data& data,
                                         const cached_sequence& cache, const new_tokens& each, std::size_t index) {
    attention_problem ask = problem_of(d, data, cache, index);
    ask.length = each.computed + each.tokens;
    ask.rows = each.tokens;
    ask.q = data.queries[index].data() + each.computed * d.q_heads * d.key_width;
    if (!each.decodes) ask.tree = nullptr;
    return ask;
}

namespace detail {

// Up-projected, it is attention with as many KV heads as there are query heads.
inline void use_projected(const prefill_deployment& d, const prefill_data& data, const projected_cache& keys,
                          const new_tokens& each, std::size_t index, attention_problem& ask) {
    ask.kv_heads = d.q_heads;
    ask.key_width = d.projected_key_width();
    ask.value_width = d.projected_value_width;
    ask.q = data.projected_queries[index].data() + each.computed * d.q_heads * ask.key_width;
    ask.k = keys.k.data();
    ask.v = keys.v.data();
    ask.k_scale = ask.v_scale = nullptr;
}

} // namespace detail

// What a step must give, request by request. Up-projected keys and values are rounded to `projected_type`.
inline std::vector<expected_rows> expected_step(const prefill_deployment& d, const prefill_data& data,
                                                const new_batch& batch, scalar_type projected_type) {
    std::vector<expected_rows> all;
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const cached_sequence cache = cached(d, data, i);
        attention_problem ask = problem_of_step(d, data, cache, batch[i], i);
        projected_cache keys;
        if (d.projects() && !batch[i].decodes) {
            keys = project(d, data, cache, ask.length, projected_type);
            detail::use_projected(d, data, keys, batch[i], i, ask);
        }
        expected_rows want;
        want.width = ask.value_width;
        want.result = attend(ask);
        if (d.partials == partial::output) detail::add_magnitude(d, ask, want.result, want.magnitude);
        all.push_back(std::move(want));
    }
    return all;
}
inline std::vector<expected_rows> expected_step(const prefill_deployment& d, const prefill_data& data,
                                                const new_batch& batch) {
    return expected_step(d, data, batch, d.element);
}

// Adds up how far rows are from what they should be.
class prefill_distance {
public:
    explicit prefill_distance(const prefill_deployment& d) : d_(d) {}

    // One output vector and its LSE; `share_rounding` is relative to the magnitudes.
    void add(const expected_rows& want, std::int64_t at, double share_rounding, const float* out, const float* lse) {
        const double natural = want.result.lse[static_cast<std::size_t>(at)];
        const double rounding = want.result.score_rounding[static_cast<std::size_t>(at)];
        if (d_.merged_lse) add_lse(natural, static_cast<double>(*lse), rounding);
        for (std::int64_t x = 0; x < want.width; ++x) {
            const auto element = static_cast<std::size_t>(at * want.width + x);
            const double right = want.result.out[element], wrong = static_cast<double>(out[x]) - right;
            const double share = want.magnitude.empty() ? 0.0 : share_rounding * want.magnitude[element];
            const double rounded = half_ulp(d_.output, right) + share;
            error_ += wrong * wrong;
            norm_ += std::max(right * right, want.result.floor[element] * want.result.floor[element]);
            roundings_ += rounded * rounded;
        }
    }

    // A row that is filling or a pad: 0, and nothing seen, be it a sink that every row sees.
    void add_empty(std::int64_t width, bool may_see_sink, const float* out, const float* lse) {
        for (std::int64_t x = 0; x < width; ++x)
            if (!(out[x] == 0.0F)) error_ = infinite;
        if (d_.merged_lse && !may_see_sink) add_lse(minus_infinity, static_cast<double>(*lse));
    }

    distance sum() const {
        distance result = lses_;
        const double allowed = exact_bound * std::sqrt(norm_) + std::sqrt(roundings_);
        result.out = error_ == 0.0 ? 0.0 : std::sqrt(error_) / allowed;
        if (std::isnan(result.out)) result.out = infinite;
        return result;
    }

    double relative_error() const { return std::sqrt(error_ / norm_); }

private:
    static constexpr double infinite = std::numeric_limits<double>::infinity();

    void add_lse(double natural, double got, double rounding = 0.0) {
        lses_.lse = std::max(lses_.lse, detail::lse_distance(natural, got, d_.lse));
        lses_.lse_of_scores = std::max(lses_.lse_of_scores, detail::lse_distance(natural, got, d_.lse, rounding));
    }

    const prefill_deployment& d_;
    double error_ = 0.0, norm_ = 0.0, roundings_ = 0.0;
    distance lses_;
};

// How far the outputs of all ranks are from the reference: own rows, decode rows on every PCP rank, and filling.
inline prefill_distance distances(const prefill_deployment& d, const new_batch& batch,
                                  const std::vector<expected_rows>& want, const std::vector<prefill_output>& got) {
    prefill_distance sum(d);
    const double rounding = part_roundings(d) * half_ulp(d.element, 1.0);
    for (std::size_t rank = 0; rank < got.size(); ++rank) {
        const auto number = static_cast<std::int64_t>(rank);
        const heads_held held = facts_of(d, number).own;
        const std::vector<own_row> rows = filled_rows(d, batch, number / d.sizes.tp);
        for (std::size_t row = 0; row < rows.size(); ++row) {
            const bool filling = rows[row].request < 0;
            const auto request = static_cast<std::size_t>(filling ? 0 : rows[row].request);
            const bool decoded = !filling && batch[request].decodes;
            const bool projected = d.projects() && !decoded;
            const std::int64_t width = projected ? d.projected_value_width : d.value_width;
            const bool keys_travel =
                d.dcp() > 1 && (decoded ? d.decode_rows : d.prefill_rows) == prefill_path::gather_kv;
            for (std::int64_t head = 0; head < held.count; ++head) {
                const auto state = static_cast<std::int64_t>(row) * held.count + head;
                const float* out = (projected ? got[rank].projected : got[rank].out).data() + state * width;
                const float* lse = d.merged_lse ? got[rank].lse.data() + state : nullptr;
                if (rows[row].real) {
                    sum.add(want[request], rows[row].token * d.q_heads + held.first + head,
                            keys_travel ? 0.0 : rounding, out, lse);
                } else {
                    sum.add_empty(width, d.sinks && !filling, out, lse);
                }
            }
        }
    }
    return sum;
}

} // namespace ctxpar_test
