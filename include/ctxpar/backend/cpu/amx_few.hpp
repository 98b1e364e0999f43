// The kernels of the matrix unit for up to 8 pairs, as in decode, where memory is to set the pace.
//
// Scores are those of amx_kernels.hpp. From there on a vector holds two keys of 8 pairs, so that none of it is idle;
// and it is the weights that are transposed, who are fewer than the values:
//
//   outputs [row][column] = weights [row][key] x values [key / 2][column][2]
//
// Rows 0 to 7 of the first tile of weights are the first bf16 terms of the pairs, rows 8 to 15 the second ones; a
// second tile has the third. So outputs have 16 rows, of which i and 8 + i belong to pair i. Neither the order of keys
// nor that of columns is the one in memory: both are what comes out of the fewest shuffles (few_key, few_place).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include <ctxpar/backend/cpu/amx.hpp>
#include <ctxpar/backend/cpu/amx_kernels.hpp>
#include <ctxpar/backend/cpu/amx_transpose.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t few_pairs = 8;

// Which keys of 32 are row `row` of a tile of values: this one, and the second one after it.
constexpr std::int64_t few_key(std::int64_t row) {
    return row / 8 * 16 + row % 4 * 4 + row / 4 % 2;
}

// Where the weight of key `key` of 32 lies in a row of weights.
constexpr std::int64_t few_weight(std::int64_t key) {
    return 2 * (key / 16 * 8 + key % 2 * 4 + key % 16 / 4) + key % 4 / 2;
}

// Where column `d` of the output lies in its row.
constexpr std::int64_t few_place(std::int64_t d) {
    return d / 32 * 32 + d % 8 / 4 * 16 + d % 32 / 8 * 4 + d % 4;
}

// Weights of a step: [amx_keys / amx_depth][2 tiles][16 rows][amx_depth].
inline constexpr std::int64_t few_tile = amx_side * amx_depth;
inline constexpr std::int64_t few_weights = amx_keys / amx_depth * 2 * few_tile;

// The sum of the terms of pair i's weight of key t.
inline float few_weight_of(const bf16* weights, std::int64_t t, std::int64_t i) {
    const bf16* const row = weights + t / amx_depth * 2 * few_tile + i * amx_depth + few_weight(t % amx_depth);
    return static_cast<float>(row[0]) + static_cast<float>(row[few_pairs * amx_depth]) +
           static_cast<float>(row[few_tile]);
}

#if defined(__x86_64__)

