// Everything that lies in the workspace of a prefill step, and where. What one call needs and the next does not shares
// its memory: append, the passes of attend one after another, restore.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/prefill_pieces.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/decode/buffers.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/prefill/shape.hpp>

namespace ctxpar::inline v0_1::detail {

// The sizes that a prefiller's memory follows from.
struct prefill_limits {
    prefill_shape shape;
    exchange_shape spread; // of the largest pass of spread rows
    gather_law gather;
    packed_row row; // of the cache, as it travels
    std::int64_t pcp = 1;
    std::int64_t heads = 1; // Hl
    std::int64_t query_width = 1;
    std::int64_t value_width = 1;
    std::int64_t output_bytes = 2;
    bool overlaps = false; // pieces are brought on a stream of their own

    bool keys_travel() const { return keys_may_travel(shape); }
    bool queries_travel() const { return queries_may_travel(shape); }
    std::int64_t key_query_width() const { return shape.projects() ? shape.projected_query_width : query_width; }
    std::int64_t key_value_width() const { return shape.projects() ? shape.projected_value_width : value_width; }
    std::int64_t rows_per_request() const {
        return (shape.max_rows + shape.max_requests - 1) / std::max<std::int64_t>(1, shape.max_requests);
    }
    // New tokens of a step, and rows of the largest piece of keys.
    std::int64_t new_rows() const { return pcp * shape.max_rows; }
    std::int64_t piece_rows() const { return std::max(gather.workspace_rows(), new_rows()); }
};

// Where a piece of keys is on its way, and while it is attended.
template <class Policy>
struct piece_buffers {
    piece_arrays arrays;
    typename Policy::attention_type::kv_element* chunk = nullptr; // packed rows of a gathered chunk
    typename Policy::element* latent = nullptr;                   // the same dequantised, for up-projection
};

// What rows work in to which the keys of other ranks are brought. P is the type in which attention writes.
template <class Policy, class Backend>
struct key_buffers {
    static constexpr lse_base base = Backend::attend_lse_base;
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    // An attention callable may only write what it writes in decode; the library's own writes fp32.
    using piece_element = std::conditional_t<brings_attention<Backend>, typename Policy::partial_element, float>;

