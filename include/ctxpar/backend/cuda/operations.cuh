// The operations of the CUDA backend: which kernel, how many blocks, which arguments.
//
// A C++ file that holds a decoder by `extern template` calls them from the file that instantiates it. They are marked
// as used, or a compiler that has put all their calls inline would not emit them.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/backend/cuda/attend_output.cuh>
#include <ctxpar/backend/cuda/attend_plain.cuh>
#include <ctxpar/backend/cuda/attend_splits.cuh>
#include <ctxpar/backend/cuda/attend_tiles.cuh>
#include <ctxpar/backend/cuda/cache.cuh>
#include <ctxpar/backend/cuda/combine.cuh>
#include <ctxpar/backend/cuda/launch.cuh>
#include <ctxpar/backend/cuda/metadata.cuh>
#include <ctxpar/backend/cuda/move.cuh>
#include <ctxpar/backend/cuda/reshard.cuh>
#include <ctxpar/backend/cuda/tuning.hpp>

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

inline device_facts facts_of_device() {
    int device = 0, major = 0, minor = 0;
    device_facts facts;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&facts.processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    facts.capability = 10 * major + minor;
    return facts;
}

// Whether there are matrix units for these types.
template <class Q, class Kv>
inline constexpr bool fits_matrix_units = (std::is_same_v<Q, bf16> || std::is_same_v<Q, f16>)&&(std::is_same_v<Q, Kv> ||
                                                                                                sizeof(Kv) == 1);

// Whether every row of queries, keys and values is a number of 16-byte pieces, at a multiple of 16 bytes.
template <class T>
bool is_aligned(const kv_plane<T>& plane, std::int64_t width) {
    const auto size = static_cast<std::int64_t>(sizeof(T));
    const auto base = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(plane.base) % 16);
    const std::int64_t bytes[] = {base,
                                  plane.page_byte_offset,
                                  plane.page_stride * size,
                                  plane.token_stride * size,
                                  plane.head_stride * size,
                                  width * size};
    return std::all_of(std::begin(bytes), std::end(bytes), [](std::int64_t x) { return x % 16 == 0; });
}
template <class Q, class Kv>
bool rows_are_aligned(const attend_call<Q, Kv>& call) {
    const auto& args = call.attend;
    return widest_piece(bytes_of(args.q)) == 16 && is_aligned(args.cache.k, args.q.width) &&
           (values_in_keys(args.cache) || is_aligned(args.cache.v, args.out.width));
}

// The rows of `to` from those of `from`, or, where rows go to places, the other way round; nothing is T{}.
template <class T>
move_args moved_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to,
                     std::int64_t count) {
    move_args args;
    args.from = bytes_of(from);
    args.to = bytes_of(to);
    args.rows = rows;
    args.count = count;
    const T nothing{};
    if constexpr (sizeof(T) == sizeof(args.fill)) std::memcpy(&args.fill, &nothing, sizeof(args.fill));
    return args;
}

// Calls use(width as a type) for `width`, of which only `Known` is compiled where it is not 0.
template <int Known, class Use>
void for_width(int width, const Use& use) {
    const auto when = [&](auto candidate) {
        constexpr int size = decltype(candidate)::value;
        if constexpr (Known == 0 || Known == size) {
            if (width == size) use(candidate);
        }
    };
    when(std::integral_constant<int, 64>{});
    when(std::integral_constant<int, 96>{});
    when(std::integral_constant<int, 128>{});
    when(std::integral_constant<int, 192>{});
    when(std::integral_constant<int, 256>{});
    when(std::integral_constant<int, latent_key_width>{});
}

// The same for the columns that a lane of the plain kernel has.
template <int Known, class Use>
void for_plain_width(std::int64_t width, const Use& use) {
    const auto when = [&](std::int64_t from, auto candidate) {
        constexpr std::int64_t most = decltype(candidate)::value * 32;
        if constexpr (Known == 0 || (Known <= most && (most == 128 || 2 * Known > most))) {
            if (width > from && width <= most) use(candidate);
        }
    };
    when(0, std::integral_constant<int, 4>{});
    when(128, std::integral_constant<int, 8>{});
    when(256, std::integral_constant<int, 16>{});
}

} // namespace cuda

template <probabilities Kept>
template <class... Arguments>
void basic_cuda_backend<Kept>::run(const cuda::launch_size& size, stream_type stream, void (*kernel)(Arguments...),
                                   const std::type_identity_t<Arguments>&... arguments) {
    state_->launches.fetch_add(1, std::memory_order_relaxed);
    cuda::launch(size, stream, kernel, arguments...);
}

