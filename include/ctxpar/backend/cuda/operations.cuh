// The operations of the CUDA backend: which kernel, how many blocks, which arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/backend/cuda/attend.cuh>
#include <ctxpar/backend/cuda/cache.cuh>
#include <ctxpar/backend/cuda/combine.cuh>
#include <ctxpar/backend/cuda/launch.cuh>
#include <ctxpar/backend/cuda/metadata.cuh>
#include <ctxpar/backend/cuda/move.cuh>

namespace ctxpar::inline v0_1 {

namespace cuda {

// Blocks for work that is cut into pieces; a kernel takes turns where there are more pieces than blocks.
inline unsigned blocks_for_pieces(std::int64_t pieces) {
    return static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, 65535));
}

inline constexpr unsigned vector_threads = 128; // four vectors a block

inline launch_size vectors(std::int64_t rows, std::int64_t heads) {
    return {blocks_for_pieces((rows * heads + 3) / 4), 1, vector_threads};
}

template <class P, lse_base Base>
parts_on_device<P, Base> parts_of(const merge_parts<P, Base>& parts) {
    require(parts.count <= most_kernel_parts, "parts", "a merge of ", parts.count,
            " parts was asked for; a launch takes at most ", most_kernel_parts);
    parts_on_device<P, Base> list{};
    for (std::int64_t i = 0; i < parts.count; ++i) {
        if (parts.out_parts != nullptr) list.outs.at[i] = parts.out_parts[i];
        if (parts.lse_parts != nullptr) list.lses.at[i] = parts.lse_parts[i];
    }
    list.lse_behind_vector = parts.lse_parts == nullptr;
    list.count = parts.count;
    list.out = parts.out;
    list.lse_in = parts.lse_in;
    list.live = parts.live;
    list.live_stride = parts.live_stride;
    list.sinks = parts.sinks;
    return list;
}

} // namespace cuda

template <class... Parameters, class... Arguments>
void cuda_backend::run(const cuda::launch_size& size, stream_type stream, void (*kernel)(Parameters...),
                       const Arguments&... arguments) {
    launches_->fetch_add(1, std::memory_order_relaxed);
    cuda::launch(size, stream, kernel, arguments...);
}

inline void cuda_backend::metadata(const metadata_args& args, stream_type stream) {
    const std::size_t shared = cuda::metadata_threads * sizeof(std::int32_t);
    run({1, 1, cuda::metadata_threads, shared}, stream, cuda::metadata_kernel<metadata_args>, args);
}

inline void cuda_backend::prefill_metadata(const prefill_metadata_args& args, stream_type stream) {
    run({cuda::blocks_for_pieces(args.law.split.pcp), 1, cuda::metadata_threads}, stream,
        cuda::prefill_metadata_kernel<prefill_metadata_args>, args);
}

inline void cuda_backend::piece_metadata(const piece_metadata_args& args, stream_type stream) {
    run({1, 1, cuda::metadata_threads}, stream, cuda::piece_metadata_kernel<piece_metadata_args>, args);
}

template <class E, class Kv>
void cuda_backend::append(const append_args<E, Kv>& args, stream_type stream) {
    if (args.k.rows == 0) return;
    run(cuda::vectors(args.k.rows, 1), stream, cuda::append_kernel<E, Kv>, args);
}

template <class Q, class Kv, class O>
void cuda_backend::attend(const attend_args<Q, Kv, O, lse_base::natural>& args, stream_type stream) {
    require(args.out.width <= cuda::most_value_width, "width", "values have ", args.out.width,
            " elements; the CUDA backend takes at most ", cuda::most_value_width);
    if (args.plan.rows == 0) return;
    const std::int64_t splits = std::max<std::int64_t>(1, args.scratch.max_splits);
    const auto warps = static_cast<unsigned>(std::clamp<std::int64_t>(args.q.heads, 1, 8));
    const cuda::launch_size size{cuda::blocks_for_pieces(args.plan.rows), cuda::blocks_for_pieces(splits),
                                 warps * cuda::warp_size};
    if (args.out.width <= 128) {
        run(size, stream, cuda::attend_kernel<4, Q, Kv, O>, args);
    } else if (args.out.width <= 256) {
        run(size, stream, cuda::attend_kernel<8, Q, Kv, O>, args);
    } else {
        run(size, stream, cuda::attend_kernel<16, Q, Kv, O>, args);
    }
    if (splits > 1)
        run(cuda::vectors(args.plan.rows, args.out.heads), stream, cuda::combine_splits_kernel<Q, Kv, O>, args);
}

template <class P, lse_base Base, lse_base OutBase>
void cuda_backend::scale(const merge_parts<P, Base>& lses, std::int64_t own_part, const head_view<const P>& own,
                         const head_view<P>& scaled, const state_origin& lse_first,
                         const head_view<lse<OutBase>>& lse_out, stream_type stream) {
    const cuda::parts_on_device<P, Base> list = cuda::parts_of(lses);
    if (own.rows == 0) return;
    run(cuda::vectors(own.rows, own.heads), stream, cuda::scale_kernel<P, Base, OutBase>, list, own_part, own, scaled,
        lse_first, lse_out);
}

