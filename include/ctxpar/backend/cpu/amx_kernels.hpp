// The arithmetic of attention on the matrix unit of bf16, over 64 keys at a time.
//
// What is bf16 in memory is exact in a product. Weights are fp32: each is cut into three bf16 numbers, whose sum it is,
// so that P loses nothing and the bounds of fp32 hold; the values are multiplied by all three.
//
//   scores  [key][pair]    = keys [key][column]   x queries [column / 2][pair][2]: keys may be read where they lie
//   outputs [column][pair] = values' [column][key] x weights [key / 2][pair][2]:   values are transposed first
//
// Pairs are the last index of all that is in fp32, so maxima, sums and rescaling are element by element, as in
// tiles.hpp, whose softmax this is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ctxpar/backend/cpu/amx.hpp>
#include <ctxpar/backend/cpu/amx_transpose.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/rows_ahead.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>
#include <ctxpar/core/numeric.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t amx_keys = 64;  // of a step
inline constexpr std::int64_t amx_terms = 3;  // bf16 numbers whose sum a weight is
inline constexpr std::int64_t amx_pairs = 32; // of a group

// Where 16 keys of a step lie, in bf16.
struct amx_key_rows {
    const void* base;
    std::int64_t stride; // bytes from one row to the next
};

// Queries and keys of a step. `lanes` is 16 or 32, here and below.
struct amx_scores {
    const bf16* q; // [depth padded / 2][lanes][2]
    amx_key_rows keys[amx_keys / amx_side];
    std::int64_t depth; // columns, a multiple of amx_depth
    std::int64_t lanes;
    float* scores; // [amx_keys][lanes]
};

// Scores that become weights.
struct amx_weights {
    float* scores;               // [amx_keys][lanes]
    const std::uint32_t* mask;   // [amx_keys / tile_keys][tile_pairs] bit t: the pair sees key t of the half
    const tile_factors* factors; // [amx_keys / tile_keys]
    std::int64_t lanes;
    bf16* terms;              // [amx_terms][amx_keys / 2][lanes][2]
    float* keep;              // [lanes] what the pair's output so far has to be multiplied by
    float* reference;         // [lanes] what its scores are taken relative to
    float* sums;              // [lanes] of the weights
    const float* key_factors; // the factors once more, [amx_keys][8]: only where pairs are few (amx_few.hpp)
    const float* value_factors;
};

// The values of a step, transposed, and the weights to lay on them.
struct amx_values {
    bf16* values;      // [amx_keys / amx_depth][width][amx_depth]
    const bf16* terms; // [amx_terms][amx_keys / 2][lanes][2]
    std::int64_t lanes;
    std::int64_t width;      // a multiple of amx_side
    float* out;              // [width][lanes]
    const bf16* const* rows; // [amx_keys] values as they lie: only where pairs are few, and these yet to be arranged
    bool stay;               // only where pairs are few: other pairs want the values too once they are arranged
};

// What is asked for while a step is worked on, spread evenly over it: so much for each unit of work, which is about 30
// cycles.
struct amx_ahead {
    stream_ahead& rows;
    std::int64_t bytes;

    CTXPAR_INLINE void ask(std::int64_t units) const { rows.read(units * bytes); }

    // Units of the work on a KV head and its groups of up to 32 pairs, and of few pairs.
    static constexpr std::int64_t units(std::int64_t groups, std::int64_t depth, std::int64_t value_width) {
        const std::int64_t scores = 4 * depth / amx_depth; // half of that where pairs are few
        return value_width / 4 + groups * (scores + 6 * value_width / (2 * amx_side));
    }
    static constexpr std::int64_t units_of_few(std::int64_t groups, std::int64_t depth, std::int64_t value_width) {
        return groups * (2 * depth / amx_depth + 8 * value_width / amx_depth);
    }
};

#if defined(__x86_64__)

// --- Scores ----------------------------------------------------------------------------------------------------------

