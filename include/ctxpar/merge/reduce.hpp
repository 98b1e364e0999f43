// How parts reach the rank that puts them together, and how parts are added.
//
// Parts are moved by the communicator's copy, or read in place where ranks can read each other's memory. Either way the
// receiver gets one pointer a rank, in rank order, so that merging and adding are written once and give the same bits
// over every transport. Sums are the backend's, in fp32 and rank order; a transport's own reduction is used only where
// it has one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/merge/merge.hpp>

namespace ctxpar::inline v0_1 {

// One pointer a rank of the group.
struct part_pointers {
    std::array<const void*, max_merge_parts> at{};
};

namespace detail {
inline const std::byte* bytes_at(const void* base, std::size_t offset) {
    return static_cast<const std::byte*>(base) + offset;
}
} // namespace detail

// Sends part i of `send` (bytes_per_peer each) to rank i; at[i] is what rank i sent here. Read in place where possible:
// then nothing of `send` may change until end_parts(). `recv` has room for N parts.
template <communicator C>
part_pointers exchange_parts(C& kv, const void* send, void* recv, std::size_t bytes_per_peer,
                             typename C::stream_type stream, const collective_note& note) {
    part_pointers parts;
    const auto rank = static_cast<std::size_t>(kv.rank());
    const auto size = static_cast<std::size_t>(kv.size());
    if constexpr (peer_communicator<C>) {
        const auto peers = kv.publish(send, bytes_per_peer, stream, note);
        for (std::size_t i = 0; i < size; ++i) parts.at[i] = detail::bytes_at(peers[i], rank * bytes_per_peer);
    } else {
        kv.all_to_all(send, recv, bytes_per_peer, stream, note);
        for (std::size_t i = 0; i < size; ++i) parts.at[i] = detail::bytes_at(recv, i * bytes_per_peer);
    }
    return parts;
}

// Sends `own` to every rank; at[i] is rank i's. `own` lies at recv + rank * bytes.
template <communicator C>
part_pointers gather_parts(C& kv, void* recv, std::size_t bytes, typename C::stream_type stream,
                           const collective_note& note) {
    part_pointers parts;
    const auto rank = static_cast<std::size_t>(kv.rank());
    const auto size = static_cast<std::size_t>(kv.size());
    const void* own = detail::bytes_at(recv, rank * bytes);
    if constexpr (peer_communicator<C>) {
        const auto peers = kv.publish(own, bytes, stream, note);
        for (std::size_t i = 0; i < size; ++i) parts.at[i] = peers[i];
    } else {
        kv.all_gather(own, recv, bytes, stream, note);
        for (std::size_t i = 0; i < size; ++i) parts.at[i] = detail::bytes_at(recv, i * bytes);
    }
    return parts;
}

// The parts of the last exchange_parts or gather_parts are not read any more.
template <communicator C>
void end_parts(C& kv, typename C::stream_type stream) {
    if constexpr (peer_communicator<C>) kv.release(stream);
}

// The send and receive side of a reduction: N chunks of `chunk` elements each. `recv` is scratch.
template <class P>
struct reduction {
    P* send = nullptr;
    P* recv = nullptr;
    std::int64_t chunk = 0;
    collective_note note;
};

// out = sum over ranks of this rank's chunk. `shape` is a chunk's layout, its base is not used.
template <communicator C, class Backend, class P, class Out>
void reduce_scatter(C& kv, Backend& backend, const reduction<P>& data, head_view<const P> shape,
                    const head_view<Out>& out, typename C::stream_type stream) {
    if constexpr (reducing_communicator<C>) {
        kv.reduce_scatter(data.send, data.recv, static_cast<std::size_t>(data.chunk), scalar_type_of<P>, stream,
                          data.note);
        shape.base = data.recv;
        backend.copy(shape, 0, out, stream);
    } else {
        const auto bytes = static_cast<std::size_t>(data.chunk) * sizeof(P);
        const part_pointers parts = exchange_parts(kv, data.send, data.recv, bytes, stream, data.note);
        backend.sum_parts(parts.at.data(), kv.size(), shape, out, stream);
        end_parts(kv, stream);
    }
}

// sums = sum over ranks of all chunks, of which the first `total` elements count. `sums` has room for N chunks.
template <communicator C, class Backend, class P>
void all_reduce(C& kv, Backend& backend, const reduction<P>& data, P* sums, std::int64_t total,
                typename C::stream_type stream) {
    if constexpr (reducing_communicator<C>) {
        kv.all_reduce(data.send, sums, static_cast<std::size_t>(total), scalar_type_of<P>, stream, data.note);
    } else {
        const std::int64_t start = kv.rank() * data.chunk;
        const std::int64_t rest = start < total ? total - start : 0;
        const std::int64_t count = rest < data.chunk ? rest : data.chunk;
        P* const own = sums + start;
        const P* none = nullptr;
        reduce_scatter(kv, backend, data, dense_view(none, 1, 1, count), dense_view(own, 1, 1, count), stream);
        kv.all_gather(own, sums, static_cast<std::size_t>(data.chunk) * sizeof(P), stream, data.note);
    }
}

} // namespace ctxpar::inline v0_1
