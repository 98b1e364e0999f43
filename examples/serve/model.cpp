#include "model.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

namespace serve {
namespace {

using dims = model_dims;

// Numbers of mean 0 whose products with rows of unit variance have variance `gain` * `gain`.
template <class T>
rows_of<T> drawn(std::mt19937_64& random, std::int64_t in, std::int64_t out, double gain) {
    std::normal_distribution<float> normal;
    const auto scale = static_cast<float>(gain / std::sqrt(static_cast<double>(in)));
    rows_of<T> weights(in, out);
    for (Eigen::Index i = 0; i < weights.size(); ++i) weights.data()[i] = static_cast<T>(normal(random) * scale);
    return weights;
}

template <class T>
rows_of<T> normed(const rows_of<T>& rows) {
    rows_of<T> result(rows.rows(), rows.cols());
    for (Eigen::Index row = 0; row < rows.rows(); ++row) {
        const T mean = rows.row(row).squaredNorm() / static_cast<T>(rows.cols());
        result.row(row) = rows.row(row) / std::sqrt(mean + static_cast<T>(1e-6));
    }
    return result;
}

// Rotary positions: elements i and i + head_dim/2 of a head are turned together, faster for small i.
template <class T>
void turn(rows_of<T>& heads, std::span<const std::int64_t> positions) {
    constexpr std::int64_t half = dims::head_dim / 2;
    for (Eigen::Index row = 0; row < heads.rows(); ++row) {
        for (std::int64_t i = 0; i < half; ++i) {
            const double speed = std::pow(10'000.0, -static_cast<double>(i) / half);
            const double angle = static_cast<double>(positions[static_cast<std::size_t>(row)]) * speed;
            const auto cosine = static_cast<T>(std::cos(angle)), sine = static_cast<T>(std::sin(angle));
            for (std::int64_t at = i; at < heads.cols(); at += dims::head_dim) {
                const T a = heads(row, at), b = heads(row, at + half);
                heads(row, at) = a * cosine - b * sine;
                heads(row, at + half) = a * sine + b * cosine;
            }
        }
    }
}

} // namespace

template <class T>
model<T>::model(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    embedding_ = drawn<T>(random, dims::words, dims::width, std::sqrt(static_cast<double>(dims::words)));
    projection_ = drawn<T>(random, dims::width, dims::words, 1);
    for (std::int64_t layer = 0; layer < dims::layers; ++layer) {
        layer_weights<T>& made = layers_.emplace_back();
        made.q = drawn<T>(random, dims::width, dims::q_heads * dims::head_dim, 1);
        made.k = drawn<T>(random, dims::width, dims::kv_heads * dims::head_dim, 1);
        made.v = drawn<T>(random, dims::width, dims::kv_heads * dims::head_dim, 1);
        made.o = drawn<T>(random, dims::q_heads * dims::head_dim, dims::width, 1);
        made.gate = drawn<T>(random, dims::width, dims::mlp, 1);
        made.up = drawn<T>(random, dims::width, dims::mlp, 1);
        made.down = drawn<T>(random, dims::mlp, dims::width, 1);
    }
}

template <class T>
rows_of<T> model<T>::embed(std::span<const std::int32_t> tokens) const {
    rows_of<T> hidden(static_cast<Eigen::Index>(tokens.size()), dims::width);
    for (std::size_t row = 0; row < tokens.size(); ++row)
        hidden.row(static_cast<Eigen::Index>(row)) = embedding_.row(tokens[row]);
    return hidden;
}

template <class T>
typename model<T>::projected model<T>::project(std::int64_t layer, const rows_of<T>& hidden,
                                               std::span<const std::int64_t> positions) const {
    const layer_weights<T>& weights = layers_[static_cast<std::size_t>(layer)];
    const rows_of<T> in = normed(hidden);
    projected out{in * weights.q, in * weights.k, in * weights.v};
    turn(out.q, positions);
    turn(out.k, positions);
    return out;
}

template <class T>
void model<T>::finish(std::int64_t layer, const rows_of<T>& attended, rows_of<T>& hidden) const {
    const layer_weights<T>& weights = layers_[static_cast<std::size_t>(layer)];
    hidden += attended * weights.o;
    const rows_of<T> in = normed(hidden);
    rows_of<T> gate = in * weights.gate;
    gate = (gate.array() / (1 + (-gate.array()).exp())).matrix();
    const rows_of<T> up = in * weights.up;
    hidden += gate.cwiseProduct(up) * weights.down;
}

template <class T>
rows_of<T> model<T>::logits(const rows_of<T>& hidden) const {
    return normed(hidden) * projection_;
}

double dense_flops_per_us(const model<float>& weights) {
    constexpr Eigen::Index rows = 256;
    const std::vector<std::int32_t> tokens(rows, 1);
    const std::vector<std::int64_t> positions(rows, 1);
    rows_of<float> hidden = weights.embed(tokens);
    const rows_of<float> attended = rows_of<float>::Constant(rows, dims::q_heads * dims::head_dim, 0.1F);
    double best_us = std::numeric_limits<double>::infinity();
    for (int round = 0; round < 8; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (std::int64_t layer = 0; layer < dims::layers; ++layer) {
            weights.project(layer, hidden, positions);
            weights.finish(layer, attended, hidden);
        }
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
        best_us = std::min(best_us, took.count());
    }
    return 2 * static_cast<double>(rows * dims::dense_weights()) / best_us;
}

template <class T>
choice choose(const T* logits) {
    choice best;
    T first = -std::numeric_limits<T>::infinity(), second = first;
    for (std::int32_t word = 0; word < dims::words; ++word) {
        if (logits[word] > first) {
            second = first;
            first = logits[word];
            best.token = word;
        } else if (logits[word] > second) {
            second = logits[word];
        }
    }
    best.margin = static_cast<double>(first - second);
    return best;
}

template class model<float>;
template class model<double>;
template choice choose(const float*);
template choice choose(const double*);

} // namespace serve
