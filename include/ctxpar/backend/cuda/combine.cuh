// Partial states on a device: merge, scale, sum, pack. A warp takes one (row, head) at a time; every lane works out the
// weights of all parts, which are few, and then takes its columns.
//
// The rules, and the order in which parts are added, are those of softmax_state.hpp and of the CPU: parts in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/pieces.cuh>
#include <ctxpar/core/bits.hpp>

namespace ctxpar::inline v0_1::cuda {

// The pointers of parts as a kernel gets them; a launch refuses more.
inline constexpr std::int64_t most_kernel_parts = 64;

struct part_list {
    const void* at[most_kernel_parts];
};

template <class P, lse_base Base>
struct parts_on_device {
    part_list outs;
    part_list lses;
    bool lse_behind_vector; // A2A: each LSE lies behind its vector, as raw bits
    std::int64_t count;
    head_view<const P> out;
    head_view<const lse<Base>> lse_in;
    const std::uint8_t* live;
    std::int64_t live_stride;
    const float* sinks;

    CTXPAR_DEVICE const P* vector(std::int64_t part, std::int64_t row, std::int64_t head) const {
        return static_cast<const P*>(outs.at[part]) + out.offset(row, head);
    }
    CTXPAR_DEVICE lse<Base> lse_of(std::int64_t part, std::int64_t row, std::int64_t head) const {
        if (!lse_behind_vector) return static_cast<const lse<Base>*>(lses.at[part])[lse_in.offset(row, head)];
        std::uint32_t bits = 0; // of any alignment
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(vector(part, row, head) + out.width);
        for (int i = 0; i < 4; ++i) bits |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
        return {bits_as<float>(bits)};
    }
    CTXPAR_DEVICE bool empty(std::int64_t part, std::int64_t row) const {
        return live != nullptr && live[part * live_stride + row] == 0;
    }
};

// The weights of all parts of one (row, head).
template <class P, lse_base Base>
CTXPAR_DEVICE merge_weights<Base> weights_of(const parts_on_device<P, Base>& parts, std::int64_t row,
                                             std::int64_t head) {
    merge_weights<Base> weights;
    const float sink = parts.sinks == nullptr ? 0.0F : lse_cast<Base>(natural_lse{parts.sinks[head]}).value;
    for (std::int64_t i = 0; i < parts.count; ++i) weights.see(parts.lse_of(i, row, head), parts.empty(i, row));
    if (parts.sinks != nullptr) weights.see_sink(sink);
    for (std::int64_t i = 0; i < parts.count; ++i) weights.add(parts.lse_of(i, row, head), parts.empty(i, row));
    if (parts.sinks != nullptr) weights.add_sink(sink);
    return weights;
}

// Calls use(row, head) for every vector, a warp each.
template <class Use>
CTXPAR_DEVICE void each_vector(std::int64_t rows, std::int64_t heads, const Use& use) {
    const std::int64_t warps = block_threads() / warp_size;
    const std::int64_t first = block_x() * warps + thread_index() / warp_size;
    for (std::int64_t i = first; i < rows * heads; i += grid_x() * warps) use(i / heads, i % heads);
}

template <class P, class Out, lse_base Base, lse_base OutBase>
CTXPAR_KERNEL void merge_kernel(parts_on_device<P, Base> parts, head_view<Out> out, head_view<lse<OutBase>> lse_out) {
    each_vector(out.rows, out.heads, [&](std::int64_t row, std::int64_t head) {
        const merge_weights<Base> weights = weights_of(parts, row, head);
        Out* const to = out.at(row, head);
        std::uintptr_t bits = address_bits(to);
        for (std::int64_t i = 0; i < parts.count; ++i) bits |= address_bits(parts.vector(i, row, head));
        each_piece_of<sizeof(P), sizeof(Out)>(out.width, bits, [&](auto size, std::int64_t d) {
            constexpr int count = decltype(size)::value;
            piece_of_floats<count> sum;
            for (float& x : sum.at) x = weights.broken() ? float_nan : 0.0F;
            for (std::int64_t i = 0; i < parts.count && !weights.broken(); ++i) {
                const lse<Base> part = parts.lse_of(i, row, head);
                if (!weights.has_weight(part, parts.empty(i, row))) continue;
                const float weight = weights.weight(part);
                const auto piece = read_piece<count>(parts.vector(i, row, head) + d);
                for (int x = 0; x < count; ++x) sum.at[x] += weight * piece.at[x];
            }
            write_piece(to + d, sum);
        });
        sync_warp(); // the LSE may take the place of a part's, which other lanes still read
        if (lse_out.base != nullptr && lane_index() == 0) *lse_out.at(row, head) = lse_cast<OutBase>(weights.result());
    });
}

// scaled = own O times its weight among all parts, 0 where it has none; the merged LSE of the rows and heads from
// `first` on goes to lse_out, as many as it has. `own` and `scaled` may be the same memory.
template <class P, lse_base Base, lse_base OutBase>
CTXPAR_KERNEL void scale_kernel(parts_on_device<P, Base> lses, std::int64_t own_part, head_view<const P> own,
                                head_view<P> scaled, state_origin first, head_view<lse<OutBase>> lse_out) {
    each_vector(own.rows, own.heads, [&](std::int64_t row, std::int64_t head) {
        const merge_weights<Base> weights = weights_of(lses, row, head);
        const lse<Base> part = lses.lse_of(own_part, row, head);
        const bool counts = !weights.broken() && weights.has_weight(part, lses.empty(own_part, row));
        const float weight = counts ? weights.weight(part) : 0.0F;
        const P* const from = own.at(row, head);
        P* const to = scaled.at(row, head);
        const float nothing = weights.broken() ? float_nan : 0.0F;
        each_piece_of<sizeof(P)>(own.width, address_bits(from, to), [&](auto size, std::int64_t d) {
            piece_of_floats<decltype(size)::value> piece;
            if (counts) piece = read_piece<decltype(size)::value>(from + d);
            for (float& x : piece.at) x = counts ? weight * x : nothing;
            write_piece(to + d, piece);
        });
        const std::int64_t lse_row = row - first.row;
        const std::int64_t lse_head = head - first.head;
        const bool wanted = lse_row >= 0 && lse_row < lse_out.rows && lse_head >= 0 && lse_head < lse_out.heads;
        if (wanted && lse_out.base != nullptr && lane_index() == 0)
            *lse_out.at(lse_row, lse_head) = lse_cast<OutBase>(weights.result());
    });
}

// out = sum of the parts in their order; `shape` says where a part's elements lie relative to its pointer.
template <class P, class Out>
CTXPAR_KERNEL void sum_parts_kernel(part_list parts, std::int64_t count, head_view<const P> shape, head_view<Out> out) {
    each_vector(out.rows, out.heads, [&](std::int64_t row, std::int64_t head) {
        const std::int64_t offset = shape.offset(row, head);
        Out* const to = out.at(row, head);
        std::uintptr_t bits = address_bits(to);
        for (std::int64_t i = 0; i < count; ++i) bits |= address_bits(static_cast<const P*>(parts.at[i]) + offset);
        each_piece_of<sizeof(P), sizeof(Out)>(out.width, bits, [&](auto size, std::int64_t d) {
            constexpr int elements = decltype(size)::value;
            piece_of_floats<elements> sum = {};
            for (std::int64_t i = 0; i < count; ++i) {
                const auto piece = read_piece<elements>(static_cast<const P*>(parts.at[i]) + offset + d);
                for (int x = 0; x < elements; ++x) sum.at[x] += piece.at[x];
            }
            write_piece(to + d, sum);
        });
    });
}

// Vectors to where they are sent from, each followed by the raw bits of its LSE, at any alignment.
template <class P, lse_base Base>
CTXPAR_KERNEL void pack_kernel(head_view<const P> out, head_view<const lse<Base>> lse_in, head_view<P> packed) {
    each_vector(out.rows, out.heads, [&](std::int64_t row, std::int64_t head) {
        const P* const from = out.at(row, head);
        P* const to = packed.at(row, head);
        copy_vector(from, out.width, to);
        if (lane_index() < sizeof(float)) {
            const auto bits = bits_as<std::uint32_t>(lse_in.at(row, head)->value);
            reinterpret_cast<std::uint8_t*>(to + out.width)[lane_index()] =
                static_cast<std::uint8_t>(bits >> (8 * lane_index()));
        }
    });
}

// Heads [first_head, first_head + to.heads) of `from`, converted.
template <class From, class To>
CTXPAR_KERNEL void convert_kernel(head_view<const From> from, std::int64_t first_head, head_view<To> to) {
    each_vector(to.rows, to.heads, [&](std::int64_t row, std::int64_t head) {
        const From* const source = from.at(row, first_head + head);
        To* const target = to.at(row, head);
        each_piece_of<sizeof(From), sizeof(To)>(to.width, address_bits(source, target), [&](auto size, std::int64_t d) {
            write_piece(target + d, read_piece<decltype(size)::value>(source + d));
        });
    });
}

// One more partial state of each (row, head) is taken into those that have grown so far.
template <lse_base Base>
CTXPAR_KERNEL void accumulate_kernel(accumulate_args<Base> args) {
    each_vector(args.out.rows, args.out.heads, [&](std::int64_t row, std::int64_t head) {
        growing_lse<Base> state;
        if (!args.first) state = *args.lse_out.at(row, head);
        sync_warp(); // the state is written below, which other lanes still read
        const bool empty = args.live != nullptr && args.live[row] == 0;
        const auto factor = state.add(*args.part_lse.at(row, head), empty);
        const float* const part = args.part.at(row, head);
        float* const sum = args.out.at(row, head);
        each_piece_of<sizeof(float)>(args.out.width, address_bits(part, sum), [&](auto size, std::int64_t d) {
            constexpr int count = decltype(size)::value;
            piece_of_floats<count> value = {};
            if (!args.first && factor.own != 0.0F) {
                value = read_piece<count>(sum + d);
                for (float& x : value.at) x = factor.own * x;
            }
            if (factor.part != 0.0F) {
                const auto more = read_piece<count>(part + d);
                for (int x = 0; x < count; ++x) value.at[x] += factor.part * more.at[x];
            }
            write_piece(sum + d, value);
        });
        if (lane_index() == 0) *args.lse_out.at(row, head) = state;
    });
}

template <class Out, lse_base Base, lse_base OutBase>
CTXPAR_KERNEL void finish_kernel(finish_args<Out, Base, OutBase> args) {
    each_vector(args.out.rows, args.out.heads, [&](std::int64_t row, std::int64_t head) {
        growing_lse<Base> state = *args.sum_lse.at(row, head);
        const bool nothing = is_minus_infinity(state.high);
        float factor = 1.0F;
        if (args.sinks != nullptr) factor = state.add(lse_cast<Base>(natural_lse{args.sinks[head]})).own;
        const bool broken = is_nan_or_plus_infinity(state.high);
        const float* const sum = args.sum.at(row, head);
        Out* const out = args.out.at(row, head);
        each_piece_of<sizeof(float), sizeof(Out)>(args.out.width, address_bits(sum, out),
                                                  [&](auto size, std::int64_t d) {
                                                      piece_of_floats<decltype(size)::value> piece = {};
                                                      if (!broken && !nothing)
                                                          piece = read_piece<decltype(size)::value>(sum + d);
                                                      for (float& x : piece.at) x = broken ? state.high : factor * x;
                                                      write_piece(out + d, piece);
                                                  });
        if (args.lse_out.base != nullptr && lane_index() == 0)
            *args.lse_out.at(row, head) = lse_cast<OutBase>(state.result());
    });
}

} // namespace ctxpar::inline v0_1::cuda
