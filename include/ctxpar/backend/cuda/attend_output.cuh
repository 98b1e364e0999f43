// Where attention writes: fp32, or the type of the queries. One kernel writes either.
#pragma once

#include <type_traits>

#include <ctxpar/backend/backend.hpp>

namespace ctxpar::inline v0_1::cuda {

// What an attention kernel is given.
template <class Q, class Kv>
struct attend_call {
    attend_args<Q, Kv, float, lse_base::natural> attend; // `out` says where elements lie, of either type
    Q* narrow_base = nullptr;                            // not null: the output is of the queries' type, from here on
};
template <class Q, class Kv, class O>
attend_call<Q, Kv> attend_call_of(const attend_args<Q, Kv, O, lse_base::natural>& from) {
    static_assert(std::is_same_v<O, float> || std::is_same_v<O, Q>,
                  "ctxpar: attention writes fp32 or the type of the queries");
    attend_call<Q, Kv> call;
    const head_view<O>& out = from.out;
    call.attend.plan = from.plan;
    call.attend.q = from.q;
    call.attend.cache = from.cache;
    call.attend.lse_out = from.lse_out;
    call.attend.score = from.score;
    call.attend.scratch = from.scratch;
    call.attend.out = {nullptr,          out.rows,       out.heads,      out.width, out.heads_per_block,
                       out.block_stride, out.row_stride, out.head_stride};
    if constexpr (std::is_same_v<O, float>) {
        call.attend.out.base = out.base;
    } else {
        call.narrow_base = out.base;
    }
    return call;
}

} // namespace ctxpar::inline v0_1::cuda
