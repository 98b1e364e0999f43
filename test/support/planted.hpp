// Data that can tell. Random keys hide faults: over many tokens a wrong merge or a lost token hardly changes a mean. So
// the tokens at which faults happen are planted: their keys point along some head's query, so that each carries a good
// part of that head's weight, and shards that hold one have a far larger LSE than shards that do not.
//
// Planted are the first token, the tokens of the step, the tokens on both sides of a block boundary and of a round of
// ownership, and those on both sides of every edge of a mask, also where no row may see them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "deployment.hpp"
#include "reference.hpp"

namespace ctxpar_test {

inline const number_format& format_of(scalar_type type) {
    switch (type) {
    case scalar_type::bf16:
        return format_bf16;
    case scalar_type::f16:
        return format_f16;
    case scalar_type::e4m3:
        return format_e4m3;
    case scalar_type::e5m2:
        return format_e5m2;
    default:
        return format_f32;
    }
}

// Keys and values of one request, before they are cached: [length][kv_heads][width], representable in the element type.
// MLA: k is the whole row, v is empty.
struct planted_sequence {
    std::vector<float> k;
    std::vector<float> v;
    std::vector<std::int64_t> planted; // ascending
};

struct planted_data {
    std::vector<float> q; // [rows][q_heads][key_width]
    std::vector<planted_sequence> sequences;
    std::vector<float> sinks;             // [q_heads]
    std::vector<std::uint64_t> tree_bits; // [rows]
    std::vector<float> head_scales;       // [2][kv_heads]: keys, values
};

inline double softmax_scale_of(const deployment& d) {
    if (d.softmax_scale != 0.0F) return d.softmax_scale;
    // MLA: the width of a key before absorption, 128 without rope.
    const std::int64_t width = d.is_mla ? 128 + d.key_width - d.value_width : d.key_width;
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
}

// The tokens to plant, those inside the sequence only.
inline std::vector<std::int64_t> tokens_to_plant(const deployment& d, const request& each) {
    std::set<std::int64_t> tokens{0};
    const auto both_sides = [&](std::int64_t token) { tokens.insert({token - 1, token}); };
    const std::int64_t length = each.length, round = d.sizes.dcp * d.interleave, middle = length / 2;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(each.rows, 6); ++i) tokens.insert(length - 1 - i);
    both_sides(middle / round * round);
    // Of the middle token's rank, the first token of a block and the one before it.
    std::vector<std::int64_t> mine;
    for (std::int64_t token = 0; token < length; ++token)
        if (d.owner(token) == d.owner(middle)) mine.push_back(token);
    const auto block =
        static_cast<std::size_t>(static_cast<std::int64_t>(mine.size()) / 2 / d.block_size * d.block_size);
    if (block > 0) tokens.insert({mine[block - 1], mine[block]});
    for (std::int64_t i = 0; i < each.rows; ++i) {
        const std::int64_t position = length - each.rows + i;
        if (d.mask.window > 0) both_sides(position + 1 - d.mask.window);
        if (d.mask.chunk > 0) both_sides(position / d.mask.chunk * d.mask.chunk);
    }
    if (d.mask.prefix > 0) both_sides(d.mask.prefix);
    std::vector<std::int64_t> inside;
    for (const std::int64_t token : tokens)
        if (token >= 0 && token < length) inside.push_back(token);
    return inside;
}