// Two rows of 8 numbers, side by side.
CTXPAR_INLINE void load_two(const float* low, const float* high, floats<16>& to) {
    floats<8> first;
    floats<8> second;
    load<8>(low, first);
    load<8>(high, second);
    to = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
CTXPAR_INLINE void swap_halves(const floats<16>& from, floats<16>& to) {
    to = __builtin_shufflevector(from, from, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}

// The scores of two keys that follow each other times the factors of the keys, -inf where a pair doesn't see the key.
CTXPAR_INLINE void few_scores(const amx_weights& step, std::int64_t t, floats<16>& score) {
    const float* const at = step.scores + t * amx_side;
    load_two(at, at + amx_side, score);
    floats<16> factor;
    load<16>(step.key_factors + t * few_pairs, factor);
    score *= factor;
}

// Scores come to lie two keys to a vector, [amx_keys / 2][16], at the front of where they lay; `largest` rises to the
// largest; NaN is passed over.
CTXPAR_INLINE void few_scale(const amx_weights& step, floats<16>& largest) {
    floats<16> nothing;
    fill<16>(-float_infinity, nothing);
    floats<16> most[2] = {largest, largest};
    for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half) {
        const std::uint32_t* const mask = step.mask + half * tile_pairs;
        std::uint32_t all = ~0U;
        for (std::int64_t i = 0; i < few_pairs; ++i) all &= mask[i];
        words<16> bits{}; // of the first key of a vector, and of the second
        for (std::int64_t i = 0; i < few_pairs && all != ~0U; ++i) {
            bits[i] = mask[i];
            bits[few_pairs + i] = mask[i] >> 1;
        }
        for (std::int64_t t = 0; t < tile_keys; t += 4) {
            CTXPAR_UNROLL
            for (int x = 0; x < 2; ++x) {
                floats<16> score;
                few_scores(step, half * tile_keys + t + 2 * x, score);
                if (all != ~0U) select<16>((bits & (1U << (t + 2 * x))) != 0, score, nothing, score);
                select<16>(score > most[x], score, most[x], most[x]);
                store<16>(score, step.scores + (half * tile_keys + t + 2 * x) * few_pairs);
            }
        }
    }
    select<16>(most[1] > most[0], most[1], most[0], largest);
}

// 4 x 4 words in each quarter, transposed.
CTXPAR_INLINE void few_transpose(const words<16> (&from)[4], amx_halves (&to)[4]) {
    amx_halves in[4];
    amx_halves pair[4];
    CTXPAR_UNROLL
    for (int i = 0; i < 4; ++i) copy_bits(from[i], in[i]);
    interleave_quarters<4>(in[0], in[1], pair[0], pair[1]);
    interleave_quarters<4>(in[2], in[3], pair[2], pair[3]);
    interleave_quarters<8>(pair[0], pair[2], to[0], to[1]);
    interleave_quarters<8>(pair[1], pair[3], to[2], to[3]);
}

// One term of the weights of 32 keys, which lie [8 vectors of 4 keys][pair]: rows of pairs 0-7.
CTXPAR_INLINE void few_store(const words<16> (&term)[8], bf16* to) {
    using whole = std::uint64_t __attribute__((vector_size(64)));
    amx_halves low[4];
    amx_halves high[4];
    few_transpose({term[0], term[1], term[2], term[3]}, low);
    few_transpose({term[4], term[5], term[6], term[7]}, high);
    CTXPAR_UNROLL
    for (int r = 0; r < 4; ++r) {
        whole a;
        whole b;
        copy_bits(low[r], a);
        copy_bits(high[r], b);
        const whole upper = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13);   // quarters 0, 2: pair r
        const whole lower = __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15); // 1, 3: pair 4 + r
        std::memcpy(static_cast<void*>(to + r * amx_depth), &upper, sizeof(upper));
        std::memcpy(static_cast<void*>(to + (4 + r) * amx_depth), &lower, sizeof(lower));
    }
}

CTXPAR_TARGET_AVX512 inline void scan_few(const amx_weights& step, tile_softmax& state) {
    floats<16> largest;
    load_two(state.max, state.max, largest);
    few_scale(step, largest);
    floats<16> other;
    swap_halves(largest, other);
    select<16>(other > largest, other, largest, largest);
    floats<16> reference;
    floats<16> keep;
    alignas(64) float max[amx_side];
    std::memcpy(max, state.max, few_pairs * sizeof(float));
    std::memcpy(max + few_pairs, state.max, few_pairs * sizeof(float));
    floats<16> before;
    load<16>(max, before);
    stay_unless_far(before, largest);
    raise_maxima<16>(largest, max, reference, keep);
    std::memcpy(state.max, max, few_pairs * sizeof(float));
    store<16>(keep, step.keep);
    store<16>(reference, step.reference);
    store<16>(floats<16>{}, step.sums);
}

// Weighs what has been scanned, in parts: 4 keys of the 8 pairs each, and after 32 keys their transposition.
class few_weigher {
public:
    CTXPAR_INLINE few_weigher(const amx_weights& step, tile_softmax& state)
        : step_(step), state_(state), parts_(step.lanes == 0 ? 0 : amx_keys / amx_depth * (vectors + 1)) {}

