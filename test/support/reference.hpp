// What attention is: plain double precision over one unsharded sequence, token by token. It shares no code with the
// library: number formats are read from their bits, masks are asked of one (row, token) at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ctxpar_test {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// A binary floating point format: sign, exponent, mantissa.
struct number_format {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity; // else the largest pattern alone is NaN
    bool saturates;    // what is too large becomes the largest number, not infinity

    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    std::uint32_t sign() const { return std::uint32_t{1} << (exponent_bits + mantissa_bits); }
    std::uint32_t infinity() const { return ((std::uint32_t{1} << exponent_bits) - 1) << mantissa_bits; }
    std::uint32_t largest() const { return has_infinity ? infinity() - 1 : sign() - 2; }
};

inline constexpr number_format format_f32{8, 23, true, false};
inline constexpr number_format format_bf16{8, 7, true, false};
inline constexpr number_format format_f16{5, 10, true, false};
inline constexpr number_format format_e4m3{4, 3, false, true};
inline constexpr number_format format_e5m2{5, 2, true, true};

inline double value_of(const number_format& format, std::uint32_t bits) {
    const double sign = (bits & format.sign()) != 0 ? -1.0 : 1.0;
    const std::uint32_t magnitude = bits & (format.sign() - 1);
    const std::uint32_t unit = std::uint32_t{1} << format.mantissa_bits;
    const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
    const std::uint32_t mantissa = magnitude & (unit - 1);
    if (magnitude > format.largest()) {
        const bool infinite = format.has_infinity && mantissa == 0;
        return infinite ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    }
    const int shift = (exponent == 0 ? 1 : exponent) - format.bias() - format.mantissa_bits;
    return sign * std::ldexp(static_cast<double>(exponent == 0 ? mantissa : mantissa + unit), shift);
}

// The nearest number of the format, ties to even. x is not NaN.
inline std::uint32_t bits_of(const number_format& format, double x) {
    const std::uint32_t sign = std::signbit(x) ? format.sign() : 0;
    const double magnitude = std::fabs(x);
    if (magnitude == 0.0) return sign;
    const std::uint32_t too_large = format.saturates ? format.largest() : format.infinity();
    if (std::isinf(magnitude)) return sign | too_large;
    const int lowest = 1 - format.bias();
    const int exponent = std::max(std::ilogb(magnitude), lowest);
    const double rounded = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
    if (exponent > format.bias() + 1) return sign | too_large;
    // A carry out of the mantissa moves into the exponent; a subnormal has no leading one to take away.
    const std::uint32_t bits =
        (static_cast<std::uint32_t>(exponent - lowest) << format.mantissa_bits) + static_cast<std::uint32_t>(rounded);
    return sign | (bits > format.largest() ? too_large : bits);
}

inline double rounded_to(const number_format& format, double x) {
    return value_of(format, bits_of(format, x));
}

// Attention of the last `rows` tokens of one sequence. All arrays are of the whole model.
struct attention_problem {
    std::int64_t length = 0;
    std::int64_t rows = 0;
    std::int64_t q_heads = 1;
    std::int64_t kv_heads = 1;
    std::int64_t key_width = 1;
    std::int64_t value_width = 1;
    const float* q = nullptr;            // [rows][q_heads][key_width]
    const float* k = nullptr;            // [length][kv_heads][key_width] as stored
    const float* v = nullptr;            // [length][kv_heads][value_width]; null: the first value_width of the keys
    const float* k_scale = nullptr;      // [length][kv_heads] factors of what is stored; null: 1
    const float* v_scale = nullptr;      // the same; unused where the values are in the keys
    double scale = 1.0;                  // of q.k
    double soft_cap = 0.0;               // cap * tanh(score / cap) where > 0
    const float* sinks = nullptr;        // [q_heads] logits, or null
    std::int64_t window = 0;             // tokens a row sees, its own included; 0: all
    std::int64_t chunk = 0;              // a row sees its own chunk only; 0: no chunks
    std::int64_t prefix = 0;             // tokens visible beside window and chunk
    const std::uint64_t* tree = nullptr; // [rows] bit x: the row sees the x-th of the last `rows` tokens; or null
};

struct attention_result {
    std::vector<double> out; // [rows][q_heads][value_width]
    std::vector<double> lse; // [rows][q_heads], natural
    // [rows][q_heads] what fp32 may lose in a score, and so in the LSE: n products whose magnitudes sum to m are added
    // with an error of sqrt(n) m / 2^24 (roundings as independent errors; n m / 2^24 could not be passed), averaged by
    // the weights of the softmax
    std::vector<double> score_rounding;
    // [rows][q_heads][value_width] the least that errors of the output are relative to: half of the weighted sum
    // of |values| where there are fewer than 256 outputs, which values of both signs may cancel in all of; else 0
    std::vector<double> floor;
};

