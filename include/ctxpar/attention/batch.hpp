// A decode batch as the engine states it, and the metadata of one step that follows from it: per rank and row which
// local keys are visible, where new tokens are written, and which ranks have something to say.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/rows.hpp>
#include <ctxpar/core/config.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1 {

// One step of a batch. Query rows are the last tokens of their requests: a request of length L with q rows has them at
// positions L-q .. L-1, rows of all requests stand one request after another, and the step's new K and V rows are
// those of the same tokens.
struct decode_batch {
    std::int64_t requests = 0;                // may include padding: requests with no rows and length 0
    index_view lengths{};                     // [requests] tokens of each request, this step's rows included
    index_view query_rows{};                  // [requests] rows of each request; null data: one each
    block_table table{};                      // this rank's block ids
    mask_rule mask{};                         // window, chunk, always-visible prefix
    const std::uint64_t* tree_bits = nullptr; // [rows] draft trees: bit x = sees the x-th row of its request; or null

    CTXPAR_HD std::int64_t rows_of(std::int64_t request) const {
        return query_rows.data == nullptr ? 1 : query_rows.at(request);
    }
};

// What bounds a step whose lengths are only known on the device.
struct step_bounds {
    std::int64_t rows = 0;    // query rows of all requests, padding included: the same on every rank
    std::int64_t longest = 0; // no request is longer, in tokens
};

enum class entry_fault : std::int32_t { none, length, query_rows, tree_rows, table };

constexpr const char* name_of(entry_fault fault) {
    switch (fault) {
    case entry_fault::length:
        return "a length that is negative or past the bound";
    case entry_fault::query_rows:
        return "a number of query rows that is negative or past the bound";
    case entry_fault::tree_rows:
        return "more rows than a draft tree may have nodes (64)";
    case entry_fault::table:
        return "a block id outside the pool, or a table that is too short";
    case entry_fault::none:
        break;
    }
    return "no fault";
}

// Filled by the metadata of a step. Bad entries were treated as empty: slots -1, no visible key.
struct step_status {
    std::int64_t bad_entries = 0;
    std::int64_t first_request = -1; // the first offender
    entry_fault first_fault = entry_fault::none;
};

// The arrays of a step on one rank, in the caller's workspace.
struct step_arrays {
    visible_keys* rows = nullptr;          // [rows] local keys each row sees
    segment* segments = nullptr;           // runs of rows: one a request, and one of padding rows
    std::int64_t* slots = nullptr;         // [rows] the slot of each new token, -1 where another rank owns it
    std::int64_t* local_lengths = nullptr; // [requests] tokens of each request on this rank
    std::uint8_t* live = nullptr;          // [ranks][rows] whether the row sees any key on that rank
    std::int64_t* row_lengths = nullptr;   // [rows] upper local bound of each row: a one-row request's length
    std::int64_t* row_requests = nullptr;  // [rows] the request of each row, -1 for padding
    step_status* status = nullptr;         // [1]
};

// Everything the metadata of a step depends on.
struct metadata_args {
    decode_batch batch;
    std::int64_t rows = 0;         // rows of the step, padding included; stride of `live`
    std::int64_t longest = 0;      // bound of lengths
    std::int64_t pool_blocks = -1; // blocks of the rank's pool; -1 = not known
    std::int64_t max_splits = 1;
    shard part;
    step_arrays out;
    std::int64_t least_split_tokens = min_split_tokens; // see split_rule
    std::int64_t split_grain_tokens = split_grain;
};

// The first block in local keys [from, to) that is not in the pool, or past the table; -1 where all are fine.
CTXPAR_HD inline std::int64_t first_bad_block(const block_table& table, std::int64_t request, std::int64_t from,
                                              std::int64_t to, std::int64_t pool_blocks) {
    if (from >= to) return -1;
    const std::int64_t columns = table.blocks_of(request);
    for (std::int64_t block = from / table.block_size; block <= (to - 1) / table.block_size; ++block) {
        if (block >= columns) return block;
        const std::int64_t id = table.id(request, block);
        if (id < 0 || (pool_blocks >= 0 && id >= pool_blocks)) return block;
    }
    return -1;
}