// Two by two tiles of sums: 32 keys and 32 pairs.
CTXPAR_INLINE void amx_score_wide(const amx_scores& step, std::int64_t tile, const amx_ahead& ahead) {
    constexpr std::int64_t pitch = amx_pairs * 4;
    const amx_key_rows& first = step.keys[tile];
    const amx_key_rows& second = step.keys[tile + 1];
    amx_zero<0>();
    amx_zero<1>();
    amx_zero<2>();
    amx_zero<3>();
    const char* q = reinterpret_cast<const char*>(step.q);
    for (std::int64_t d = 0; d < step.depth; d += amx_depth, q += amx_side * pitch) {
        amx_load<4>(static_cast<const char*>(first.base) + d * 2, first.stride);
        amx_load<6>(q, pitch);
        amx_load<7>(q + 64, pitch);
        amx_multiply<0, 4, 6>();
        amx_load<5>(static_cast<const char*>(second.base) + d * 2, second.stride);
        amx_multiply<1, 4, 7>();
        amx_multiply<2, 5, 6>();
        amx_multiply<3, 5, 7>();
        ahead.ask(2);
    }
    float* const to = step.scores + tile * amx_side * amx_pairs;
    amx_store<0>(to, pitch);
    amx_store<1>(to + amx_side, pitch);
    amx_store<2>(to + amx_side * amx_pairs, pitch);
    amx_store<3>(to + amx_side * amx_pairs + amx_side, pitch);
}

// Four tiles of sums: 64 keys and 16 pairs.
CTXPAR_INLINE void amx_score_narrow(const amx_scores& step, const amx_ahead& ahead) {
    constexpr std::int64_t pitch = amx_side * 4;
    const auto row = [&](int tile, std::int64_t d) { return static_cast<const char*>(step.keys[tile].base) + d * 2; };
    amx_zero<0>();
    amx_zero<1>();
    amx_zero<2>();
    amx_zero<3>();
    const char* q = reinterpret_cast<const char*>(step.q);
    for (std::int64_t d = 0; d < step.depth; d += amx_depth, q += amx_side * pitch) {
        amx_load<7>(q, pitch);
        amx_load<4>(row(0, d), step.keys[0].stride);
        amx_multiply<0, 4, 7>();
        amx_load<5>(row(1, d), step.keys[1].stride);
        amx_multiply<1, 5, 7>();
        ahead.ask(1);
        amx_load<6>(row(2, d), step.keys[2].stride);
        amx_multiply<2, 6, 7>();
        amx_load<4>(row(3, d), step.keys[3].stride);
        amx_multiply<3, 4, 7>();
        ahead.ask(1);
    }
    amx_store<0>(step.scores, pitch);
    amx_store<1>(step.scores + amx_side * amx_side, pitch);
    amx_store<2>(step.scores + 2 * amx_side * amx_side, pitch);
    amx_store<3>(step.scores + 3 * amx_side * amx_side, pitch);
}

CTXPAR_TARGET_AMX inline void score_amx(const amx_scores& step, const amx_ahead& ahead) {
    if (step.lanes == amx_side) {
        amx_score_narrow(step, ahead);
    } else {
        for (std::int64_t tile = 0; tile < amx_keys / amx_side; tile += 2) amx_score_wide(step, tile, ahead);
    }
}

// --- Weights ---------------------------------------------------------------------------------------------------------

// The weights of two keys that follow each other: the upper halves of both side by side, which are their first terms;
// what is left becomes the next weights.
CTXPAR_INLINE void take_term(floats<16>& even, floats<16>& odd, words<16>& term) {
    words<16> low;
    words<16> high;
    copy_bits(even, low);
    copy_bits(odd, high);
    low &= 0xffff0000U;
    high &= 0xffff0000U;
    term = low >> 16 | high;
    floats<16> taken;
    copy_bits(low, taken);
    even -= taken;
    copy_bits(high, taken);
    odd -= taken;
}