// Whether a row sees a token.
inline bool is_visible(const attention_problem& ask, std::int64_t row, std::int64_t token) {
    const std::int64_t first_new = ask.length - ask.rows;
    const std::int64_t position = first_new + row;
    if (position < 0 || token < 0 || token >= ask.length) return false;
    if (ask.tree != nullptr && token >= first_new) return (ask.tree[row] >> (token - first_new) & 1U) != 0;
    if (token > position) return false;
    if (token < ask.prefix) return true;
    if (ask.window > 0 && position - token >= ask.window) return false;
    return ask.chunk == 0 || token / ask.chunk == position / ask.chunk;
}

inline double sum_of_magnitudes(const double* a, const float* b, std::int64_t width) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < width; ++d) sum += std::fabs(a[d] * static_cast<double>(b[d]));
    return sum;
}

inline double dot(const double* a, const float* b, std::int64_t width) {
    double sum[4] = {};
    std::int64_t d = 0;
    for (; d + 4 <= width; d += 4)
        for (int i = 0; i < 4; ++i) sum[i] += a[d + i] * static_cast<double>(b[d + i]);
    for (; d < width; ++d) sum[0] += a[d] * static_cast<double>(b[d]);
    return sum[0] + sum[1] + sum[2] + sum[3];
}

namespace detail {

inline void attend_one_head(const attention_problem& ask, std::int64_t row, std::int64_t head,
                            const std::vector<std::int64_t>& tokens, attention_result& result) {
    const std::int64_t kv_head = head / (ask.q_heads / ask.kv_heads);
    const std::int64_t at = row * ask.q_heads + head;
    const float* q = ask.q + at * ask.key_width;
    const std::vector<double> query(q, q + ask.key_width);
    const double sink = ask.sinks == nullptr ? minus_infinity : static_cast<double>(ask.sinks[head]);

    std::vector<double> scores;
    double largest = sink;
    for (const std::int64_t token : tokens) {
        const std::int64_t cell = token * ask.kv_heads + kv_head;
        double score = ask.scale * dot(query.data(), ask.k + cell * ask.key_width, ask.key_width);
        if (ask.k_scale != nullptr) score *= static_cast<double>(ask.k_scale[cell]);
        if (ask.soft_cap > 0.0) score = ask.soft_cap * std::tanh(score / ask.soft_cap);
        scores.push_back(score);
        largest = std::max(largest, score);
    }
    double sum = ask.sinks == nullptr ? 0.0 : std::exp(sink - largest);
    double* const out = result.out.data() + at * ask.value_width;
    double* const floor = result.floor.data() + at * ask.value_width;
    const bool few = result.out.size() < 256;
    double magnitude = 0.0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::int64_t cell = tokens[i] * ask.kv_heads + kv_head;
        const bool in_keys = ask.v == nullptr;
        const float* value = in_keys ? ask.k + cell * ask.key_width : ask.v + cell * ask.value_width;
        const float* factors = in_keys ? ask.k_scale : ask.v_scale;
        const double weight = std::exp(scores[i] - largest);
        const double scaled = factors == nullptr ? weight : weight * static_cast<double>(factors[cell]);
        for (std::int64_t d = 0; d < ask.value_width; ++d) out[d] += scaled * static_cast<double>(value[d]);
        sum += weight;
        for (std::int64_t d = 0; few && d < ask.value_width; ++d)
            floor[d] += std::fabs(scaled * static_cast<double>(value[d])) / 2;
        if (weight < 1e-3) continue; // nothing of the sum of magnitudes
        const double key_factor = ask.k_scale == nullptr ? 1.0 : std::fabs(static_cast<double>(ask.k_scale[cell]));
        magnitude += weight * std::fabs(ask.scale) * key_factor *
                     sum_of_magnitudes(query.data(), ask.k + cell * ask.key_width, ask.key_width);
    }
    if (sum == 0.0) return; // nothing visible and no sink
    for (std::int64_t d = 0; d < ask.value_width; ++d) {
        out[d] /= sum;
        floor[d] /= sum;
    }
    result.lse[static_cast<std::size_t>(at)] = largest + std::log(sum);
    result.score_rounding[static_cast<std::size_t>(at)] =
        magnitude / sum * std::sqrt(static_cast<double>(ask.key_width)) * 0x1p-24;
}

} // namespace detail

// Exact attention; with `part` over those tokens only for which it is true.
inline attention_result attend(const attention_problem& ask, const std::function<bool(std::int64_t)>& part = {}) {
    attention_result result;
    result.out.assign(static_cast<std::size_t>(ask.rows * ask.q_heads * ask.value_width), 0.0);
    result.floor.assign(result.out.size(), 0.0);
    result.lse.assign(static_cast<std::size_t>(ask.rows * ask.q_heads), minus_infinity);
    result.score_rounding.assign(result.lse.size(), 0.0);
    for (std::int64_t row = 0; row < ask.rows; ++row) {
        std::vector<std::int64_t> tokens;
        for (std::int64_t token = 0; token < ask.length; ++token)
            if (is_visible(ask, row, token) && (!part || part(token))) tokens.push_back(token);
        for (std::int64_t head = 0; head < ask.q_heads; ++head) detail::attend_one_head(ask, row, head, tokens, result);
    }
    return result;
}

} // namespace ctxpar_test
