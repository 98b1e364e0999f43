// A2A: one message to each rank of the group with the outputs of its heads (and, in a prefill, its rows), the fp32 LSE
// as raw bits behind each vector; each rank then merges its own. Two collectives with the Q gather.
//
// The attention writes its outputs and LSEs straight into the message where it can (an LSE must lie on 4 bytes);
// otherwise they are packed.
#pragma once

#include <cstdint>

#include <ctxpar/merge/merge.hpp>
#include <ctxpar/merge/reduce.hpp>

namespace ctxpar::inline v0_1::merge {

template <class P, lse_base Base>
struct a2a_buffers {
    P* send = nullptr;            // N messages, see message_view, of vectors of pitch elements
    P* received = nullptr;        // the same
    P* own = nullptr;             // [R][Hg][dv] where outputs are packed from here
    lse<Base>* own_lse = nullptr; // [R][Hg]
};

struct a2a {
    static constexpr const char* name() { return "a2a"; }
    static constexpr bool scatters_heads() { return true; }
    static constexpr bool knows_all_lse() { return false; }

    static constexpr void schedule(const exchange_shape& shape, collective_schedule& list) {
        const std::int64_t vectors = shape.owned_rows() * shape.scattered_heads();
        const std::int64_t vector_bytes =
            shape.value_width * shape.partial_bytes + static_cast<std::int64_t>(sizeof(float));
        list.add({collective_op::all_to_all, group_role::kv, shape.partial_type, static_cast<std::int32_t>(shape.ranks),
                  static_cast<std::uint64_t>(vectors * vector_bytes), "outputs with LSE"});
    }

    template <class P, lse_base Base>
    static a2a_buffers<P, Base> carve(carver& memory, const exchange_shape& shape) {
        const std::int64_t vectors = shape.rows * shape.gathered_heads;
        a2a_buffers<P, Base> buffers;
        buffers.send = memory.take<P>(vectors * pitch<P>(shape));
        buffers.received = memory.take<P>(shape.ranks > 1 ? vectors * pitch<P>(shape) : 0);
        const bool packs = must_pack<P>(shape);
        buffers.own = memory.take<P>(packs ? vectors * shape.value_width : 0);
        buffers.own_lse = memory.take<lse<Base>>(packs ? vectors : 0);
        return buffers;
    }

    template <class P, lse_base Base>
    static partial_views<P, Base> partials(const exchange_shape& shape, std::int64_t,
                                           const a2a_buffers<P, Base>& buffers) {
        if (must_pack<P>(shape)) {
            return {dense_view(buffers.own, shape.rows, shape.gathered_heads, shape.value_width),
                    dense_view(buffers.own_lse, shape.rows, shape.gathered_heads, 1)};
        }
        // An LSE is one element of its own view, whose strides count fp32 numbers.
        auto* lses = reinterpret_cast<lse<Base>*>(buffers.send == nullptr ? nullptr : buffers.send + shape.value_width);
        const auto in_floats = static_cast<std::int64_t>(sizeof(float) / sizeof(P));
        return {message_view(shape, buffers.send, shape.value_width, pitch<P>(shape)),
                message_view(shape, lses, 1, pitch<P>(shape) / in_floats)};
    }

    template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    static void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const a2a_buffers<P, Base>& buffers,
                    typename C::stream_type stream) {
        const exchange_shape& shape = call.shape;
        if (must_pack<P>(shape)) {
            const partial_views<P, Base> own = partials(shape, call.rank, buffers);
            backend.pack(head_view<const P>(own.out), head_view<const lse<Base>>(own.lse_out),
                         message_view(shape, buffers.send, shape.value_width, pitch<P>(shape)), stream);
        }
        const std::int64_t rows = shape.owned_rows();
        const std::int64_t heads = shape.scattered_heads();
        const auto bytes = static_cast<std::size_t>(rows * heads * pitch<P>(shape)) * sizeof(P);
        const part_pointers from = exchange_parts(kv, buffers.send, buffers.received, bytes, stream,
                                                  {"outputs with LSE", scalar_type_of<P>, call.digest});
        const P* none = nullptr;
        merge_parts<P, Base> parts;
        parts.out_parts = from.at.data();
        parts.count = shape.ranks;
        parts.out = blocked_view(none, 1, rows, heads, shape.value_width, pitch<P>(shape));
        parts.live = call.live == nullptr ? nullptr : call.live + shape.first_owned_row(call.rank);
        parts.live_stride = call.live_stride;
        parts.sinks = call.sinks == nullptr ? nullptr : call.sinks + call.first_head;
        backend.merge(parts, call.out, call.lse_out, stream);
        end_parts(kv, stream);
    }

private:
    // Elements from one vector to the next: the outputs and four bytes of LSE.
    template <class P>
    static constexpr std::int64_t pitch(const exchange_shape& shape) {
        return shape.value_width + static_cast<std::int64_t>(sizeof(float) / sizeof(P));
    }
    template <class P>
    static constexpr bool must_pack(const exchange_shape& shape) {
        return shape.dense_partials || shape.value_width * static_cast<std::int64_t>(sizeof(P)) % 4 != 0;
    }
};

static_assert(merge_policy<a2a>);

} // namespace ctxpar::inline v0_1::merge
