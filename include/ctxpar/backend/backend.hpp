// What a backend is: the arithmetic of context-parallel attention on one device, behind a few operations.
//
// A backend allocates nothing and never waits for its device; it works on the caller's stream, on views of the
// caller's memory, and does not branch on what lies on the device. Head widths, page layout, masks and shards reach it
// as values. It does not know merges, communicators or groups.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/attention/prefill_pieces.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/attention/rows.hpp>
#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/core/view.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/reshard_part.hpp>

namespace ctxpar::inline v0_1 {

// Options of one layer.
struct score_options {
    float scale = 0.0F;    // of q.k
    float soft_cap = 0.0F; // cap * tanh(score / cap) where > 0
};

// Memory an attend needs apart from its inputs and outputs; carved by the plan.
struct attend_scratch {
    float* split_out = nullptr;       // [max_splits][rows][heads][dv], where max_splits > 1
    natural_lse* split_lse = nullptr; // [max_splits][rows][heads]
    std::int64_t max_splits = 1;
    float* threads = nullptr; // [threads][thread_floats]
    std::int64_t thread_floats = 0;
};

// What the attention of a step may look at, the same for every layer.
struct attention_plan {
    step_arrays arrays;        // intervals, segments, row_lengths and row_requests, local_lengths
    block_table table;         // this rank's block ids
    std::int64_t rows = 0;     // query rows, padding included
    std::int64_t requests = 0; // rows of the table and of local_lengths
    std::int64_t segments = 0; // runs of rows, those of padding included
    std::int64_t heads = 0;    // gathered query heads, Hg
    std::int64_t kv_heads = 0;
    std::int64_t query_width = 0;
    std::int64_t value_width = 0;
    std::int64_t rows_per_request = 1; // usual ones; it follows from the shape alone, so kernels may be chosen by it
    void* memory = nullptr;            // of an attention callable that asked for plan_bytes
};

// Attention of all rows over this rank's keys: O = sum_j p_j v_j and its LSE, O = 0 and LSE = -inf for a row that sees
// nothing. Query head h reads KV head h / (heads / kv_heads).
template <class Q, class Kv, class O, lse_base Base>
struct attend_args {
    attention_plan plan;
    head_view<const Q> q; // [rows][heads][dq]
    kv_view<const Kv> cache;
    head_view<O> out;             // [rows][heads][dv]
    head_view<lse<Base>> lse_out; // [rows][heads]
    score_options score;
    attend_scratch scratch;
};

// The same where widths of queries and values are known when the program is compiled (0: they are not), so that a
// backend need not compile a kernel for every width.
template <class Q, class Kv, class O, lse_base Base, std::int64_t QueryWidth, std::int64_t ValueWidth>
struct sized_attend_args : attend_args<Q, Kv, O, Base> {};

// Writing of new rows: row i goes to slots[i], -1 skips it. Where the cache's scale is per token, the scale is computed
// from the row (largest magnitude over the type's largest number) and stored; other scales are read.
//
// GQA: k and v are [rows][kv_heads][width]. MLA: k is the latent part and v the rope part of the one cached row.
template <class E, class Kv>
struct append_args {
    head_view<const E> k;
    head_view<const E> v;
    index_view slots; // [rows]
    kv_view<Kv> cache;
    bool values_in_keys = false; // MLA
};

// Copying of cached rows: row i is slot slots[i] of `from` and becomes slot to_slots[i] of `to`; from -1 it becomes
// zeros, to -1 it is not copied. Rows do not overlap. Without `dequantise` the types are equal and bits are copied,
// scales too where `to` has one a token; with it the values times their scales are.
template <class From, class To>
struct copy_kv_args {
    kv_view<const From> from;
    index_view slots; // [rows]; null data: slot i is row i
    kv_view<To> to;
    std::int64_t rows = 0;
    bool values_in_keys = false; // MLA: only the keys' rows exist
    bool dequantise = false;
    index_view to_slots; // [rows]; null data: row i is slot i
};

// The N partial states of some heads, wherever they lie: part i's O is at out_parts[i] in the shape of `out` (whose
// base is not used), its LSE at lse_parts[i] in the shape of `lse_in`. Without lse_parts each LSE lies, as raw bits of
// any alignment, right behind the vector it belongs to.
template <class P, lse_base Base>
struct merge_parts {
    const void* const* out_parts = nullptr; // [count], host array; null where only LSEs are looked at
    const void* const* lse_parts = nullptr; // [count], host array, or null
    std::int64_t count = 0;                 // at most max_merge_parts
    head_view<const P> out;                 // [rows][heads][dv]
    head_view<const lse<Base>> lse_in;      // [rows][heads]
    const std::uint8_t* live = nullptr;     // [count][live_stride], null: no part is empty by length
    std::int64_t live_stride = 0;
    const float* sinks = nullptr; // [heads] natural logits, or null