// What scores are taken relative to stays as it was unless they are far above it: so sums are seldom multiplied again,
// and weights stay below 256.
CTXPAR_INLINE void stay_unless_far(const floats<16>& before, floats<16>& largest) {
    constexpr float far = 5.5F; // e^5.5 = 245
    select<16>(largest > before + far, largest, before, largest);
}

// Scores times the factors of the keys; maxima rise. What weighs them comes next.
CTXPAR_TARGET_AVX512 inline void scan_amx(const amx_weights& step, tile_softmax& state) {
    for (std::int64_t lane = 0; lane < step.lanes; lane += amx_side) {
        floats<16> largest;
        load<16>(state.max + lane, largest);
        for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half)
            scale_lanes<16>(
                {step.scores + half * tile_keys * step.lanes, step.mask + half * tile_pairs, step.lanes, nullptr}, lane,
                step.factors[half], largest);
        floats<16> before;
        floats<16> reference;
        floats<16> keep;
        load<16>(state.max + lane, before);
        stay_unless_far(before, largest);
        raise_maxima<16>(largest, state.max + lane, reference, keep);
        store<16>(keep, step.keep + lane);
        store<16>(reference, step.reference + lane);
        store<16>(floats<16>{}, step.sums + lane);
    }
}

// The sums of the weights come into the state.
CTXPAR_INLINE void close_weights(const amx_weights& step, tile_softmax& state, std::int64_t lane) {
    floats<16> total;
    floats<16> keep;
    floats<16> sum;
    load<16>(state.sum + lane, total);
    load<16>(step.keep + lane, keep);
    load<16>(step.sums + lane, sum);
    total = total * keep + sum;
    store<16>(total, state.sum + lane);
}

// Weighs what has been scanned, in parts: 4 keys of 16 pairs each.
class amx_weigher {
public:
    static constexpr std::int64_t keys = 4; // of a part

    CTXPAR_INLINE amx_weigher(const amx_weights& step, tile_softmax& state)
        : step_(step), state_(state), parts_(step.lanes / amx_side * (amx_keys / keys)) {}

    std::int64_t parts() const { return parts_; }
    // Does the parts before `end`.
    CTXPAR_INLINE void up_to(std::int64_t end) {
        while (done_ < end) part();
    }

private:
    CTXPAR_INLINE void part() {
        constexpr std::int64_t each_lane = amx_keys / keys;
        const std::int64_t lane = done_ / each_lane * amx_side;
        const std::int64_t t = done_ % each_lane * keys;
        const tile_factors& factors = step_.factors[t / tile_keys];
        floats<16> reference;
        load<16>(step_.reference + lane, reference);
        floats<16> weight[keys];
        floats<16> sum;
        load<16>(step_.sums + lane, sum);
        CTXPAR_UNROLL
        for (int x = 0; x < keys; ++x) {
            load<16>(step_.scores + (t + x) * step_.lanes + lane, weight[x]);
            weight[x] -= reference;
            exp_up_to_8<16>(weight[x]);
        }
        sum += (weight[0] + weight[1]) + (weight[2] + weight[3]);
        store<16>(sum, step_.sums + lane);
        CTXPAR_UNROLL
        for (int x = 0; x < keys; ++x) weight[x] *= factors.value[t % tile_keys + x];
        CTXPAR_UNROLL
        for (int x = 0; x < keys; x += 2) {
            bf16* to = step_.terms + ((t + x) / 2 * step_.lanes + lane) * 2;
            CTXPAR_UNROLL
            for (int term = 0; term < amx_terms; ++term, to += amx_keys * step_.lanes) {
                words<16> both;
                take_term(weight[x], weight[x + 1], both);
                std::memcpy(static_cast<void*>(to), &both, sizeof(both));
            }
        }
        if (++done_ % each_lane == 0) close_weights(step_, state_, lane);
    }

    const amx_weights& step_;
    tile_softmax& state_;
    std::int64_t parts_;
    std::int64_t done_ = 0;
};