template <probabilities Kept>
void basic_cuda_backend<Kept>::metadata(const metadata_args& args, stream_type stream) {
    const std::size_t shared = cuda::metadata_threads * sizeof(std::int32_t);
    run({1, 1, cuda::metadata_threads, shared}, stream, cuda::metadata_kernel<metadata_args>, args);
}

template <probabilities Kept>
template <std::same_as<prefill_metadata_args> Args>
[[gnu::used]] void basic_cuda_backend<Kept>::prefill_metadata(const Args& args, stream_type stream) {
    run({cuda::blocks_for_pieces(args.law.split.pcp), 1, cuda::metadata_threads}, stream,
        cuda::prefill_metadata_kernel<Args>, args);
}

template <probabilities Kept>
template <std::same_as<piece_metadata_args> Args>
[[gnu::used]] void basic_cuda_backend<Kept>::piece_metadata(const Args& args, stream_type stream) {
    run({1, 1, cuda::metadata_threads}, stream, cuda::piece_metadata_kernel<Args>, args);
}

template <probabilities Kept>
template <std::same_as<reshard_args> Args>
[[gnu::used]] void basic_cuda_backend<Kept>::reshard_metadata(const Args& args, stream_type stream) {
    constexpr std::int64_t warps = cuda::reshard_threads / cuda::warp_size;
    run({1 + cuda::blocks_for_pieces((2 * args.ranks + warps - 1) / warps), 1, cuda::reshard_threads,
         cuda::reshard_threads * sizeof(reshard_status)},
        stream, cuda::reshard_metadata_kernel<Args>, args);
}

template <probabilities Kept>
template <class E, class Kv>
[[gnu::used]] void basic_cuda_backend<Kept>::append(const append_args<E, Kv>& args, stream_type stream) {
    if (args.k.rows == 0) return;
    run(cuda::vectors(args.k.rows, 1), stream, cuda::append_kernel<E, Kv>, args);
}

template <probabilities Kept>
cuda::device_facts basic_cuda_backend<Kept>::device() {
    cuda::device_facts known = state_->device.load();
    if (known.capability != 0) return known;
    const cuda::device_facts found = cuda::facts_of_device();
    return state_->device.compare_exchange_strong(known, found) ? found : known;
}

template <probabilities Kept>
split_rule basic_cuda_backend<Kept>::splits(const split_work& work) {
    int current = 0;
    if (cudaGetDevice(&current) != cudaSuccess) return {}; // the first operation tells
    return cuda::splits_for(work, device().processors);
}

template <probabilities Kept>
template <class Q, class Kv, class O>
[[gnu::used]] void basic_cuda_backend<Kept>::attend(const attend_args<Q, Kv, O, lse_base::natural>& args,
                                                    stream_type stream) {
    attend(sized_attend_args<Q, Kv, O, lse_base::natural, 0, 0>{args}, stream);
}

template <probabilities Kept>
template <class Q, class Kv, class O, std::int64_t QueryWidth, std::int64_t ValueWidth>
[[gnu::used]] void
basic_cuda_backend<Kept>::attend(const sized_attend_args<Q, Kv, O, lse_base::natural, QueryWidth, ValueWidth>& args,
                                 stream_type stream) {
    require(args.out.width <= cuda::most_value_width, "width", "values have ", args.out.width,
            " elements; the CUDA backend takes at most ", cuda::most_value_width);
    if (args.plan.rows > 0) attend<QueryWidth, ValueWidth>(cuda::attend_call_of(args), stream);
}

template <probabilities Kept>
template <std::int64_t QueryWidth, std::int64_t ValueWidth, class Q, class Kv>
void basic_cuda_backend<Kept>::attend(const cuda::attend_call<Q, Kv>& call, stream_type stream) {
    const auto& args = call.attend;
    constexpr int known = cuda::tile_width_of(QueryWidth, ValueWidth); // 0: not known, -1: no tiles for it
    bool done = false;
    if constexpr (cuda::fits_matrix_units<Q, Kv>) {
        const int width = cuda::rows_are_aligned(call) ? cuda::tile_width_of(args.q.width, args.out.width) : -1;
        cuda::for_width<known>(width, [&](auto found) {
            constexpr int size = decltype(found)::value;
            if constexpr (size == cuda::latent_key_width) {
                if (values_in_keys(args.cache)) done = attend_tiles<size, cuda::latent_value_width, true>(call, stream);
            } else {
                if (!values_in_keys(args.cache)) done = attend_tiles<size, size, false>(call, stream);
            }
        });
    }
    if (!done) {
        cuda::for_plain_width<static_cast<int>(ValueWidth)>(
            args.out.width, [&](auto found) { attend_plain<decltype(found)::value>(call, stream); });
    }
    if (args.scratch.max_splits > 1)
        run(cuda::vectors(args.plan.rows, args.out.heads), stream, cuda::combine_splits_kernel<Q>,
            cuda::splits_call_of(call));
}