template <class P, class Out, lse_base Base, lse_base OutBase>
void cuda_backend::merge(const merge_parts<P, Base>& parts, const head_view<Out>& out,
                         const head_view<lse<OutBase>>& lse_out, stream_type stream) {
    const cuda::parts_on_device<P, Base> list = cuda::parts_of(parts);
    if (out.rows == 0) return;
    run(cuda::vectors(out.rows, out.heads), stream, cuda::merge_kernel<P, Out, Base, OutBase>, list, out, lse_out);
}

template <lse_base Base>
void cuda_backend::accumulate(const accumulate_args<Base>& args, stream_type stream) {
    if (args.out.rows == 0) return;
    run(cuda::vectors(args.out.rows, args.out.heads), stream, cuda::accumulate_kernel<Base>, args);
}

template <class Out, lse_base Base, lse_base OutBase>
void cuda_backend::finish(const finish_args<Out, Base, OutBase>& args, stream_type stream) {
    if (args.out.rows == 0) return;
    run(cuda::vectors(args.out.rows, args.out.heads), stream, cuda::finish_kernel<Out, Base, OutBase>, args);
}

template <class P, class Out>
void cuda_backend::sum_parts(const void* const* parts, std::int64_t part_count, const head_view<const P>& shape,
                             const head_view<Out>& out, stream_type stream) {
    require(part_count <= cuda::most_kernel_parts, "parts", "a sum of ", part_count,
            " parts was asked for; a launch takes at most ", cuda::most_kernel_parts);
    if (out.rows == 0) return;
    cuda::part_list list{};
    std::copy_n(parts, part_count, list.at);
    run(cuda::vectors(out.rows, out.heads), stream, cuda::sum_parts_kernel<P, Out>, list, part_count, shape, out);
}

template <class P, lse_base Base>
void cuda_backend::pack(const head_view<const P>& out, const head_view<const lse<Base>>& lse_in,
                        const head_view<P>& packed, stream_type stream) {
    if (out.rows == 0) return;
    run(cuda::vectors(out.rows, out.heads), stream, cuda::pack_kernel<P, Base>, out, lse_in, packed);
}

template <class T>
void cuda_backend::move(const head_view<const T>& from, std::int64_t first_head, const index_view& rows, bool places,
                        std::int64_t count, const head_view<T>& to, stream_type stream) {
    if (count == 0) return;
    cuda::move_args args;
    args.from = cuda::bytes_of(from);
    args.to = cuda::bytes_of(to);
    args.rows = rows;
    args.move = places ? cuda::row_move::place : cuda::row_move::take;
    args.count = count;
    args.first_head = first_head;
    const T nothing{};
    if constexpr (sizeof(T) == sizeof(args.fill)) std::memcpy(&args.fill, &nothing, sizeof(args.fill));
    const std::int64_t piece = std::min(cuda::widest_piece(args.from), cuda::widest_piece(args.to));
    const cuda::launch_size size{cuda::blocks_for_pieces(count), 1, cuda::vector_threads};
    switch (piece) {
    case 16:
        return run(size, stream, cuda::move_rows_kernel<16>, args);
    case 8:
        return run(size, stream, cuda::move_rows_kernel<8>, args);
    case 4:
        return run(size, stream, cuda::move_rows_kernel<4>, args);
    case 2:
        return run(size, stream, cuda::move_rows_kernel<2>, args);
    default:
        return run(size, stream, cuda::move_rows_kernel<1>, args);
    }
}

template <class From, class To>
void cuda_backend::copy(const head_view<const From>& from, std::int64_t first_head, const head_view<To>& to,
                        stream_type stream) {
    if constexpr (std::is_same_v<From, To>) {
        move(from, first_head, {}, false, to.rows, to, stream);
    } else if (to.rows > 0) {
        run(cuda::vectors(to.rows, to.heads), stream, cuda::convert_kernel<From, To>, from, first_head, to);
    }
}

template <class T>
void cuda_backend::copy_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to,
                             stream_type stream) {
    move(from, 0, rows, false, to.rows, to, stream);
}

template <class T>
void cuda_backend::place_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to,
                              stream_type stream) {
    move(from, 0, rows, true, from.rows, to, stream);
}

template <class T>
void cuda_backend::clear_rows(const head_view<T>& to, stream_type stream) {
    move(head_view<const T>{}, 0, {}, false, to.rows, to, stream);
}

template <class From, class To>
void cuda_backend::copy_kv(const copy_kv_args<From, To>& args, stream_type stream) {
    if (args.rows == 0) return;
    run(cuda::vectors(args.rows, 1), stream, cuda::copy_kv_kernel<From, To>, args);
}

} // namespace ctxpar::inline v0_1
