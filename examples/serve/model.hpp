// A toy transformer of seeded weights: RMS norm, GQA with rotary positions, a gated MLP, a projection to words. All of
// it but the attention is here, over rows: what it computes for a row depends on no other row.
//
// Its scores spread over several nats, so that a row attends to few keys, wherever they lie: a key that is missing
// shows in the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <Eigen/Core>

namespace serve {

struct model_dims {
    static constexpr std::int64_t layers = 2;
    static constexpr std::int64_t width = 128; // of a hidden row
    static constexpr std::int64_t q_heads = 8;
    static constexpr std::int64_t kv_heads = 1;
    static constexpr std::int64_t head_dim = 32;
    static constexpr std::int64_t mlp = 256;
    static constexpr std::int64_t words = 1024; // tokens are 0 .. words-1
    static constexpr float softmax_scale = 0.57F;

    // Weights that a row meets in all layers, for the cost of what is no attention.
    static constexpr std::int64_t dense_weights() {
        return layers * (width * (q_heads + 2 * kv_heads) * head_dim + q_heads * head_dim * width + 3 * width * mlp);
    }
};

template <class T>
using rows_of = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// T: float to serve, double for the reference.
template <class T>
struct layer_weights {
    rows_of<T> q, k, v;  // [width][heads * head_dim]
    rows_of<T> o;        // [q_heads * head_dim][width]
    rows_of<T> gate, up; // [width][mlp]
    rows_of<T> down;     // [mlp][width]
};

template <class T>
class model {
public:
    // The same numbers for float and for double: all are drawn as float.
    explicit model(std::uint64_t seed);

    // [rows][width] of some tokens.
    rows_of<T> embed(std::span<const std::int32_t> tokens) const;

    // Queries and keys are turned by their positions; [rows][heads * head_dim].
    struct projected {
        rows_of<T> q, k, v;
    };
    projected project(std::int64_t layer, const rows_of<T>& hidden, std::span<const std::int64_t> positions) const;

    // Adds what the layer makes of its attention, [rows][q_heads * head_dim], and its MLP.
    void finish(std::int64_t layer, const rows_of<T>& attended, rows_of<T>& hidden) const;

    // [rows][words]
    rows_of<T> logits(const rows_of<T>& hidden) const;

private:
    rows_of<T> embedding_;  // [words][width]
    rows_of<T> projection_; // [width][words]
    std::vector<layer_weights<T>> layers_;
};

// Floating-point operations a microsecond that this core does for rows of a model outside its attention.
double dense_flops_per_us(const model<float>& weights);

// The token of the largest logit, and how far the second one is behind.
struct choice {
    std::int32_t token = 0;
    double margin = 0;
};

template <class T>
choice choose(const T* logits);

} // namespace serve