    CTXPAR_HD const P* vector(std::int64_t part, std::int64_t row, std::int64_t head) const {
        return static_cast<const P*>(out_parts[part]) + out.offset(row, head);
    }
    CTXPAR_HD lse<Base> lse_of(std::int64_t part, std::int64_t row, std::int64_t head) const {
        if (lse_parts != nullptr) return static_cast<const lse<Base>*>(lse_parts[part])[lse_in.offset(row, head)];
        float value = 0.0F;
        std::memcpy(&value, vector(part, row, head) + out.width, sizeof(value));
        return {value};
    }
    CTXPAR_HD bool empty(std::int64_t part, std::int64_t row) const {
        return live != nullptr && live[part * live_stride + row] == 0;
    }
};

inline constexpr std::int64_t max_merge_parts = 256;

// One more partial state of some rows, taken into the states that have grown so far (growing_lse).
template <lse_base Base>
struct accumulate_args {
    head_view<const float> part;          // [rows][heads][dv]
    head_view<const lse<Base>> part_lse;  // [rows][heads]
    const std::uint8_t* live = nullptr;   // [rows] 0: the row is empty by length; null: none is
    bool first = false;                   // there is nothing so far: out and lse_out need not hold anything
    head_view<float> out;                 // [rows][heads][dv] the states so far
    head_view<growing_lse<Base>> lse_out; // [rows][heads]
};

// The states that have grown, finished: out and LSE, with sinks that join here, once.
template <class Out, lse_base Base, lse_base OutBase>
struct finish_args {
    head_view<const float> sum;                 // [rows][heads][dv]
    head_view<const growing_lse<Base>> sum_lse; // [rows][heads]
    const float* sinks = nullptr;               // [heads] natural logits, or null
    head_view<Out> out;                         // [rows][heads][dv]
    head_view<lse<OutBase>> lse_out;            // [rows][heads], or a null base
};

// Where a view begins among all rows and heads.
struct state_origin {
    std::int64_t row = 0;
    std::int64_t head = 0;
};

// The operations. All are templates over element types only; each is one launch on a device.
//   metadata(metadata_args, stream)                       arrays of a step
//   prefill_metadata(prefill_metadata_args, stream)       arrays of a step with prefills
//   read_status(const step_status*) -> step_status        on the host, behind work that the caller has waited for
//   piece_metadata(piece_metadata_args, stream)           arrays of a piece of keys that was brought here
//   append(append_args, stream)
//   attend(attend_args, stream)
//   scale(merge_parts lses, own, head_view<const P> own O, head_view<P> scaled, state_origin, head_view<lse<>> out,
//   stream)
//                                                         own O times exp(LSE_own - LSE): such partials simply add
//   merge(merge_parts, head_view<Out>, head_view<lse<>>, stream)   also unpacks what pack made
//   sum_parts(parts, count, head_view<const P> shape, head_view<Out>, stream)   in the order of the parts, in fp32
//   pack(head_view<const P> O, head_view<const lse<>> LSE, head_view<P> packed, stream)   each LSE behind its vector
//   accumulate(accumulate_args, stream), finish(finish_args, stream)
//   copy(head_view<const From>, first_head, head_view<To>, stream)
//   copy_rows(head_view<const T>, index_view rows, head_view<T>, stream)     to row i from row rows[i]; -1: T{}
//   place_rows(head_view<const T>, index_view rows, head_view<T>, stream)    row i to row rows[i]; -1: nowhere
//   clear_rows(head_view<T>, stream)                      all elements become T{}
//   copy_kv(copy_kv_args, stream)
// and
//   stream_type
//   attend_lse_base         base of the LSE that attend writes
//   dense_partials          attend can only write dense outputs: merges then copy
//   writes_empty_rows       attend writes O = 0 and LSE = -inf for rows without keys, so its output can be trusted
//   host_memory             the host can read what the backend works on
//   takes_intervals         attend honours visible_keys; else only upper bounds
//   splits_keys             attend wants scratch for splits of the keys
//   threads(), attend_thread_floats(dq, dv)   scratch memory: fp32 numbers of a thread
//   launches()              operations so far
template <class B>
concept backend = requires(B& b, const B& k, const metadata_args& args, const prefill_metadata_args& prefill_args,
                           const piece_metadata_args& piece_args, typename B::stream_type stream, std::int64_t width) {
    b.metadata(args, stream);
    b.prefill_metadata(prefill_args, stream);
    b.piece_metadata(piece_args, stream);
    { k.read_status(args.out.status) } -> std::same_as<step_status>;
    { B::attend_lse_base } -> std::convertible_to<lse_base>;
    { B::dense_partials } -> std::convertible_to<bool>;
    { B::writes_empty_rows } -> std::convertible_to<bool>;
    { B::host_memory } -> std::convertible_to<bool>;
    { B::takes_intervals } -> std::convertible_to<bool>;
    { B::splits_keys } -> std::convertible_to<bool>;
    { k.threads() } -> std::convertible_to<std::int64_t>;
    { k.attend_thread_floats(width, width) } -> std::convertible_to<std::int64_t>;
    { k.launches() } -> std::convertible_to<std::uint64_t>;
};

// A backend whose streams run beside each other has events, which order them:
//   event_type                       made by default, on the current device
//   record(event_type&, stream)      the event stands for all that the stream has been given so far
//   wait(const event_type&, stream)  what the stream is given from now on comes after what the event stands for
template <class B>
concept event_backend = backend<B> && std::default_initializable<typename B::event_type> &&
    requires(B& b, typename B::event_type& event, typename B::stream_type stream) {
    b.record(event, stream);
    b.wait(event, stream);
};

// A backend that moves caches from one layout into another has
//   reshard_metadata(reshard_args, stream)    arrays of a part: slots, and what is wrong with the tables
//   read_status(const reshard_status*) -> reshard_status    on the host, behind work that the caller has waited for
template <class B>
concept resharding_backend = backend<B> &&
    requires(B& b, const B& k, const reshard_args& args, typename B::stream_type stream) {
    b.reshard_metadata(args, stream);
    { k.read_status(args.out.status) } -> std::same_as<reshard_status>;
};

} // namespace ctxpar::inline v0_1