    std::int64_t parts() const { return parts_; }
    // Does the parts before `end`.
    CTXPAR_INLINE void up_to(std::int64_t end) {
        while (done_ < end) part();
    }

private:
    static constexpr std::int64_t vectors = 8; // of 32 keys' words

    CTXPAR_INLINE void part() {
        const std::int64_t block = done_ / (vectors + 1);
        const std::int64_t j = done_ % (vectors + 1);
        ++done_;
        if (j == vectors) {
            bf16* const to = step_.terms + block * 2 * few_tile;
            few_store(term_[0], to);
            few_store(term_[1], to + few_pairs * amx_depth);
            few_store(term_[2], to + few_tile);
            if (done_ == parts_) close();
            return;
        }
        const std::int64_t at = (block * amx_depth + 4 * j) * few_pairs;
        floats<16> reference;
        floats<16> sum;
        floats<16> weight[2];
        load<16>(step_.reference, reference);
        load<16>(step_.sums, sum);
        CTXPAR_UNROLL
        for (int x = 0; x < 2; ++x) {
            floats<16> factor;
            load<16>(step_.scores + at + 2 * x * few_pairs, weight[x]);
            load<16>(step_.value_factors + at + 2 * x * few_pairs, factor);
            weight[x] -= reference;
            exp_up_to_8<16>(weight[x]);
            sum += weight[x];
            weight[x] *= factor;
        }
        store<16>(sum, step_.sums);
        CTXPAR_UNROLL
        for (int i = 0; i < amx_terms; ++i) take_term(weight[0], weight[1], term_[i][j]);
    }
    // The sums of the weights come into the state.
    CTXPAR_INLINE void close() {
        floats<16> total;
        floats<16> other;
        floats<16> before;
        floats<16> keep;
        load<16>(step_.sums, total);
        swap_halves(total, other);
        total += other;
        load_two(state_.sum, state_.sum, before);
        load<16>(step_.keep, keep);
        before = before * keep + total;
        float after[amx_side];
        store<16>(before, after);
        std::memcpy(state_.sum, after, few_pairs * sizeof(float));
    }

    const amx_weights& step_;
    tile_softmax& state_;
    std::int64_t parts_;
    std::int64_t done_ = 0;
    words<16> term_[amx_terms][vectors];
};

CTXPAR_TARGET_AVX512 inline void weigh_few(const amx_weights& step, tile_softmax& state, const amx_ahead& ahead) {
    few_weigher weigher(step, state);
    for (std::int64_t part = 0; part < weigher.parts();) {
        weigher.up_to(++part);
        ahead.ask(1);
    }
}

// 32 columns of the values of 32 keys, from `first` on, in pairs of keys: to [2 tiles][16 rows][amx_depth].
CTXPAR_INLINE void interleave_few(const bf16* const* rows, std::int64_t first, std::int64_t column, bf16* to) {
    CTXPAR_UNROLL
    for (int row = 0; row < amx_side; ++row) {
        amx_halves x;
        amx_halves y;
        amx_halves low;
        amx_halves high;
        std::memcpy(&x, static_cast<const void*>(rows[first + few_key(row)] + column), sizeof(x));
        std::memcpy(&y, static_cast<const void*>(rows[first + few_key(row) + 2] + column), sizeof(y));
        interleave_quarters<2>(x, y, low, high);
        std::memcpy(static_cast<void*>(to + row * amx_depth), &low, sizeof(low));
        std::memcpy(static_cast<void*>(to + few_tile + row * amx_depth), &high, sizeof(high));
    }
}

// out [16][width] *= keep, for the pairs where it is not 1.
CTXPAR_TARGET_AVX512 inline void rescale_few(float* out, std::int64_t width, std::int64_t, const float* keep) {
    for (std::int64_t row = 0; row < amx_side; ++row) {
        if (keep[row] == 1.0F) continue;
        for (std::int64_t d = 0; d < width; d += 16) {
            floats<16> sum;
            load<16>(out + row * width + d, sum);
            sum *= keep[row];
            store<16>(sum, out + row * width + d);
        }
    }
}

