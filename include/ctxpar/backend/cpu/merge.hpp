// Merging partial states on the CPU: weights once per (row, head), then plain loops over the columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>

namespace ctxpar::inline v0_1::cpu {

// A natural sink logit in base Base.
template <lse_base Base>
lse<Base> sink_in(float logit) {
    return lse_cast<Base>(natural_lse{logit});
}

// The weights of all parts of one (row, head).
template <class P, lse_base Base>
merge_weights<Base> weights_of(const merge_parts<P, Base>& parts, std::int64_t row, std::int64_t head) {
    merge_weights<Base> weights;
    for (std::int64_t i = 0; i < parts.count; ++i) weights.see(parts.lse_of(i, row, head), parts.empty(i, row));
    if (parts.sinks != nullptr) weights.see_sink(sink_in<Base>(parts.sinks[head]).value);
    for (std::int64_t i = 0; i < parts.count; ++i) weights.add(parts.lse_of(i, row, head), parts.empty(i, row));
    if (parts.sinks != nullptr) weights.add_sink(sink_in<Base>(parts.sinks[head]).value);
    return weights;
}

template <lse_base To, lse_base From>
void write_lse(const head_view<lse<To>>& out, std::int64_t row, std::int64_t head, lse<From> value) {
    if (out.base != nullptr) *out.at(row, head) = lse_cast<To>(value);
}

// One row, all heads: out = sum_i weight_i * O_i. A broken LSE makes the row NaN, whatever the payloads are.
template <class P, class Out, lse_base Base, lse_base OutBase>
void merge_row(const merge_parts<P, Base>& parts, std::int64_t row, const head_view<Out>& out,
               const head_view<lse<OutBase>>& lse_out) {
    constexpr std::int64_t step = 64;
    float weight[max_merge_parts];
    bool read[max_merge_parts];
    for (std::int64_t head = 0; head < out.heads; ++head) {
        const merge_weights<Base> weights = weights_of(parts, row, head);
        for (std::int64_t i = 0; i < parts.count; ++i) {
            const lse<Base> part = parts.lse_of(i, row, head);
            read[i] = !weights.broken() && weights.has_weight(part, parts.empty(i, row));
            weight[i] = weights.weight(part, parts.empty(i, row));
        }
        const float start = weights.broken() ? weights.result().value : 0.0F;
        Out* to = out.at(row, head);
        for (std::int64_t d0 = 0; d0 < out.width; d0 += step) {
            const std::int64_t columns = std::min(step, out.width - d0);
            float sum[step];
            std::fill_n(sum, step, start);
            for (std::int64_t i = 0; i < parts.count; ++i) {
                if (!read[i]) continue;
                const P* from = parts.vector(i, row, head) + d0;
                for (std::int64_t d = 0; d < columns; ++d) sum[d] += weight[i] * static_cast<float>(from[d]);
            }
            for (std::int64_t d = 0; d < columns; ++d) to[d0 + d] = static_cast<Out>(sum[d]);
        }
        write_lse(lse_out, row, head, weights.result());
    }
}

// One row, all heads: scaled = own O times its weight among all parts, 0 where the own part has none. `own` and
// `scaled` may be the same memory.
template <class P, lse_base Base, lse_base OutBase>
void scale_row(const merge_parts<P, Base>& lses, std::int64_t own_part, std::int64_t row, const head_view<const P>& own,
               const head_view<P>& scaled, const state_origin& lse_first, const head_view<lse<OutBase>>& lse_out) {
    for (std::int64_t head = 0; head < own.heads; ++head) {
        const merge_weights<Base> weights = weights_of(lses, row, head);
        const lse<Base> part = lses.lse_of(own_part, row, head);
        const bool empty = lses.empty(own_part, row);
        const P* from = own.at(row, head);
        P* to = scaled.at(row, head);
        if (weights.broken()) {
            std::fill_n(to, own.width, static_cast<P>(weights.result().value));
        } else if (!weights.has_weight(part, empty)) {
            std::fill_n(to, own.width, P{});
        } else {
            const float weight = weights.weight(part);
            for (std::int64_t d = 0; d < own.width; ++d) to[d] = static_cast<P>(weight * static_cast<float>(from[d]));
        }
        const std::int64_t lse_row = row - lse_first.row;
        const std::int64_t lse_head = head - lse_first.head;
        if (lse_row >= 0 && lse_row < lse_out.rows && lse_head >= 0 && lse_head < lse_out.heads)
            write_lse(lse_out, lse_row, lse_head, weights.result());
    }
}

// One row, all heads: out = sum_i part_i, in the order of the parts, in fp32.
template <class P, class Out>
void sum_row(const void* const* parts, std::int64_t count, const head_view<const P>& shape, std::int64_t row,
             const head_view<Out>& out) {
    constexpr std::int64_t step = 64;
    for (std::int64_t head = 0; head < out.heads; ++head) {
        const std::int64_t offset = shape.offset(row, head);
        for (std::int64_t d0 = 0; d0 < out.width; d0 += step) {
            const std::int64_t columns = std::min(step, out.width - d0);
            float sum[step] = {};
            for (std::int64_t i = 0; i < count; ++i) {
                const P* from = static_cast<const P*>(parts[i]) + offset + d0;
                for (std::int64_t d = 0; d < columns; ++d) sum[d] += static_cast<float>(from[d]);
            }
            Out* to = out.at(row, head) + d0;
            for (std::int64_t d = 0; d < columns; ++d) to[d] = static_cast<Out>(sum[d]);
        }
    }
}

// One row, all heads: each LSE as raw bits behind its vector.
template <class P, lse_base Base>
void pack_row(const head_view<const P>& out, const head_view<const lse<Base>>& lse_in, const head_view<P>& packed,
              std::int64_t row) {
    for (std::int64_t head = 0; head < out.heads; ++head) {
        P* to = packed.at(row, head);
        std::copy_n(out.at(row, head), out.width, to);
        std::memcpy(static_cast<void*>(to + out.width), lse_in.at(row, head), sizeof(lse<Base>));
    }
}

template <class From, class To>
void copy_row(const head_view<const From>& from, std::int64_t first_head, const head_view<To>& to, std::int64_t row) {
    for (std::int64_t head = 0; head < to.heads; ++head) {
        const From* source = from.at(row, first_head + head);
        To* target = to.at(row, head);
        if constexpr (std::is_same_v<From, To>) {
            std::copy_n(source, to.width, target);
        } else {
            for (std::int64_t d = 0; d < to.width; ++d) target[d] = static_cast<To>(static_cast<float>(source[d]));
        }
    }
}

// One row, all heads: out = own * out + part's factor * part.
template <lse_base Base>
void accumulate_row(const accumulate_args<Base>& args, std::int64_t row) {
    const bool empty = args.live != nullptr && args.live[row] == 0;
    for (std::int64_t head = 0; head < args.out.heads; ++head) {
        growing_lse<Base>& state = *args.lse_out.at(row, head);
        if (args.first) state = {};
        const auto factor = state.add(*args.part_lse.at(row, head), empty);
        const float* const part = args.part.at(row, head);
        float* const sum = args.out.at(row, head);
        if (args.first && factor.part == 0.0F) {
            std::fill_n(sum, args.out.width, 0.0F);
        } else if (factor.own == 0.0F) {
            for (std::int64_t d = 0; d < args.out.width; ++d) sum[d] = factor.part * part[d];
        } else if (factor.part != 0.0F) {
            for (std::int64_t d = 0; d < args.out.width; ++d) sum[d] = factor.own * sum[d] + factor.part * part[d];
        }
    }
}

// One row, all heads.
template <class Out, lse_base Base, lse_base OutBase>
void finish_row(const finish_args<Out, Base, OutBase>& args, std::int64_t row) {
    for (std::int64_t head = 0; head < args.out.heads; ++head) {
        growing_lse<Base> state = *args.sum_lse.at(row, head);
        const bool nothing = is_minus_infinity(state.high);
        float factor = 1.0F;
        if (args.sinks != nullptr) factor = state.add(sink_in<Base>(args.sinks[head])).own;
        const float* const sum = args.sum.at(row, head);
        Out* const out = args.out.at(row, head);
        const bool broken = is_nan_or_plus_infinity(state.high);
        for (std::int64_t d = 0; d < args.out.width; ++d)
            out[d] = static_cast<Out>(broken ? state.high : (nothing ? 0.0F : factor * sum[d]));
        write_lse(args.lse_out, row, head, state.result());
    }
}

} // namespace ctxpar::inline v0_1::cpu
