// Random partial states of some rows and heads, and what the backend's merges must make of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include <support/plain_merge.hpp>
#include <support/plain_numbers.hpp>

#include <ctxpar/backend/backend.hpp>

namespace plain {

// N parts of [rows][heads][width] values of type P. LSEs of the parts of one row differ by several nats; some parts are
// empty for some rows, and then hold NaN and any LSE.
template <class P>
struct partials {
    std::int64_t count, rows, heads, width;
    std::vector<std::vector<P>> out;
    std::vector<std::vector<float>> lse;
    std::vector<std::uint8_t> live; // [count][rows]
    std::vector<float> sinks;       // [heads], natural

    partials(std::int64_t parts, std::int64_t num_rows, std::int64_t num_heads, std::int64_t num_columns,
             std::uint32_t seed, float offset = 0.0F)
        : count(parts), rows(num_rows), heads(num_heads), width(num_columns) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        const float nan_value = std::numeric_limits<float>::quiet_NaN();
        for (std::int64_t i = 0; i < count; ++i) {
            out.emplace_back();
            lse.emplace_back();
            for (std::int64_t row = 0; row < rows; ++row) {
                const bool empty = random() % 4 == 0;
                live.push_back(empty ? 0 : 1);
                for (std::int64_t head = 0; head < heads; ++head) {
                    const bool nothing = !empty && random() % 5 == 0;
                    lse.back().push_back(nothing ? -std::numeric_limits<float>::infinity()
                                                 : offset + 2.5F * static_cast<float>(i % 3) + normal(random));
                    if (empty && random() % 2 == 0) lse.back().back() = random() % 2 == 0 ? nan_value : 1e30F;
                    for (std::int64_t d = 0; d < width; ++d)
                        out.back().push_back(static_cast<P>(empty || nothing ? nan_value : normal(random)));
                }
            }
        }
        for (std::int64_t head = 0; head < heads; ++head) sinks.push_back(offset + normal(random));
    }

    std::size_t at(std::int64_t row, std::int64_t head) const { return static_cast<std::size_t>(row * heads + head); }
    bool empty(std::int64_t i, std::int64_t row) const { return live[static_cast<std::size_t>(i * rows + row)] == 0; }

    // One row and head, merged by the definition.
    merged expect(std::int64_t row, std::int64_t head, base b, bool with_sinks) const {
        std::vector<part> parts;
        for (std::int64_t i = 0; i < count; ++i) {
            const auto from = static_cast<std::size_t>(i);
            part one{{}, lse[from][at(row, head)], empty(i, row)};
            for (std::int64_t d = 0; d < width; ++d)
                one.out.push_back(
                    number(out[from][at(row, head) * static_cast<std::size_t>(width) + static_cast<std::size_t>(d)]));
            parts.push_back(one);
        }
        std::optional<double> sink;
        if (with_sinks) {
            const double natural = sinks[static_cast<std::size_t>(head)];
            sink = b == base::e ? natural : natural / std::log(2.0);
        }
        return merge(parts, static_cast<std::size_t>(width), b, sink);
    }
};

// Pointers to the parts, as a backend takes them.
template <class P, ctxpar::lse_base Base>
struct part_list {
    std::vector<const void*> outs, lses;
    ctxpar::merge_parts<P, Base> parts;

    part_list(const partials<P>& from, bool with_sinks) {
        for (std::size_t i = 0; i < from.out.size(); ++i) {
            outs.push_back(from.out[i].data());
            lses.push_back(from.lse[i].data());
        }
        const P* none = nullptr;
        const ctxpar::lse<Base>* no_lse = nullptr;
        parts.out_parts = outs.data();
        parts.lse_parts = lses.data();
        parts.count = from.count;
        parts.out = ctxpar::dense_view(none, from.rows, from.heads, from.width);
        parts.lse_in = ctxpar::dense_view(no_lse, from.rows, from.heads, 1);
        parts.live = from.live.data();
        parts.live_stride = from.rows;
        parts.sinks = with_sinks ? from.sinks.data() : nullptr;
    }
};

// How far outputs in type Out may be from the merge in double: 1e-6 in relative L2 for fp32; a rounding of Out more.
template <class Out>
double merge_bound() {
    return 1e-6 + (sizeof(Out) == 4 ? 0.0 : std::ldexp(1.0, -1 - format_of<Out>().mantissa_bits));
}

} // namespace plain