template <probabilities Kept>
template <int KeyWidth, int ValueWidth, bool SharedValues, class Q, class Kv>
bool basic_cuda_backend<Kept>::attend_tiles(const cuda::attend_call<Q, Kv>& call, stream_type stream) {
    using weight = typename cuda::tile_layout<cuda::tiles<KeyWidth, ValueWidth, SharedValues, false, 1>, Q, Kv>::weight;
    constexpr int terms = Kept == probabilities::rounded ? 1 : (std::is_same_v<weight, bf16> ? 3 : 2);
    using few = cuda::tiles<KeyWidth, ValueWidth, SharedValues, false, terms>;
    using many = cuda::tiles<KeyWidth, ValueWidth, SharedValues, true, terms>;
    const std::int64_t group = call.attend.q.heads / call.attend.cache.kv_heads;
    const bool wants_many = group * call.attend.plan.rows_per_request > few::shape.rows();
    if (wants_many && launch_tiles<many>(call, stream)) return true;
    return launch_tiles<few>(call, stream);
}

template <probabilities Kept>
template <class Tiles, class Q, class Kv>
bool basic_cuda_backend<Kept>::launch_tiles(const cuda::attend_call<Q, Kv>& call, stream_type stream) {
    using layout = cuda::tile_layout<Tiles, Q, Kv>;
    constexpr cuda::tile_shape shape = Tiles::shape;
    const cuda::device_facts facts = device();
    const cuda::device_limits limits = cuda::limits_of(facts.capability);
    const int stages = cuda::stages_for(limits, layout::stages, layout::stage_bytes, shape.max_stages);
    if (stages == 0) return false;
    const int shared = layout::stages + stages * layout::stage_bytes;
    const auto& args = call.attend;
    const std::int64_t group = args.q.heads / args.cache.kv_heads;
    const std::int64_t row_items = args.plan.rows * group / shape.rows() + args.plan.segments;
    const std::int64_t pieces = row_items * args.cache.kv_heads * std::max<std::int64_t>(1, args.scratch.max_splits);
    const std::int64_t at_once =
        std::int64_t{facts.processors} * std::max(1, limits.shared_per_processor / (shared + 1024));
    const cuda::launch_size size{static_cast<unsigned>(std::min(pieces, at_once)), 1,
                                 static_cast<unsigned>(shape.threads()), static_cast<std::size_t>(shared)};
    const auto kernel = cuda::attend_tiles_kernel<Tiles, Q, Kv>;
    cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                "cudaFuncSetAttribute");
    run(size, stream, kernel, call, stages);
    return true;
}

template <probabilities Kept>
template <int Columns, class Q, class Kv>
void basic_cuda_backend<Kept>::attend_plain(const cuda::attend_call<Q, Kv>& call, stream_type stream) {
    const auto& args = call.attend;
    const auto warps = static_cast<unsigned>(std::clamp<std::int64_t>(args.q.heads, 1, 8));
    const cuda::launch_size size{cuda::blocks_for_pieces(args.plan.rows),
                                 cuda::blocks_for_pieces(args.scratch.max_splits), warps * cuda::warp_size};
    run(size, stream, cuda::attend_plain_kernel<Columns, Q, Kv>, call, cuda::rows_are_aligned(call));
}

template <probabilities Kept>
template <class P, lse_base Base, lse_base OutBase>
[[gnu::used]] void basic_cuda_backend<Kept>::scale(const merge_parts<P, Base>& lses, std::int64_t own_part,
                                                   const head_view<const P>& own, const head_view<P>& scaled,
                                                   const state_origin& lse_first,
                                                   const head_view<lse<OutBase>>& lse_out, stream_type stream) {
    const cuda::parts_on_device<P, Base> list = cuda::parts_of(lses);
    if (own.rows == 0) return;
    run(cuda::vectors(own.rows, own.heads), stream, cuda::scale_kernel<P, Base, OutBase>, list, own_part, own, scaled,
        lse_first, lse_out);
}

template <probabilities Kept>
template <class P, class Out, lse_base Base, lse_base OutBase>
[[gnu::used]] void basic_cuda_backend<Kept>::merge(const merge_parts<P, Base>& parts, const head_view<Out>& out,
                                                   const head_view<lse<OutBase>>& lse_out, stream_type stream) {
    const cuda::parts_on_device<P, Base> list = cuda::parts_of(parts);
    if (out.rows == 0) return;
    run(cuda::vectors(out.rows, out.heads), stream, cuda::merge_kernel<P, Out, Base, OutBase>, list, out, lse_out);
}

template <probabilities Kept>
template <lse_base Base>
[[gnu::used]] void basic_cuda_backend<Kept>::accumulate(const accumulate_args<Base>& args, stream_type stream) {
    if (args.out.rows == 0) return;
    run(cuda::vectors(args.out.rows, args.out.heads), stream, cuda::accumulate_kernel<Base>, args);
}

