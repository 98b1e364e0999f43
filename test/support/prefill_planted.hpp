// Planted data of a deployment with prefills (see planted.hpp): every token of every request has a query, so that any
// of them can be new. Planted are also the tokens on both sides of the edges that a prefill has: between context and
// new tokens, between chunks of the context, before the last chunk of the split, and those of masks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "planted.hpp"
#include "prefill_deployment.hpp"

namespace ctxpar_test {

// `q` and `tree_bits` are those of the step's rows; trees of prefills are not looked at.
struct prefill_data : planted_data {
    std::vector<std::vector<float>> queries; // of each request, [length][q_heads][key_width]

    // Of up-projected rows: keys of a head are [weights times latent | rope], values weights times latent.
    std::vector<std::vector<float>> projected_queries; // of each request, [length][q_heads][nope + rope]
    std::vector<float> key_weights;                    // [q_heads][nope][latent]
    std::vector<float> value_weights;                  // [q_heads][projected value][latent]
};

// Weights of one head times a latent vector.
inline std::vector<double> up_projected(const std::vector<float>& weights, std::int64_t head, std::int64_t width,
                                        const float* latent, std::int64_t latent_width) {
    std::vector<double> result;
    for (std::int64_t x = 0; x < width; ++x) {
        const float* const row = weights.data() + (head * width + x) * latent_width;
        double sum = 0.0;
        for (std::int64_t l = 0; l < latent_width; ++l)
            sum += static_cast<double>(row[l]) * static_cast<double>(latent[l]);
        result.push_back(sum);
    }
    return result;
}

namespace detail {

// Tokens at the edges that only prefills have.
inline std::set<std::int64_t> prefill_edges(const prefill_deployment& d, const new_tokens& each) {
    std::set<std::int64_t> tokens;
    const auto both_sides = [&](std::int64_t token) { tokens.insert({token - 1, token}); };
    const std::int64_t round = d.sizes.dcp * d.interleave;
    both_sides(each.computed);
    both_sides(std::max<std::int64_t>(1, d.context_rows / round) * round);
    both_sides(each.computed + chunks_of(each.tokens, d.sizes.pcp, d.split).back().first);
    if (d.mask.window > 0) both_sides(each.computed + 1 - d.mask.window);
    if (d.mask.chunk > 0) both_sides(each.computed / d.mask.chunk * d.mask.chunk);
    return tokens;
}

inline planted_sequence draw_prefill_sequence(const prefill_deployment& d, const new_tokens& each,
                                              const std::vector<double>& directions, random_numbers& random) {
    const std::int64_t length = each.computed + each.tokens, group = d.q_heads / d.kv_heads;
    const request last_rows{length, std::min<std::int64_t>(each.tokens, 2)};
    planted_sequence sequence = draw_sequence(d, last_rows, directions, random);
    std::vector<std::int64_t> all = sequence.planted;
    const double score = std::log(static_cast<double>(length) + 1.0) + 1.5;
    for (const std::int64_t token : prefill_edges(d, each)) {
        if (token < 0 || token >= length || std::find(all.begin(), all.end(), token) != all.end()) continue;
        const auto turn = static_cast<std::int64_t>(all.size());
        const std::int64_t cell = token * d.kv_heads + turn % d.kv_heads;
        const std::int64_t head = turn % d.kv_heads * group + turn / d.kv_heads % group;
        plant_key(d, directions.data() + head * d.key_width, score, random, sequence.k.data() + cell * d.key_width);
        all.push_back(token);
    }
    std::sort(all.begin(), all.end());
    sequence.planted = all;
    return sequence;
}

inline std::vector<float> draw_weights(std::int64_t rows, std::int64_t columns, double deviation,
                                       random_numbers& random) {
    std::vector<float> weights;
    for (std::int64_t i = 0; i < rows * columns; ++i)
        weights.push_back(static_cast<float>(deviation * random.normal()));
    return weights;
}

// A query before absorption, [q_heads][nope + rope], as the query of latent rows that gives the same scores.
inline std::vector<double> absorbed(const prefill_deployment& d, const prefill_data& data,
                                    const std::vector<double>& query) {
    const std::int64_t latent = d.value_width, wide = d.projected_key_width();
    std::vector<double> result;
    for (std::int64_t head = 0; head < d.q_heads; ++head) {
        for (std::int64_t l = 0; l < latent; ++l) {
            double sum = 0.0;
            for (std::int64_t x = 0; x < d.nope_width; ++x)
                sum += query[static_cast<std::size_t>(head * wide + x)] *
                       static_cast<double>(
                           data.key_weights[static_cast<std::size_t>((head * d.nope_width + x) * latent + l)]);
            result.push_back(sum);
        }
        for (std::int64_t x = d.nope_width; x < wide; ++x)
            result.push_back(query[static_cast<std::size_t>(head * wide + x)]);
    }
    return result;
}

inline void append_rounded(const number_format& format, const std::vector<double>& values, std::vector<float>& to) {
    for (const double x : values) to.push_back(static_cast<float>(rounded_to(format, x)));
}

// The queries of one request, all of them close to the directions of their heads.
inline void draw_prefill_queries(const prefill_deployment& d, std::int64_t length, const std::vector<double>& base,
                                 random_numbers& random, prefill_data& data) {
    data.queries.emplace_back();
    data.projected_queries.emplace_back();
    for (std::int64_t token = 0; token < length; ++token) {
        std::vector<double> query = base;
        for (double& x : query) x = rounded_to(format_of(d.element), x + 0.25 * random.normal());
        if (d.projects()) append_rounded(format_of(d.element), query, data.projected_queries.back());
        append_rounded(format_of(d.element), d.projects() ? absorbed(d, data, query) : query, data.queries.back());
    }
}

} // namespace detail

inline prefill_data plant(const prefill_deployment& d) {
    random_numbers random(d.seed);
    prefill_data data;
    deployment widths = d; // of the queries that are drawn
    if (d.projects()) {
        widths.key_width = d.projected_key_width();
        const double each = 1.0 / std::sqrt(static_cast<double>(d.nope_width));
        data.key_weights = detail::draw_weights(d.q_heads * d.nope_width, d.value_width, each, random);
        data.value_weights = detail::draw_weights(d.q_heads * d.projected_value_width, d.value_width, 0.3, random);
    }
    const std::vector<double> base = detail::draw_directions(widths, random);
    const std::vector<double> directions = d.projects() ? detail::absorbed(d, data, base) : base;
    for (const new_tokens& each : d.batch) {
        const std::int64_t length = each.computed + each.tokens;
        detail::draw_prefill_queries(d, length, base, random, data);
        data.sequences.push_back(detail::draw_prefill_sequence(d, each, directions, random));
        data.q.insert(data.q.end(), data.queries.back().begin() + each.computed * d.q_heads * d.key_width,
                      data.queries.back().end());
        if (d.tree && each.decodes) {
            detail::draw_tree({length, each.tokens}, random, data.tree_bits);
        } else {
            data.tree_bits.resize(data.tree_bits.size() + static_cast<std::size_t>(each.tokens), 0);
        }
    }
    for (std::int64_t head = 0; head < d.q_heads && d.sinks; ++head)
        data.sinks.push_back(static_cast<float>(std::log(static_cast<double>(d.longest())) + 1.5 + random.normal()));
    for (std::int64_t i = 0; i < 2 * d.kv_heads; ++i)
        data.head_scales.push_back(0.02F + 0.01F * static_cast<float>(random.below(5)));
    return data;
}

} // namespace ctxpar_test
