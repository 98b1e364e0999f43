// Projections around attention, in double: each rank multiplies with its shard, and products add up to the whole.
#pragma once

#include "runs.hpp"

namespace ctxpar_test {

inline constexpr std::int64_t hidden_out = 3;

// Weights of a block whose queries are the planted ones: hidden state i is the i-th unit vector.
struct block_weights {
    std::int64_t rows = 0;
    std::vector<double> query;  // [q_heads * key_width][rows]
    std::vector<double> output; // [hidden_out][q_heads * value_width]

    block_weights(const deployment& d, const planted_data& data) : rows(d.rows()) {
        const std::int64_t width = d.q_heads * d.key_width;
        for (std::int64_t column = 0; column < width; ++column)
            for (std::int64_t row = 0; row < rows; ++row)
                query.push_back(static_cast<double>(data.q[static_cast<std::size_t>(row * width + column)]));
        random_numbers random(d.seed);
        for (std::int64_t i = 0; i < hidden_out * d.q_heads * d.value_width; ++i) output.push_back(random.normal());
    }

    // [rows][heads][key_width] of the heads in `part`.
    std::vector<float> project_queries(const deployment& d, const head_range& part) const {
        std::vector<float> result;
        for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t column = part.first * d.key_width; column < part.last * d.key_width; ++column) {
                double sum = 0.0;
                for (std::int64_t x = 0; x < rows; ++x)
                    sum += query[static_cast<std::size_t>(column * rows + x)] * (x == row ? 1.0 : 0.0);
                result.push_back(static_cast<float>(sum));
            }
        }
        return result;
    }

    // Adds the product of [rows][part.count()][value_width] to [rows][hidden_out].
    template <class Number>
    void add_output(const deployment& d, const head_range& part, const std::vector<Number>& heads,
                    std::vector<double>& sum) const {
        const std::int64_t width = part.count() * d.value_width;
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t o = 0; o < hidden_out; ++o)
                for (std::int64_t x = 0; x < width; ++x)
                    sum[static_cast<std::size_t>(row * hidden_out + o)] +=
                        output[static_cast<std::size_t>((o * d.q_heads + part.first) * d.value_width + x)] *
                        static_cast<double>(heads[static_cast<std::size_t>(row * width + x)]);
    }
};

inline double norm(const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
}

} // namespace ctxpar_test