    piece_buffers<Policy> pieces[2]; // the same twice where pieces follow one another on one stream
    element* keys = nullptr;         // [piece rows][Hl][width] up-projected
    element* values = nullptr;
    float* sum = nullptr;                 // [rows][Hl][dv] of the pieces so far
    growing_lse<base>* sum_lse = nullptr; // [rows][Hl]
    piece_element* part = nullptr;        // of one piece
    lse<base>* part_lse = nullptr;
    float* wide_part = nullptr; // the same in fp32, where it is not already
    attend_scratch scratch;
    void* callable = nullptr;
};

template <class Policy, class Backend>
struct prefill_buffers {
    prefill_arrays arrays;
    std::byte* decode = nullptr;                                   // a decode step
    typename Policy::attention_type::kv_element* staged = nullptr; // packed rows of the new tokens whose keys travel
    typename Policy::element* new_keys = nullptr;                  // [W][prefill rows] as they are gathered
    typename Policy::element* queries = nullptr;                   // own rows of one set
    void* outputs = nullptr;
    void* lses = nullptr;
    void* callable = nullptr; // of an attention callable, for the spread rows
    pass_buffers<Policy, Backend> spread;
    key_buffers<Policy, Backend> keys;
    std::byte* hidden = nullptr; // [W][prefill rows]
    std::size_t bytes = 0;       // of all
};

inline step_arrays carve_rows(carver& memory, std::int64_t rows, std::int64_t segments, std::int64_t requests,
                              std::int64_t live) {
    step_arrays arrays;
    arrays.rows = memory.take<visible_keys>(rows);
    arrays.segments = memory.take<segment>(segments);
    arrays.local_lengths = memory.take<std::int64_t>(requests);
    arrays.live = memory.take<std::uint8_t>(live * rows);
    arrays.row_lengths = memory.take<std::int64_t>(rows);
    arrays.row_requests = memory.take<std::int64_t>(rows);
    arrays.status = memory.take<step_status>(1);
    return arrays;
}

inline prefill_arrays carve_prefill_arrays(carver& memory, const prefill_limits& limits) {
    const prefill_shape& shape = limits.shape;
    const std::int64_t rows = shape.max_rows;
    const std::int64_t arriving = limits.pcp > 1 ? limits.new_rows() : 0;
    const auto take = [&](std::int64_t count) { return memory.take<std::int64_t>(count); };
    prefill_arrays arrays;
    for (std::int64_t** own : {&arrays.positions, &arrays.batch_rows, &arrays.slots, &arrays.stage, &arrays.last_of,
                               &arrays.prefill_rows, &arrays.spread_rows, &arrays.decode_rows, &arrays.kv_rows})
        *own = take(rows);
    for (std::int64_t** other : {&arrays.new_batch_rows, &arrays.new_slots, &arrays.new_stage}) *other = take(arriving);
    arrays.last_rows = take(shape.max_requests);
    arrays.last_requests = take(limits.pcp * shape.max_requests);
    arrays.decode_lengths = take(shape.max_requests);
    arrays.decode_counts = take(shape.max_requests);
    const std::int64_t owners = limits.spread.row_owners;
    const std::int64_t spread = limits.queries_travel() ? limits.spread.rows : 0;
    arrays.spread =
        carve_rows(memory, spread, owners * (2 * shape.max_requests + 1), shape.max_requests, limits.spread.ranks);
    return arrays;
}

template <class Policy>
piece_buffers<Policy> carve_piece(carver& memory, const prefill_limits& limits) {
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    const bool used = limits.keys_travel();
    const std::int64_t requests = used ? limits.shape.max_requests : 0;
    const std::int64_t pieces = used ? limits.piece_rows() : 0;
    const std::int64_t gathered = used ? limits.gather.workspace_rows() : 0;
    const std::int64_t projected = limits.shape.projects() ? gathered : 0;
    const auto kv_bytes = static_cast<std::int64_t>(sizeof(kv_element));
    const auto element_bytes = static_cast<std::int64_t>(sizeof(element));
    packed_row plain = limits.row;
    plain.token_scales = false;

    piece_buffers<Policy> all;
    all.arrays.rows = carve_rows(memory, used ? limits.shape.max_rows : 0, 2 * requests + 1, requests, 1);
    all.arrays.starts = memory.take<std::int64_t>(requests);
    all.arrays.page_offsets = memory.take<std::int64_t>(requests + 1);
    all.arrays.pages = memory.take<std::int64_t>(pieces);
    all.arrays.slots = memory.take<std::int64_t>(pieces);
    all.chunk = memory.take<kv_element>(gathered * limits.row.bytes(kv_bytes) / kv_bytes);
    all.latent = memory.take<element>(projected * plain.bytes(element_bytes) / element_bytes);
    return all;
}

template <class Policy, class Backend>
key_buffers<Policy, Backend> carve_keys(carver& memory, const Backend& backend, const prefill_limits& limits) {
    using buffers = key_buffers<Policy, Backend>;
    using piece_element = typename buffers::piece_element;
    const prefill_shape& shape = limits.shape;
    const bool used = limits.keys_travel();
    const std::int64_t rows = used ? shape.max_rows : 0;
    const std::int64_t requests = used ? shape.max_requests : 0;
    const std::int64_t projected = used && shape.projects() ? limits.gather.workspace_rows() : 0;

    buffers all;
    all.pieces[0] = carve_piece<Policy>(memory, limits);
    all.pieces[1] = limits.overlaps ? carve_piece<Policy>(memory, limits) : all.pieces[0];
    all.keys = memory.take<typename buffers::element>(projected * limits.heads * shape.projected_query_width);
    all.values = memory.take<typename buffers::element>(projected * limits.heads * shape.projected_value_width);

    const std::int64_t states = rows * limits.heads;
    const std::int64_t width = limits.key_value_width();
    all.sum = memory.take<float>(states * width);
    all.sum_lse = memory.take<growing_lse<buffers::base>>(states);
    all.part = memory.take<piece_element>(states * width);
    all.part_lse = memory.take<lse<buffers::base>>(states);
    if constexpr (std::is_same_v<piece_element, float>) {
        all.wide_part = all.part;
    } else {
        all.wide_part = memory.take<float>(states * width);
    }
    all.scratch.thread_floats = used ? backend.attend_thread_floats(limits.key_query_width(), width) : 0;
    all.scratch.threads = memory.take<float>(all.scratch.thread_floats * backend.threads());
    all.callable = carve_callable(memory, backend, rows, requests, limits.heads);
    return all;
}

// Carves the workspace for the largest step of a prefiller; with a null base it only counts. decode_bytes is what the
// decoder of its decode rows needs.
template <class Policy, class Backend>
prefill_buffers<Policy, Backend> carve_prefill(const Policy& policy, const Backend& backend,
                                               const prefill_limits& limits, std::size_t decode_bytes, void* base) {
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    const prefill_shape& shape = limits.shape;
    const auto kv_bytes = static_cast<std::int64_t>(sizeof(kv_element));
    prefill_buffers<Policy, Backend> all;

    carver kept(base);
    all.arrays = carve_prefill_arrays(kept, limits);
    all.decode = kept.take<std::byte>(static_cast<std::int64_t>(decode_bytes));
    all.callable = carve_callable(kept, backend, limits.queries_travel() ? limits.spread.rows : 0, shape.max_requests,
                                  limits.spread.gathered_heads);
    const std::int64_t staged = limits.keys_travel() ? limits.new_rows() : 0;
    all.staged = kept.take<kv_element>(staged * limits.row.bytes(kv_bytes) / kv_bytes);

    // From here on buffers of calls that do not overlap lie over one another.
    std::size_t most = 0;
    const auto share = [&](const auto& carve) {
        carver shared(base == nullptr ? nullptr : static_cast<std::byte*>(base) + kept.bytes());
        carve(shared);
        most = std::max(most, shared.bytes());
    };
    share([&](carver& memory) {
        const std::int64_t arriving = limits.pcp > 1 ? limits.new_rows() : 0;
        all.new_keys = memory.take<element>(arriving * limits.row.elements());
    });
    const auto carve_set = [&](carver& memory) {
        const std::int64_t states = shape.max_rows * limits.heads;
        all.queries = memory.take<element>(states * std::max(limits.query_width, limits.key_query_width()));
        all.outputs = memory.take<std::byte>(states * std::max(limits.value_width, limits.key_value_width()) *
                                             limits.output_bytes);
        all.lses = memory.take<float>(shape.merged_lse ? states : 0);
    };
    share([&](carver& memory) {
        carve_set(memory);
        if (!limits.queries_travel()) return;
        all.spread = carve_pass(memory, policy, backend, limits.spread, 1);
    });
    share([&](carver& memory) {
        carve_set(memory);
        all.keys = carve_keys<Policy>(memory, backend, limits);
    });
    share([&](carver& memory) {
        const std::int64_t rows = limits.pcp > 1 ? limits.new_rows() : 0;
        all.hidden = memory.take<std::byte>(rows * shape.hidden_bytes);
    });
    all.bytes = kept.bytes() + most;
    return all;
}

} // namespace ctxpar::inline v0_1::detail