template <probabilities Kept>
template <class Out, lse_base Base, lse_base OutBase>
[[gnu::used]] void basic_cuda_backend<Kept>::finish(const finish_args<Out, Base, OutBase>& args, stream_type stream) {
    if (args.out.rows == 0) return;
    run(cuda::vectors(args.out.rows, args.out.heads), stream, cuda::finish_kernel<Out, Base, OutBase>, args);
}

template <probabilities Kept>
template <class P, class Out>
[[gnu::used]] void basic_cuda_backend<Kept>::sum_parts(const void* const* parts, std::int64_t part_count,
                                                       const head_view<const P>& shape, const head_view<Out>& out,
                                                       stream_type stream) {
    require(part_count <= cuda::most_kernel_parts, "parts", "a sum of ", part_count,
            " parts was asked for; a launch takes at most ", cuda::most_kernel_parts);
    if (out.rows == 0) return;
    cuda::part_list list{};
    std::copy_n(parts, part_count, list.at);
    run(cuda::vectors(out.rows, out.heads), stream, cuda::sum_parts_kernel<P, Out>, list, part_count, shape, out);
}

template <probabilities Kept>
template <class P, lse_base Base>
[[gnu::used]] void basic_cuda_backend<Kept>::pack(const head_view<const P>& out,
                                                  const head_view<const lse<Base>>& lse_in, const head_view<P>& packed,
                                                  stream_type stream) {
    if (out.rows == 0) return;
    run(cuda::vectors(out.rows, out.heads), stream, cuda::pack_kernel<P, Base>, out, lse_in, packed);
}

// Widths between those that are compiled are rare, and moved in narrower pieces.
template <probabilities Kept>
void basic_cuda_backend<Kept>::move(const cuda::move_args& args, stream_type stream) {
    if (args.count == 0) return;
    const std::int64_t piece = std::min(cuda::widest_piece(args.from), cuda::widest_piece(args.to));
    const auto kernel = piece >= 16  ? cuda::move_rows_kernel<16>
                        : piece >= 4 ? cuda::move_rows_kernel<4>
                                     : cuda::move_rows_kernel<1>;
    run({cuda::blocks_for_pieces(args.count), 1, cuda::vector_threads}, stream, kernel, args);
}

template <probabilities Kept>
template <class From, class To>
[[gnu::used]] void basic_cuda_backend<Kept>::copy(const head_view<const From>& from, std::int64_t first_head,
                                                  const head_view<To>& to, stream_type stream) {
    if constexpr (std::is_same_v<From, To>) {
        cuda::move_args args = cuda::moved_rows(from, {}, to, to.rows);
        args.first_head = first_head;
        move(args, stream);
    } else if (to.rows > 0) {
        run(cuda::vectors(to.rows, to.heads), stream, cuda::convert_kernel<From, To>, from, first_head, to);
    }
}

template <probabilities Kept>
template <class T>
[[gnu::used]] void basic_cuda_backend<Kept>::copy_rows(const head_view<const T>& from, const index_view& rows,
                                                       const head_view<T>& to, stream_type stream) {
    move(cuda::moved_rows(from, rows, to, to.rows), stream);
}

template <probabilities Kept>
template <class T>
[[gnu::used]] void basic_cuda_backend<Kept>::place_rows(const head_view<const T>& from, const index_view& rows,
                                                        const head_view<T>& to, stream_type stream) {
    cuda::move_args args = cuda::moved_rows(from, rows, to, from.rows);
    args.move = cuda::row_move::place;
    move(args, stream);
}

template <probabilities Kept>
template <class T>
[[gnu::used]] void basic_cuda_backend<Kept>::clear_rows(const head_view<T>& to, stream_type stream) {
    move(cuda::moved_rows(head_view<const T>{}, {}, to, to.rows), stream);
}

template <probabilities Kept>
template <class From, class To>
[[gnu::used]] void basic_cuda_backend<Kept>::copy_kv(const copy_kv_args<From, To>& args, stream_type stream) {
    if (args.rows == 0) return;
    run(cuda::vectors(args.rows, 1), stream, cuda::copy_kv_kernel<From, To>, args);
}

// What is no template of its own: for files that only declare the backend.
template void basic_cuda_backend<probabilities::exact>::metadata(const metadata_args&, stream_type);
template void basic_cuda_backend<probabilities::rounded>::metadata(const metadata_args&, stream_type);
template split_rule basic_cuda_backend<probabilities::exact>::splits(const split_work&);
template split_rule basic_cuda_backend<probabilities::rounded>::splits(const split_work&);

} // namespace ctxpar::inline v0_1
