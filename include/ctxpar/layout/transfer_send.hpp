// Carrying out a transfer: batches for an engine's own transport, and copies where both sides are one process.
//
// A transport is a callable send(src_rank, dst_rank, std::span<const transfer>). Either side may drive it: a source
// rank that writes names itself in the scope and calls for each target in turn; a target that reads, the other way.
//
//   ordering    transfers may be carried out in any order and at once; one pair's batches come one after another
//   completion  send() may return before the bytes have moved, with what it needs copied out of the span. The caller
//               waits for its transport's own handles after the call; only then may the target's tokens be used
//   failure     what send() throws passes through, and nothing more is sent. The target's blocks of these tokens hold
//               part of them and must not be used; the source is only read and is as it was. It can be sent again whole
//
// The library keeps no state of a transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/transfer.hpp>

namespace ctxpar::inline v0_1 {

// Calls send(src_rank, dst_rank, batch) with all transfers of a scope, at most buffer.size() at a time and those of one
// pair of ranks together; a batch lies in `buffer` and holds until send() returns. Pairs that have nothing to send are
// not called. Called by any thread, with a buffer of its own; allocates nothing. config_error "size" (no buffer), and
// those of transfer_plan::for_each, before the first call.
template <class Send>
void send_transfers(const transfer_plan& plan, const transfer_scope& scope, std::span<transfer> buffer, Send&& send) {
    require(!buffer.empty(), "size", "transfers were to be sent with a buffer of ", buffer.size(),
            " transfers; it must hold at least 1");
    std::size_t count = 0;
    std::int64_t src_rank = -1, dst_rank = -1;
    const auto flush = [&] {
        const std::span<const transfer> batch = buffer.first(count);
        count = 0;
        if (!batch.empty()) send(src_rank, dst_rank, batch);
    };
    plan.for_each(scope, [&](std::int64_t src, std::int64_t dst, const transfer& each) {
        if (count == buffer.size() || src != src_rank || dst != dst_rank) flush();
        src_rank = src;
        dst_rank = dst;
        buffer[count++] = each;
    });
    flush();
}

// The transport of one process, whose regions all lie in this process's host memory: copies a batch before it returns.
inline void copy_transfers(const transfer_rank& from, const transfer_rank& to, std::span<const transfer> batch) {
    for (const transfer& each : batch) {
        const auto src = static_cast<std::uintptr_t>(address_of(from.regions, each.src));
        const auto dst = static_cast<std::uintptr_t>(address_of(to.regions, each.dst));
        std::memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src),
                    static_cast<std::size_t>(each.bytes));
    }
}

} // namespace ctxpar::inline v0_1