namespace detail {

// One direction a head, as long as the average one of its width, and queries close to it in every row: a token planted
// for a head is heavy in all rows.
inline std::vector<double> draw_directions(const deployment& d, random_numbers& random) {
    std::vector<double> directions(static_cast<std::size_t>(d.q_heads * d.key_width));
    for (double& x : directions) x = random.normal();
    for (auto head = directions.begin(); head != directions.end(); head += d.key_width) {
        const double length = std::sqrt(std::inner_product(head, head + d.key_width, head, 0.0));
        const double longer = std::sqrt(static_cast<double>(d.key_width)) / length;
        std::transform(head, head + d.key_width, head, [longer](double x) { return x * longer; });
    }
    return directions;
}

inline void draw_queries(const deployment& d, const std::vector<double>& directions, random_numbers& random,
                         planted_data& data) {
    for (std::int64_t row = 0; row < d.rows(); ++row)
        for (const double x : directions)
            data.q.push_back(static_cast<float>(rounded_to(format_of(d.element), x + 0.25 * random.normal())));
}

// A row of a planted key: the direction of a head, as long as the wanted score takes.
inline void plant_key(const deployment& d, const double* direction, double score, random_numbers& random, float* key) {
    const double length = std::inner_product(direction, direction + d.key_width, direction, 0.0);
    const double factor = score / (softmax_scale_of(d) * length);
    for (std::int64_t i = 0; i < d.key_width; ++i)
        key[i] = static_cast<float>(rounded_to(format_of(d.element), factor * direction[i] + 0.2 * random.normal()));
}

inline planted_sequence draw_sequence(const deployment& d, const request& each, const std::vector<double>& directions,
                                      random_numbers& random) {
    const number_format& format = format_of(d.element);
    planted_sequence sequence;
    sequence.k.resize(static_cast<std::size_t>(each.length * d.kv_heads * d.key_width));
    for (float& x : sequence.k) x = static_cast<float>(rounded_to(format, 0.5 * random.normal()));
    sequence.v.resize(d.is_mla ? 0 : static_cast<std::size_t>(each.length * d.kv_heads * d.value_width));
    for (float& x : sequence.v) x = static_cast<float>(rounded_to(format, random.normal()));

    // Every planted token is heavy for one head of every third KV head, or of all where there are few.
    sequence.planted = tokens_to_plant(d, each);
    const double score = std::log(static_cast<double>(each.length) + 1.0) + 1.5;
    const std::int64_t group = d.q_heads / d.kv_heads;
    const std::int64_t turns = std::min<std::int64_t>(d.kv_heads, 3);
    for (std::size_t i = 0; i < sequence.planted.size(); ++i) {
        const auto turn = static_cast<std::int64_t>(i);
        for (std::int64_t kv = turn % turns; kv < d.kv_heads; kv += turns) {
            const std::int64_t head = kv * group + turn / turns % group;
            const std::int64_t cell = sequence.planted[i] * d.kv_heads + kv;
            plant_key(d, directions.data() + head * d.key_width, score, random, sequence.k.data() + cell * d.key_width);
        }
    }
    return sequence;
}

// A tree of drafts: every node but the first follows an earlier one, or the context.
inline void draw_tree(const request& each, random_numbers& random, std::vector<std::uint64_t>& bits) {
    const std::size_t first = bits.size();
    for (std::int64_t i = 0; i < each.rows; ++i) {
        const std::int64_t parent = i == 0 ? -1 : random.below(i + 1) - 1;
        const std::uint64_t ancestors = parent < 0 ? 0 : bits[first + static_cast<std::size_t>(parent)];
        bits.push_back(ancestors | std::uint64_t{1} << i);
    }
}

} // namespace detail

inline planted_data plant(const deployment& d) {
    random_numbers random(d.seed);
    planted_data data;
    const std::vector<double> directions = detail::draw_directions(d, random);
    detail::draw_queries(d, directions, random, data);
    for (const request& each : d.requests) {
        data.sequences.push_back(detail::draw_sequence(d, each, directions, random));
        if (d.tree) detail::draw_tree(each, random, data.tree_bits);
    }
    // Sinks as heavy as the planted tokens.
    for (std::int64_t head = 0; head < d.q_heads && d.sinks; ++head)
        data.sinks.push_back(static_cast<float>(std::log(static_cast<double>(d.longest())) + 1.5 + random.normal()));
    for (std::int64_t i = 0; i < 2 * d.kv_heads; ++i)
        data.head_scales.push_back(0.02F + 0.01F * static_cast<float>(random.below(5)));
    return data;
}

} // namespace ctxpar_test