CTXPAR_TARGET_AVX512 inline void weigh_amx(const amx_weights& step, tile_softmax& state, const amx_ahead& ahead) {
    amx_weigher weigher(step, state);
    for (std::int64_t part = 0; part < weigher.parts();) {
        weigher.up_to(++part);
        ahead.ask(2);
    }
}

// The parts of a weigher, spread over the places of a kernel between whose products they are done.
template <class Weigher>
class amx_filling {
public:
    CTXPAR_INLINE amx_filling(Weigher& weigher, std::int64_t places) : weigher_(weigher), places_(places) {}

    CTXPAR_INLINE void next() { weigher_.up_to(++reached_ * weigher_.parts() / places_); }

private:
    Weigher& weigher_;
    std::int64_t places_;
    std::int64_t reached_ = 0;
};

// --- Values ----------------------------------------------------------------------------------------------------------

// to [amx_keys / amx_depth][width][amx_depth] = rows [amx_keys][width], a multiple of 8.
CTXPAR_TARGET_AVX512 inline void transpose_amx(const bf16* const* rows, std::int64_t width, bf16* to,
                                               const amx_ahead& ahead) {
    for (std::int64_t first = 0; first < amx_keys; first += amx_depth)
        for (std::int64_t column = 0; column < width; column += 8) {
            transpose_columns(rows + first, column, to + (first * width + column * amx_depth));
            ahead.ask(1);
        }
}

// out *= keep, where some of it is not 1.
CTXPAR_TARGET_AVX512 inline void rescale_amx(float* out, std::int64_t width, std::int64_t lanes, const float* keep) {
    for (std::int64_t lane = 0; lane < lanes; lane += amx_side) {
        if (std::all_of(keep + lane, keep + lane + amx_side, [](float x) { return x == 1.0F; })) continue;
        floats<16> factor;
        load<16>(keep + lane, factor);
        for (std::int64_t d = 0; d < width; ++d) {
            floats<16> sum;
            load<16>(out + d * lanes + lane, sum);
            sum *= factor;
            store<16>(sum, out + d * lanes + lane);
        }
    }
}

// total = total * own + cell * other, by pair; the cell becomes 0.
CTXPAR_TARGET_AVX512 inline void fold_amx(float* total, float* cell, std::int64_t width, std::int64_t lanes,
                                          const float* own, const float* other) {
    for (std::int64_t lane = 0; lane < lanes; lane += amx_side) {
        floats<16> factor[2];
        load<16>(own + lane, factor[0]);
        load<16>(other + lane, factor[1]);
        for (std::int64_t d = lane; d < width * lanes; d += lanes) {
            floats<16> sum;
            floats<16> add;
            load<16>(total + d, sum);
            load<16>(cell + d, add);
            sum *= factor[0];
            sum += add * factor[1];
            store<16>(sum, total + d);
            store<16>(floats<16>{}, cell + d);
        }
    }
}

// Two tiles of columns, or one, by 32 pairs.
template <int Tiles, class Filling>
CTXPAR_INLINE void amx_add_wide(const amx_values& step, std::int64_t column, Filling& filling) {
    constexpr std::int64_t pitch = amx_pairs * 4;
    constexpr std::int64_t below = amx_side * amx_pairs; // floats from one tile of columns to the next
    float* const out = step.out + column * amx_pairs;
    amx_load<0>(out, pitch);
    amx_load<1>(out + amx_side, pitch);
    if constexpr (Tiles == 2) {
        amx_load<2>(out + below, pitch);
        amx_load<3>(out + below + amx_side, pitch);
    }
    for (std::int64_t first = 0; first < amx_keys; first += amx_depth) {
        const bf16* const values = step.values + (first * step.width + column * amx_depth);
        amx_load<4>(values, 2 * amx_depth);
        if constexpr (Tiles == 2) amx_load<5>(values + amx_side * amx_depth, 2 * amx_depth);
        for (std::int64_t term = 0; term < amx_terms; ++term) {
            const bf16* const weights = step.terms + (term * amx_keys + first) * amx_pairs;
            amx_load<6>(weights, pitch);
            amx_load<7>(weights + 2 * amx_side, pitch);
            amx_multiply<0, 4, 6>();
            amx_multiply<1, 4, 7>();
            if constexpr (Tiles == 2) {
                amx_multiply<2, 5, 6>();
                amx_multiply<3, 5, 7>();
            }
            filling.next();
        }
    }
    amx_store<0>(out, pitch);
    amx_store<1>(out + amx_side, pitch);
    if constexpr (Tiles == 2) {
        amx_store<2>(out + below, pitch);
        amx_store<3>(out + below + amx_side, pitch);
    }
}