// total [8][width] = total * own + (both halves of the cell) * other, by pair; the cell becomes 0.
CTXPAR_TARGET_AVX512 inline void fold_few(float* total, float* cell, std::int64_t width, std::int64_t, const float* own,
                                          const float* other) {
    for (std::int64_t i = 0; i < few_pairs; ++i) {
        float* const to = total + i * width;
        float* const first = cell + i * width;
        float* const second = first + few_pairs * width;
        for (std::int64_t d = 0; d < width; d += 16) {
            floats<16> sum;
            floats<16> add;
            floats<16> more;
            load<16>(to + d, sum);
            load<16>(first + d, add);
            load<16>(second + d, more);
            add += more;
            sum *= own[i];
            sum += add * other[i];
            store<16>(sum, to + d);
            store<16>(floats<16>{}, first + d);
            store<16>(floats<16>{}, second + d);
        }
    }
}

// Values lie [width / amx_depth][what interleave_few() makes of all keys]; `rows` are there where that is yet to be
// made, each part while the unit is at work on the one before. Where they need not stay, two parts have room: so what
// is at work stays in the first level of cache. `next`, which may have no lanes, is weighed meanwhile.
CTXPAR_TARGET_AMX inline void add_few(const amx_values& step, const amx_weights& next, tile_softmax& state,
                                      const amx_ahead& ahead) {
    constexpr std::int64_t pitch = 2 * amx_depth;
    constexpr std::int64_t part = amx_keys * amx_depth;
    few_weigher weigher(next, state);
    amx_filling filling(weigher, 4 * ((step.width + amx_depth - 1) / amx_depth));
    amx_load<4>(step.terms, pitch);
    amx_load<5>(step.terms + few_tile, pitch);
    amx_load<6>(step.terms + 2 * few_tile, pitch);
    amx_load<7>(step.terms + 3 * few_tile, pitch);
    bf16* values = step.values;
    bf16* after = values + part;
    if (step.rows != nullptr) {
        interleave_few(step.rows, 0, 0, values);
        interleave_few(step.rows, amx_depth, 0, values + 2 * few_tile);
    }
    for (std::int64_t d = 0; d < step.width; d += amx_depth) {
        const bool more = step.rows != nullptr && d + amx_depth < step.width;
        amx_load<0>(step.out + d, step.width * 4);
        amx_load<1>(step.out + d + amx_side, step.width * 4);
        amx_load<2>(values, pitch);
        amx_multiply<0, 4, 2>();
        ahead.ask(1);
        amx_load<3>(values + few_tile, pitch);
        amx_multiply<1, 4, 3>();
        ahead.ask(1);
        filling.next();
        if (more) interleave_few(step.rows, 0, d + amx_depth, after);
        amx_multiply<0, 5, 2>();
        ahead.ask(1);
        amx_multiply<1, 5, 3>();
        ahead.ask(1);
        filling.next();
        amx_load<2>(values + 2 * few_tile, pitch);
        amx_multiply<0, 6, 2>();
        ahead.ask(1);
        amx_load<3>(values + 3 * few_tile, pitch);
        amx_multiply<1, 6, 3>();
        ahead.ask(1);
        filling.next();
        if (more) interleave_few(step.rows, amx_depth, d + amx_depth, after + 2 * few_tile);
        amx_multiply<0, 7, 2>();
        ahead.ask(1);
        amx_multiply<1, 7, 3>();
        ahead.ask(1);
        amx_store<0>(step.out + d, step.width * 4);
        amx_store<1>(step.out + d + amx_side, step.width * 4);
        filling.next();
        if (step.stay || step.rows == nullptr) {
            values = after;
            after += part;
        } else {
            std::swap(values, after);
        }
    }
}

#endif

} // namespace ctxpar::inline v0_1::cpu
