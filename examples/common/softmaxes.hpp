// Double-precision softmaxes over tokens that are made again: the inner part of a reference. It shares no arithmetic
// with the library.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "progress.hpp"

namespace demo {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// Softmaxes over the tokens of one KV head: every query row with every checked head of the group.
struct softmaxes {
    std::int64_t count = 0;
    std::int64_t query_width = 0;
    std::int64_t value_width = 0;
    std::int64_t shards = 1;
    double scale = 0.0;
    std::vector<double> queries;    // [count][query_width]
    std::vector<std::int64_t> ends; // [count] tokens seen
    std::vector<double> max;        // [count] largest logit
    std::vector<double> sum;        // [count] of exp(logit - max)
    std::vector<double> outputs;    // [count][value_width] not yet divided by sum
    std::vector<double> shard_sums; // [count][shards] the part of sum that each rank's tokens have

    // Makes `size` softmaxes that have seen nothing, with room for queries and ends; widths, shards and scale stand.
    void resize(std::int64_t size);
};

// Where keys and values come from, as the cache holds them.
class token_source {
public:
    virtual ~token_source() = default;
    // Fills query_width and value_width numbers.
    virtual void token(std::int64_t position, double* key, double* value) const = 0;
    // The rank that holds the token.
    virtual std::int64_t shard(std::int64_t position) const = 0;
};

// Shows tokens [first, last) to all softmaxes that reach so far.
void walk(const token_source& from, std::int64_t first, std::int64_t last, softmaxes& all, progress& bar);

// Adds what another thread gathered for the same queries.
void merge(softmaxes& all, const softmaxes& part);

// The logit of a key in softmax j.
double logit(const double* key, const softmaxes& all, std::int64_t j);

// How far apart the LSEs of two shards that hold something are, at most, in nats.
double lse_spread(const softmaxes& all);

} // namespace demo
