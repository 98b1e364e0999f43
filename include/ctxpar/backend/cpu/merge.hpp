// Merging partial states on the CPU: weights once per (row, head), then a weighted sum over the columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/combine.hpp>
#include <ctxpar/backend/cpu/isa.hpp>

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
void merge_row(isa set, const merge_parts<P, Base>& parts, std::int64_t row, const head_view<Out>& out,
               const head_view<lse<OutBase>>& lse_out) {
    const combine_function<P, Out> combine = combine_of<P, Out>(set);
    const P* vectors[max_merge_parts]; // those that have weight
    float weight[max_merge_parts];
    for (std::int64_t head = 0; head < out.heads; ++head) {
        const merge_weights<Base> weights = weights_of(parts, row, head);
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < parts.count && !weights.broken(); ++i) {
            const lse<Base> part = parts.lse_of(i, row, head);
            if (!weights.has_weight(part, parts.empty(i, row))) continue;
            vectors[count] = parts.vector(i, row, head);
            weight[count++] = weights.weight(part);
        }
        Out* const to = out.at(row, head);
        if (count == 0) {
            std::fill_n(to, out.width, static_cast<Out>(weights.broken() ? weights.result().value : 0.0F));
        } else {
            combine(vectors, weight, count, out.width, to);
        }
        write_lse(lse_out, row, head, weights.result());
    }
}

// One row, all heads: scaled = own O times its weight among all parts, 0 where the own part has none. `own` and
// `scaled` may be the same memory.
template <class P, lse_base Base, lse_base OutBase>
void scale_row(isa set, const merge_parts<P, Base>& lses, std::int64_t own_part, std::int64_t row,
               const head_view<const P>& own, const head_view<P>& scaled, const state_origin& lse_first,
               const head_view<lse<OutBase>>& lse_out) {
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
            combine_of<P, P>(set)(&from, &weight, 1, own.width, to);
        }
        const std::int64_t lse_row = row - lse_first.row;
        const std::int64_t lse_head = head - lse_first.head;
        if (lse_row >= 0 && lse_row < lse_out.rows && lse_head >= 0 && lse_head < lse_out.heads)
            write_lse(lse_out, lse_row, lse_head, weights.result());
    }
}

// One row, all heads: out = sum_i part_i, in the order of the parts, in fp32.
template <class P, class Out>
void sum_row(isa set, const void* const* parts, std::int64_t count, const head_view<const P>& shape, std::int64_t row,
             const head_view<Out>& out) {
    const combine_function<P, Out> combine = combine_of<P, Out>(set);
    const P* vectors[max_merge_parts];
    float ones[max_merge_parts];
    std::fill_n(ones, count, 1.0F);
    for (std::int64_t head = 0; head < out.heads; ++head) {
        const std::int64_t offset = shape.offset(row, head);
        for (std::int64_t i = 0; i < count; ++i) vectors[i] = static_cast<const P*>(parts[i]) + offset;
        combine(vectors, ones, count, out.width, out.at(row, head));
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
void copy_row(isa set, const head_view<const From>& from, std::int64_t first_head, const head_view<To>& to,
              std::int64_t row) {
    for (std::int64_t head = 0; head < to.heads; ++head) {
        const From* source = from.at(row, first_head + head);
        To* target = to.at(row, head);
        if constexpr (std::is_same_v<From, To>) {
            std::copy_n(source, to.width, target);
        } else {
            const float one = 1.0F;
            combine_of<From, To>(set)(&source, &one, 1, to.width, target);
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