// Two tiles of columns, or one, by 16 pairs.
template <int Tiles, class Filling>
CTXPAR_INLINE void amx_add_narrow(const amx_values& step, std::int64_t column, Filling& filling) {
    constexpr std::int64_t pitch = amx_side * 4;
    float* const out = step.out + column * amx_side;
    amx_load<0>(out, pitch);
    if constexpr (Tiles == 2) amx_load<1>(out + amx_side * amx_side, pitch);
    for (std::int64_t first = 0; first < amx_keys; first += amx_depth) {
        const bf16* const values = step.values + (first * step.width + column * amx_depth);
        amx_load<4>(values, 2 * amx_depth);
        if constexpr (Tiles == 2) amx_load<5>(values + amx_side * amx_depth, 2 * amx_depth);
        for (std::int64_t term = 0; term < amx_terms; ++term) {
            amx_load<6>(step.terms + (term * amx_keys + first) * amx_side, pitch);
            amx_multiply<0, 4, 6>();
            if constexpr (Tiles == 2) amx_multiply<1, 5, 6>();
            filling.next();
        }
    }
    amx_store<0>(out, pitch);
    if constexpr (Tiles == 2) amx_store<1>(out + amx_side * amx_side, pitch);
}

// `next`, which may have no lanes, is weighed while the unit is at work.
CTXPAR_TARGET_AMX inline void add_amx(const amx_values& step, const amx_weights& next, tile_softmax& state,
                                      const amx_ahead& ahead) {
    constexpr std::int64_t columns = 2 * amx_side;
    amx_weigher weigher(next, state);
    amx_filling filling(weigher, (step.width + columns - 1) / columns * (amx_keys / amx_depth) * amx_terms);
    const bool wide = step.lanes == amx_pairs;
    std::int64_t column = 0;
    for (; column + columns <= step.width; column += columns) {
        wide ? amx_add_wide<2>(step, column, filling) : amx_add_narrow<2>(step, column, filling);
        ahead.ask(6);
    }
    if (column == step.width) return;
    wide ? amx_add_wide<1>(step, column, filling) : amx_add_narrow<1>(step, column, filling);
}

// Rows of 8-bit numbers, which bf16 holds exactly, and of bf16 itself; `to` has room for the next multiple of 16.
template <class T>
CTXPAR_TARGET_AVX512 void bf16_row(const T* from, std::int64_t width, bf16* to) {
    if constexpr (std::is_same_v<T, bf16>) {
        std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(width) * sizeof(bf16));
    } else {
        for (std::int64_t d = 0; d < width; d += 16) {
            T last[16] = {};
            const T* at = from + d;
            if (width - d < 16) {
                std::memcpy(static_cast<void*>(last), at, static_cast<std::size_t>(width - d) * sizeof(T));
                at = last;
            }
            floats<16> value;
            widen<16>(at, value);
            words<16> bits;
            copy_bits(value, bits);
            bits >>= 16;
            const lane_types<16>::halves half = __builtin_convertvector(bits, lane_types<16>::halves);
            std::memcpy(static_cast<void*>(to + d), &half, sizeof(half));
        }
    }
}

#endif

} // namespace ctxpar::inline v0_1::cpu
