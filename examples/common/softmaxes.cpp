#include "softmaxes.hpp"

#include <algorithm>
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

void make_tile(const token_source& from, token_tile& part, const softmaxes& all) {
    for (std::int64_t t = 0; t < part.tokens; ++t) {
        const std::int64_t position = part.first + t;
        from.token(position, part.keys.data() + t * all.query_width, part.values.data() + t * all.value_width);
        part.shard[t] = from.shard(position);
    }
}

} // namespace

void walk(const token_source& from, std::int64_t first, std::int64_t last, softmaxes& all, progress& bar) {
    token_tile part;
    part.keys.resize(static_cast<std::size_t>(tile * all.query_width));
    part.values.resize(static_cast<std::size_t>(tile * all.value_width));
    for (part.first = first; part.first < last; part.first += tile) {
        part.tokens = std::min(tile, last - part.first);
        make_tile(from, part, all);
        if (wide_is_there()) {
            add_tile_wide(part, all);
        } else {
            add_tile_body(part, all);
        }
        bar.add(part.tokens);
    }
}

void softmaxes::resize(std::int64_t size) {
    const auto times = [size](std::int64_t each) { return static_cast<std::size_t>(size * each); };
    count = size;
    queries.assign(times(query_width), 0.0);
    ends.assign(times(1), 0);
    max.assign(times(1), minus_infinity);
    sum.assign(times(1), 0.0);
    outputs.assign(times(value_width), 0.0);
    shard_sums.assign(times(shards), 0.0);
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

double logit(const double* key, const softmaxes& all, std::int64_t j) {
    return all.scale * dot(all.queries.data() + j * all.query_width, key, all.query_width);
}

double lse_spread(const softmaxes& all) {
    double widest = 0.0;
    for (std::int64_t j = 0; j < all.count; ++j) {
        double least = -minus_infinity;
        double most = 0.0;
        for (std::int64_t s = 0; s < all.shards; ++s) {
            const double sum = all.shard_sums[static_cast<std::size_t>(j * all.shards + s)];
            if (sum > 0.0) least = std::min(least, sum);
            most = std::max(most, sum);
        }
        widest = std::max(widest, std::log(most / least));
    }
    return widest;
}

} // namespace demo
