// Heads over ranks, before and after the merge: queries of the group's heads are gathered, merged heads are put back.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/view.hpp>
#include <ctxpar/merge/exchange.hpp>

namespace ctxpar::inline v0_1 {

// The queries of all Hg heads: [m][R][Hl][dq] in `gathered`, the tp ranks of the group in order. `query` is the group
// of those m ranks; null or of size 1: `q` itself, and no one is talked to. All ranks of the group call it.
// Where rows are spread over row_owners ranks too, which run fastest in the group, the result has the rows of all.
template <communicator C, class Backend, class E>
head_view<const E> gather_queries(C* query, Backend& backend, const head_view<const E>& q, E* gathered,
                                  std::uint64_t digest, typename C::stream_type stream, std::int64_t row_owners = 1) {
    const std::int64_t size = group_size(query);
    if (size == 1) return q;
    const std::int64_t part = q.rows * q.heads * q.width;
    const void* send = q.base;
    if (!q.is_dense()) {
        E* const own = gathered + query->rank() * part;
        backend.copy(q, 0, dense_view(own, q.rows, q.heads, q.width), stream);
        send = own;
    }
    query->all_gather(send, gathered, static_cast<std::size_t>(part) * sizeof(E), stream,
                      {"queries", scalar_type_of<E>, digest});
    return blocked_view(static_cast<const E*>(gathered), size / row_owners, q.rows * row_owners, q.heads, q.width);
}

// Gathers what a merge scattered over `group`: rank i's part lies at gathered + i * part elements, [R][heads][width],
// this rank's own is already there. The heads of all ranks, in order, go to `out`. All ranks of the group call it.
template <communicator C, class Backend, class T>
void restore_heads(C& group, Backend& backend, T* gathered, const head_view<T>& out, const collective_note& note,
                   typename C::stream_type stream) {
    const std::int64_t heads = out.heads / group.size();
    const std::int64_t part = out.rows * heads * out.width;
    group.all_gather(gathered + group.rank() * part, gathered, static_cast<std::size_t>(part) * sizeof(T), stream,
                     note);
    backend.copy(blocked_view(static_cast<const T*>(gathered), group.size(), out.rows, heads, out.width), 0, out,
                 stream);
}

} // namespace ctxpar::inline v0_1
