// What a merge is: the step that makes one softmax of the N partial ones that the ranks of a group computed over their
// shards. This file holds the contract of a merge policy, and the collective schedule it states.
//
// Before a merge every rank has a partial (O, LSE) of all gathered heads Hg over its own keys; after it, rank g of the
// group has the exact output of some heads: of heads [g*Hg/N, (g+1)*Hg/N) where the merge scatters heads, of any heads
// where it does not. A merge may also leave the last sum to the caller: then every rank has a share of all Hg heads,
// and the shares of all ranks add up to the output.
//
// In a prefill the rows too belong to different ranks: those of a group's s PCP coordinates were gathered, rank g owns
// the rows of coordinate g mod s, and a merge leaves it with those only. Its heads are then those of its tp coordinate
// g / s. A group's ranks run over PCP first, so (heads of g / s, rows of g mod s) lie one after another by rank: to a
// merge it is one more way to cut [rows][heads] into N messages.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/error.hpp>
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
    std::int32_t calls = 1;                // made one after another; bytes are those of all of them

    constexpr std::uint64_t bytes_sent() const { return bytes * static_cast<std::uint64_t>(size - 1); }
};

// The collectives of one layer, in order. Byte formulas,
// checked builds and tests all read this array, and the merges make their calls from it.
struct collective_schedule {
    static constexpr int capacity = 12;
    std::array<collective_call, capacity> calls{};
    std::int32_t count = 0;

    // Appends a call; one in a group of one rank is no call at all.
    constexpr void add(const collective_call& call) {
        if (call.size <= 1) return;
        calls[static_cast<std::size_t>(count)] = call;
        ++count;
    }

    constexpr void add_all(const collective_schedule& more) {
        for (int i = 0; i < more.count; ++i) add(more.calls[static_cast<std::size_t>(i)]);
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
    std::int64_t rows = 0;           // R, query rows that every rank evaluates
    std::int64_t row_owners = 1;     // s, ranks among which those rows are spread; 1: every rank owns all of them
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
    constexpr std::int64_t owned_rows() const { return rows / row_owners; }
    constexpr std::int64_t first_owned_row(std::int64_t rank) const { return rank % row_owners * owned_rows(); }

    // Whether a merge can leave every rank with the same number of (row, head) states; with one row owner Hg/N heads.
    constexpr bool scatters() const { return gathered_heads * row_owners % ranks == 0; }
    constexpr std::int64_t head_blocks() const { return ranks / row_owners; }
    constexpr std::int64_t scattered_heads() const { return gathered_heads / head_blocks(); }
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
    head_view<Out> out;              // [owned rows][heads wanted][dv]
    std::int64_t lse_first_head = 0; // the same for the merged LSE
    head_view<lse<OutBase>> lse_out; // [owned rows][heads], or a null base
    std::uint64_t digest = 0;        // of the plan, for the notes of collectives
};

// The heads that a scattering merge leaves on rank g.
constexpr head_range scattered_heads(const exchange_shape& shape, std::int64_t rank) {
    const std::int64_t count = shape.scattered_heads();
    const std::int64_t block = rank / shape.row_owners;
    return {block * count, (block + 1) * count};
}

// All states [R][Hg] cut into one message a rank: the rows and heads that rank g is left with lie in part g, as a dense
// [owned rows][scattered heads] of vectors that take `pitch` elements each (0: width).
template <class T>
constexpr head_view<T> message_view(const exchange_shape& shape, T* base, std::int64_t width, std::int64_t pitch = 0) {
    return blocked_view(base, shape.head_blocks(), shape.rows, shape.scattered_heads(), width, pitch);
}

// A merge policy has
//   name                    a word for tables
//   scatters_heads()        whether it leaves rank g with heads [g*Hg/N, (g+1)*Hg/N) only
//   knows_all_lse()         whether the merged LSE of every head is known on every rank
//   schedule(shape, list)   adds its collectives to the list; asked for N > 1 only
//   carve<P, Base>(carver, shape) -> buffers          its scratch memory
//   partials(shape, rank, buffers) -> partial_views   where the attention writes
//   run(kv, backend, call, buffers, stream)           makes the calls of its schedule; all ranks of the group, N > 1
// and, where it leaves partial sums,
//   leaves_partial_sums()   true: the output placement must be partial_sums, and with any other merge must not
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

// Whether the ranks' outputs of a merge are shares that still have to be added.
template <merge_policy Merge>
constexpr bool leaves_partial_sums(const Merge& merge) {
    if constexpr (requires {
                      { merge.leaves_partial_sums() } -> std::convertible_to<bool>;
                  }) {
        return merge.leaves_partial_sums();
    } else {
        return false;
    }
}

namespace detail {
// Refuses a merge and a placement of which only one is of partial sums.
template <merge_policy Merge>
void check_placement(const Merge& merge, output_placement placement) {
    const bool shares = leaves_partial_sums(merge);
    require(shares == (placement == output_placement::partial_sums), "placement", "merge ", merge.name(), " leaves ",
            shares ? "partial sums of all gathered heads" : "merged heads", " and the output is placed ",
            name_of(placement),
            "; legal are merge::deferred with partial_sums, and other merges with own_heads, "
            "scattered or all_heads");
}

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
