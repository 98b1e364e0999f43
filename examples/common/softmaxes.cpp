#include "softmaxes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "wide.hpp"

namespace demo {
namespace {

constexpr std::int64_t tile = 16; // tokens that are made at once

struct token_tile {
    std::int64_t first = 0;
    std::int64_t tokens = 0;
    std::vector<double> keys;   // [tile][query_width]
    std::vector<double> values; // [tile][value_width]
    std::int64_t shard[tile] = {};
};

DEMO_INLINE double dot(const double* a, const double* b, std::int64_t count) {
    double lane[8] = {};
    std::int64_t d = 0;
    for (; d + 8 <= count; d += 8)
        for (std::int64_t i = 0; i < 8; ++i) lane[i] += a[d + i] * b[d + i];
    for (; d < count; ++d) lane[0] += a[d] * b[d];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

// Multiplies what softmax j gathered so far.
DEMO_INLINE void rescale(softmaxes& all, std::int64_t j, double factor) {
    all.sum[static_cast<std::size_t>(j)] *= factor;
    for (std::int64_t d = 0; d < all.value_width; ++d) all.outputs.data()[j * all.value_width + d] *= factor;
    for (std::int64_t s = 0; s < all.shards; ++s) all.shard_sums.data()[j * all.shards + s] *= factor;
}

DEMO_INLINE void add_tile_body(const token_tile& part, softmaxes& all) {
    for (std::int64_t j = 0; j < all.count; ++j) {
        const std::int64_t tokens = std::min(part.tokens, all.ends.data()[j] - part.first);
        double weight[tile];
        double highest = minus_infinity;
        for (std::int64_t t = 0; t < tokens; ++t) {
            weight[t] = all.scale * dot(all.queries.data() + j * all.query_width,
                                        part.keys.data() + t * all.query_width, all.query_width);
            highest = std::max(highest, weight[t]);
        }
        double& max = all.max.data()[j];
        if (highest > max) {
            rescale(all, j, max == minus_infinity ? 0.0 : std::exp(max - highest));
            max = highest;
        }
        double* output = all.outputs.data() + j * all.value_width;
        for (std::int64_t t = 0; t < tokens; ++t) {
            const double w = std::exp(weight[t] - max);
            const double* value = part.values.data() + t * all.value_width;
            all.sum.data()[j] += w;
            all.shard_sums.data()[j * all.shards + part.shard[t]] += w;
            for (std::int64_t d = 0; d < all.value_width; ++d) output[d] += w * value[d];
        }
    }
}
DEMO_WIDE void add_tile_wide(const token_tile& part, softmaxes& all) {
    add_tile_body(part, all);
}

// `value` as an fp8 e4m3 number times `scale`: 4 significant bits, the smallest step 2^-9, at most 448.
float in_fp8(float value, float scale) {
    const float magnitude = std::fabs(value / scale);
    const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(magnitude) >> 23, 127U - 6U);
    const float shift = std::bit_cast<float>((exponent + 20U) << 23) * 1.5F; // its last place is that of the result
    const float rounded = std::min((magnitude + shift) - shift, 448.0F);
    return std::copysign(rounded, value);
}

// What the cache holds of a row of numbers that are exact in bf16 and f16.
void as_cached(const problem& all, float scale, const std::vector<float>& row, double* to) {
    if (all.kv_type == ctxpar::scalar_type::e4m3) {
        for (std::size_t d = 0; d < row.size(); ++d) to[d] = static_cast<double>(in_fp8(row[d], scale)) * scale;
    } else {
        for (std::size_t d = 0; d < row.size(); ++d) to[d] = row[d];
    }
}

void make_tile(const task& work, token_tile& part, std::vector<float>& key, std::vector<float>& value) {
    const problem& all = work.all;
    for (std::int64_t t = 0; t < part.tokens; ++t) {
        const std::int64_t position = part.first + t;
        double* const key_to = part.keys.data() + t * all.query_width;
        double* const value_to = part.values.data() + t * all.value_width;
        work.data.key(work.layer, work.request, position, work.kv_head, key.data());
        as_cached(all, all.k_scale, key, key_to);
        if (all.is_mla()) {
            std::copy_n(key_to, all.value_width, value_to);
        } else {
            work.data.value(work.layer, work.request, position, work.kv_head, value.data());
            as_cached(all, all.v_scale, value, value_to);
        }
        part.shard[t] = position / all.law.interleave % all.law.ranks;
    }
}

} // namespace

void walk(const task& work, std::int64_t first, std::int64_t last, softmaxes& all, progress& bar) {
    token_tile part;
    part.keys.resize(static_cast<std::size_t>(tile * all.query_width));
    part.values.resize(static_cast<std::size_t>(tile * all.value_width));
    std::vector<float> key(static_cast<std::size_t>(all.query_width));
    std::vector<float> value(static_cast<std::size_t>(all.value_width));
    for (part.first = first; part.first < last; part.first += tile) {
        part.tokens = std::min(tile, last - part.first);
        make_tile(work, part, key, value);
        if (wide_is_there()) {
            add_tile_wide(part, all);
        } else {
            add_tile_body(part, all);
        }
        bar.add(part.tokens);
    }
}

softmaxes empty_softmaxes(const problem& all, std::int64_t count) {
    const auto times = [count](std::int64_t size) { return static_cast<std::size_t>(count * size); };
    softmaxes made;
    made.count = count;
    made.query_width = all.query_width;
    made.value_width = all.value_width;
    made.shards = all.law.ranks;
    made.scale = all.softmax_scale;
    made.queries.resize(times(all.query_width));
    made.ends.resize(times(1));
    made.max.assign(times(1), minus_infinity);
    made.sum.resize(times(1));
    made.outputs.resize(times(all.value_width));
    made.shard_sums.resize(times(all.law.ranks));
    return made;
}

void merge(softmaxes& all, const softmaxes& part) {
    for (std::int64_t j = 0; j < all.count; ++j) {
        const double other = part.max.data()[j];
        if (other == minus_infinity) continue;
        const double highest = std::max(all.max.data()[j], other);
        rescale(all, j, std::exp(all.max.data()[j] - highest));
        all.max.data()[j] = highest;
        const double factor = std::exp(other - highest);
        const auto add = [&](std::vector<double>& to, const std::vector<double>& from, std::int64_t size) {
            for (std::int64_t i = j * size; i < (j + 1) * size; ++i) to.data()[i] += factor * from.data()[i];
        };
        add(all.sum, part.sum, 1);
        add(all.outputs, part.outputs, all.value_width);
        add(all.shard_sums, part.shard_sums, all.shards);
    }
}

double logit(const task& work, std::int64_t position, const softmaxes& all, std::int64_t j) {
    std::vector<float> key(static_cast<std::size_t>(work.all.query_width));
    std::vector<double> cached(key.size());
    work.data.key(work.layer, work.request, position, work.kv_head, key.data());
    as_cached(work.all, work.all.k_scale, key, cached.data());
    return all.scale * dot(all.queries.data() + j * all.query_width, cached.data(), all.query_width);
}

} // namespace demo
