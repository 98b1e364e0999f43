// Double-precision softmaxes over tokens that are made from the seed: the inner part of the reference.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "data.hpp"
#include "problem.hpp"
#include "progress.hpp"

namespace demo {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// The softmaxes of one (layer, request, KV head): every query row with every checked head of the group.
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
};

// Where keys and values come from.
struct task {
    const problem& all;
    const kv_data& data;
    std::int64_t layer = 0;
    std::int64_t request = 0;
    std::int64_t kv_head = 0;
};

// `count` softmaxes that have seen nothing, with room for queries and ends.
softmaxes empty_softmaxes(const problem& all, std::int64_t count);

// Shows tokens [first, last) to all softmaxes that reach so far.
void walk(const task& work, std::int64_t first, std::int64_t last, softmaxes& all, progress& bar);

// Adds what another thread gathered for the same queries.
void merge(softmaxes& all, const softmaxes& part);

// The logit of a token in softmax j.
double logit(const task& work, std::int64_t position, const softmaxes& all, std::int64_t j);

} // namespace demo