// One row that sees `seen`, in positions: its keys on every rank decide whether that rank's partial is live, this
// rank's are kept. `rows` is the stride of `live`.
CTXPAR_HD inline void write_row(const step_arrays& out, const shard& part, std::int64_t rows, std::int64_t row,
                                std::int64_t request, const visible_keys& seen) {
    shard other = part;
    for (other.rank = 0; other.rank < part.ranks; ++other.rank) {
        const visible_keys local = localise(seen, other);
        out.live[other.rank * rows + row] = local.count() > 0 ? 1 : 0;
        if (other.rank == part.rank) out.rows[row] = local;
    }
    out.row_lengths[row] = seen.lo < seen.hi || seen.prefix > 0 ? out.rows[row].hi : 0;
    out.row_requests[row] = request;
}
CTXPAR_HD inline void write_row(const metadata_args& args, std::int64_t row, std::int64_t request,
                                const visible_keys& seen) {
    write_row(args.out, args.part, args.rows, row, request, seen);
    args.out.slots[row] = -1;
}

// Widens a segment to the keys of one of its rows.
CTXPAR_HD constexpr void widen(segment& run, const visible_keys& local) {
    if (local.hi <= local.lo && local.prefix == 0) return;
    const std::int64_t first = local.prefix > 0 ? 0 : local.lo;
    run.begin = run.end == 0 || first < run.begin ? first : run.begin;
    run.end = local.hi > run.end ? local.hi : run.end;
}

// What is wrong with one request's numbers, if anything.
CTXPAR_HD inline entry_fault request_fault(const metadata_args& args, std::int64_t request, std::int64_t rows_left) {
    const std::int64_t length = args.batch.lengths.at(request);
    const std::int64_t rows = args.batch.rows_of(request);
    if (length < 0 || length > args.longest) return entry_fault::length;
    if (rows < 0 || rows > rows_left) return entry_fault::query_rows;
    if (args.batch.tree_bits != nullptr && rows > max_tree_nodes) return entry_fault::tree_rows;
    return entry_fault::none;
}

// Metadata of one request whose rows start at first_row. A request whose numbers are bad has empty rows.
CTXPAR_HD inline entry_fault write_request(const metadata_args& args, std::int64_t request, std::int64_t first_row) {
    const decode_batch& batch = args.batch;
    const step_arrays& out = args.out;
    const std::int64_t rows_left = args.rows - first_row;
    entry_fault fault = request_fault(args, request, rows_left);
    std::int64_t rows = batch.rows_of(request);
    rows = rows < 0 ? 0 : (rows > rows_left ? rows_left : rows);
    const std::int64_t length = fault == entry_fault::none ? batch.lengths.at(request) : 0;

    segment run;
    run.request = request;
    run.first_row = first_row;
    run.rows = rows;
    out.local_lengths[request] = args.part.local_len(length);
    for (std::int64_t i = 0; i < rows; ++i) {
        const std::uint64_t* bits = batch.tree_bits == nullptr ? nullptr : batch.tree_bits + first_row + i;
        const visible_keys seen =
            fault == entry_fault::none ? causal_row(length, rows, i, batch.mask, bits) : visible_keys{};
        write_row(args, first_row + i, request, seen);
        widen(run, out.rows[first_row + i]);
    }
    // Blocks that some row reads, and blocks that take the new tokens, must be in the pool.
    const std::int64_t prefix = rows > 0 ? out.rows[first_row + rows - 1].prefix : 0;
    const std::int64_t first_new = args.part.local_len(length > rows ? length - rows : 0);
    const std::int64_t lowest = rows > 0 ? out.rows[first_row].lo : first_new;
    const std::int64_t end = out.local_lengths[request];
    const std::int64_t from = lowest < first_new ? lowest : first_new;
    if (fault == entry_fault::none && (first_bad_block(batch.table, request, 0, prefix, args.pool_blocks) >= 0 ||
                                       first_bad_block(batch.table, request, from, end, args.pool_blocks) >= 0)) {
        fault = entry_fault::table;
        for (std::int64_t i = 0; i < rows; ++i) write_row(args, first_row + i, request, {});
        out.local_lengths[request] = 0;
        run.begin = run.end = 0;
    }
    if (fault == entry_fault::none) {
        for (std::int64_t i = 0; i < rows; ++i)
            out.slots[first_row + i] = slot_of(args.part, batch.table, request, length - rows + i);
    }
    schedule_splits(run, split_rule{args.max_splits, args.least_split_tokens, args.split_grain_tokens});
    out.segments[request] = run;
    return fault;
}

// Rows past the last request: empty, never written, in a segment of their own.
CTXPAR_HD inline void write_padding(const metadata_args& args, std::int64_t first_row) {
    segment pad;
    pad.first_row = first_row;
    pad.rows = args.rows - first_row;
    for (std::int64_t row = first_row; row < args.rows; ++row) write_row(args, row, -1, {});
    args.out.segments[args.batch.requests] = pad;
}

static_assert(std::is_trivially_copyable_v<metadata_args>);

} // namespace ctxpar::inline v0_1
