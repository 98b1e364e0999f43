// Bring your own attention kernel: with_attention<Backend, Callable> is a backend that attends with the engine's
// callable and does everything else with Backend. The merges, masks and shards stay the library's.
//
// The callable states what it can do:
//
//   struct my_attention {
//       static constexpr lse_base base = lse_base::binary;  // of the LSE it writes
//       static constexpr bool takes_intervals = false;      // honours visible_keys; else it only takes lengths
//       static constexpr bool strided = false;              // can write any head_view; else dense outputs only
//       using p_type = bf16;                                // how it rounds probabilities
//       std::size_t plan_bytes(rows, requests, heads) const;      memory of one plan; may be left out
//       void prepare(const attention_plan&, stream);               once a plan
//       void run(const attention_plan&, q, cache, out, lse_out, score_options, stream);   once a layer
//   };
//
// A callable that only takes lengths is shown each row as a request of its own: row i sees the first row_lengths[i]
// local keys of request row_requests[i]. Windows, chunks and draft trees need intervals and are refused for it. What it
// writes for rows without keys does not matter: merges mask them by length. probe_attention() checks its statements.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/core/view.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1 {

template <class A, class Stream>
concept attention_callable = requires(A& callable, const attention_plan& plan, Stream stream) {
    { A::base } -> std::convertible_to<lse_base>;
    { A::takes_intervals } -> std::convertible_to<bool>;
    { A::strided } -> std::convertible_to<bool>;
    typename A::p_type;
    callable.prepare(plan, stream);
};

template <backend Backend, class Callable>
class with_attention : public Backend {
public:
    using stream_type = typename Backend::stream_type;
    using p_type = typename Callable::p_type;
    static_assert(
        attention_callable<Callable, stream_type>,
        "ctxpar::with_attention: the callable must have base, takes_intervals, strided, p_type and prepare()");

    static constexpr lse_base attend_lse_base = Callable::base;
    static constexpr bool dense_partials = !Callable::strided;
    static constexpr bool writes_empty_rows = false;
    static constexpr bool takes_intervals = Callable::takes_intervals;

    explicit with_attention(Callable callable = {}, Backend other = Backend{})
        : Backend(std::move(other)), callable_(std::move(callable)) {}

    Callable& callable() { return callable_; }

    // No scratch of the backend's own attention is needed.
    std::int64_t attend_thread_floats(std::int64_t, std::int64_t) const { return 0; }
    static constexpr bool splits_keys = false;

    std::size_t plan_bytes(std::int64_t rows, std::int64_t requests, std::int64_t heads) const {
        if constexpr (requires { callable_.plan_bytes(rows, requests, heads); }) {
            return callable_.plan_bytes(rows, requests, heads);
        } else {
            return 0;
        }
    }

    void prepare(const attention_plan& plan, stream_type stream) { callable_.prepare(plan, stream); }

    template <class Q, class Kv, class O>
    void attend(const attend_args<Q, Kv, O, attend_lse_base>& args, stream_type stream) {
        callable_.run(args.plan, args.q, args.cache, args.out, args.lse_out, args.score, stream);
    }

private:
    Callable callable_;
};

// The pages of every row as CSR lists, for kernels that take (indptr, indices, last page length): row i has
// offsets[i+1] - offsets[i] blocks of plan.table.block_size tokens, the last of which holds last_tokens[i] (1 to the
// block size, 0 for a row without keys). offsets is [rows + 1]; blocks has room for every row's blocks. On the host.
template <class Int>
void write_row_pages(const attention_plan& plan, Int* offsets, Int* blocks, Int* last_tokens) {
    const std::int64_t block_size = plan.table.block_size;
    std::int64_t used = 0;
    for (std::int64_t row = 0; row < plan.rows; ++row) {
        offsets[row] = static_cast<Int>(used);
        const std::int64_t keys = plan.arrays.row_lengths[row];
        const std::int64_t count = blocks_for(keys, block_size);
        for (std::int64_t block = 0; block < count; ++block)
            blocks[used++] = static_cast<Int>(plan.table.id(plan.arrays.row_requests[row], block));
        last_tokens[row] = static_cast<Int>(count > 0 ? keys - (count - 1) * block_size : 0);
    }
    offsets[plan.rows] = static_cast<Int>(used);
}

} // namespace ctxpar::inline v0_1
