// What a merge is: the step that makes one softmax of the N partial ones that the ranks of a group computed over their
// shards. This file holds the contract of a merge policy, and the collective schedule it states.
//
// Before a merge every rank has a partial (O, LSE) of all gathered heads Hg over its own keys; after it, rank g of the
// group has the exact output of some heads: of heads [g*Hg/N, (g+1)*Hg/N) where the merge scatters heads, of any heads
// where it does not.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/core/view.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace ctxpar::inline v0_1 {

// How partial outputs cross ranks: as fp32 (exact to fp32), or rounded to the policy's element type (half the bytes).
enum class partial : std::uint8_t { fp32, output };

// What a layer asks of a communicator. Over one that only moves bytes a reduce_scatter is an all_to_all and a sum, an
// all_reduce that and an all_gather of the sums.
enum class collective_op : std::uint8_t { all_gather, all_to_all, reduce_scatter, all_reduce };

// The group in which a collective happens; see groups<> in decode.hpp.
enum class group_role : std::uint8_t { kv, query, heads, rows };

constexpr const char* name_of(collective_op op) {
    switch (op) {
    case collective_op::all_gather:
        return "all_gather";
    case collective_op::all_to_all:
        return "all_to_all";
    case collective_op::reduce_scatter:
        return "reduce_scatter";
    case collective_op::all_reduce:
        break;
    }
    return "all_reduce";
}

// One collective as a plan states it.
struct collective_call {
    collective_op op = collective_op::all_gather;
    group_role group = group_role::kv;
    scalar_type type = scalar_type::bytes; // of the payload
    std::int32_t size = 1;                 // ranks of the group
    std::uint64_t bytes = 0;               // sent to each other rank of the group
    const char* what = "";                 // e.g. "queries"; static storage

    constexpr std::uint64_t bytes_sent() const { return bytes * static_cast<std::uint64_t>(size - 1); }
};

// The collectives of one layer, in order. Byte formulas, checked builds and tests all read this array, and the merges
// make their calls from it.
struct collective_schedule {
    static constexpr int capacity = 8;
    std::array<collective_call, capacity> calls{};
    std::int32_t count = 0;

    // Appends a call; one in a group of one rank is no call at all.
    constexpr void add(const collective_call& call) {
        if (call.size <= 1) return;
        calls[static_cast<std::size_t>(count)] = call;
        ++count;
    }

    constexpr std::uint64_t bytes_sent() const {
        std::uint64_t bytes = 0;
        for (int i = 0; i < count; ++i) bytes += calls[static_cast<std::size_t>(i)].bytes_sent();
        return bytes;
    }
};

static_assert(std::is_trivially_copyable_v<collective_schedule>);

// All that bytes and collectives of a layer depend on; every rank of a group has the same values.
struct exchange_shape {
    std::int64_t ranks = 1;          // N, ranks that share the KV
    std::int64_t distinct_tp = 1;    // m, different tp coordinates among them
    std::int64_t rows = 0;           // R, query rows
    std::int64_t gathered_heads = 1; // Hg, heads every rank evaluates
    std::int64_t query_width = 1;
    std::int64_t value_width = 1;
    std::int64_t query_bytes = 2;   // of one element of Q
    std::int64_t partial_bytes = 2; // of one element of a partial output on its way
    std::int64_t output_bytes = 2;  // of one element of the merged output
    scalar_type query_type = scalar_type::bytes;
    scalar_type partial_type = scalar_type::bytes;
    scalar_type output_type = scalar_type::bytes;
    bool replicated_q = false;   // every rank already holds all Hg heads of Q
    bool merged_lse = false;     // the merged LSE is wanted too
    bool dense_partials = false; // the attention can only write dense [R][Hg][dv] and [R][Hg]
    output_placement placement = output_placement::own_heads;

    constexpr std::int64_t heads_per_rank() const { return gathered_heads / distinct_tp; } // Hl
    constexpr bool scatters() const { return gathered_heads % ranks == 0; }                // Hg/N is whole
};

// Where the attention of this rank writes its partial states.
template <class P, lse_base Base>
struct partial_views {
    head_view<P> out;             // [R][Hg][dv]
    head_view<lse<Base>> lse_out; // [R][Hg]
};

// What a merge is asked for, apart from the communicator, the backend and its buffers.
template <class Out, lse_base OutBase>
struct merge_call {
    exchange_shape shape;
    std::int64_t rank = 0;              // g, this rank's place in the group
    const std::uint8_t* live = nullptr; // [N][live_stride]: 0 where a rank has no visible key for a row
    std::int64_t live_stride = 0;
    const float* sinks = nullptr;    // [Hg] natural logits, or null
    std::int64_t first_head = 0;     // of the Hg heads, those wanted are [first_head, first_head + out.heads)
    head_view<Out> out;              // [R][heads wanted][dv]
    std::int64_t lse_first_head = 0; // the same for the merged LSE
    head_view<lse<OutBase>> lse_out; // [R][heads], or a null base
    std::uint64_t digest = 0;        // of the plan, for the notes of collectives
};

// The first of the heads that a scattering merge leaves on rank g, and how many there are.
constexpr head_range scattered_heads(const exchange_shape& shape, std::int64_t rank) {
    const std::int64_t count = shape.gathered_heads / shape.ranks;
    return {rank * count, (rank + 1) * count};
}

// A merge policy has
//   name                    a word for tables
//   scatters_heads()        whether it leaves rank g with heads [g*Hg/N, (g+1)*Hg/N) only
//   knows_all_lse()         whether the merged LSE of every head is known on every rank
//   schedule(shape, list)   adds its collectives to the list; asked for N > 1 only
//   carve<P, Base>(carver, shape) -> buffers          its scratch memory
//   partials(shape, rank, buffers) -> partial_views   where the attention writes
//   run(kv, backend, call, buffers, stream)           makes the calls of its schedule; all ranks of the group, N > 1
template <class M>
concept merge_policy = requires(const M merge, const exchange_shape shape, collective_schedule& list, carver& memory,
                                std::int64_t rank) {
    { merge.scatters_heads() } -> std::convertible_to<bool>;
    { merge.knows_all_lse() } -> std::convertible_to<bool>;
    { merge.name() } -> std::convertible_to<const char*>;
    merge.schedule(shape, list);
    {
        merge.partials(shape, rank, merge.template carve<float, lse_base::natural>(memory, shape))
        } -> std::same_as<partial_views<float, lse_base::natural>>;
};

namespace detail {
// FNV-1a over plain values: the digest by which ranks agree on policy, shapes and schedule.
class digest {
public:
    constexpr digest& add(std::uint64_t value) {
        for (int byte = 0; byte < 8; ++byte) {
            state_ = (state_ ^ (value >> (8 * byte) & 0xffU)) * 0x100000001b3ULL;
        }
        return *this;
    }
    constexpr digest& add_signed(std::int64_t value) { return add(static_cast<std::uint64_t>(value)); }
    constexpr std::uint64_t value() const { return state_; }

private:
    std::uint64_t state_ = 0xcbf29ce484222325ULL;
};
} // namespace detail

} // namespace ctxpar::inline v0_1
