// The arrays of a step on a device, in one launch: intervals, slots, segments, from lengths that only the device need
// know. What is written for a request or a row is the functions of attention/; this file hands them out to threads.
#pragma once

#include <cstdint>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/attention/prefill_pieces.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/backend/cuda/intrinsics.cuh>

namespace ctxpar::inline v0_1::cuda {

inline constexpr unsigned metadata_threads = 256;

// The first row of a request: the rows of all before it, each cut to what is left as write_request cuts them.
CTXPAR_DEVICE std::int64_t first_row_of(const metadata_args& args, std::int64_t request) {
    std::int64_t row = 0;
    CTXPAR_ROLLED
    for (std::int64_t before = 0; before < request; ++before) {
        const std::int64_t rows = args.batch.rows_of(before);
        const std::int64_t left = args.rows - row;
        row += rows < 0 ? 0 : (rows < left ? rows : left);
    }
    return row;
}

// One block: a thread takes requests, and the first thread counts what was wrong with them.
template <class Args>
CTXPAR_KERNEL void metadata_kernel(Args args) {
    auto* const faults = shared_array<std::int32_t>(); // [block_threads()] of the requests of this turn
    step_status status;
    for (std::int64_t turn = 0; turn < args.batch.requests; turn += block_threads()) {
        const std::int64_t request = turn + thread_index();
        entry_fault fault = entry_fault::none;
        if (request < args.batch.requests) fault = write_request(args, request, first_row_of(args, request));
        faults[thread_index()] = static_cast<std::int32_t>(fault);
        sync_block();
        for (std::int64_t i = 0; thread_index() == 0 && i < block_threads(); ++i) {
            if (faults[i] == static_cast<std::int32_t>(entry_fault::none)) continue;
            if (status.bad_entries++ == 0) {
                status.first_request = turn + i;
                status.first_fault = static_cast<entry_fault>(faults[i]);
            }
        }
        sync_block();
    }
    const std::int64_t end = first_row_of(args, args.batch.requests);
    CTXPAR_ROLLED
    for (std::int64_t row = end + thread_index(); row < args.rows; row += block_threads()) write_row(args, row, -1, {});
    if (thread_index() == 0) {
        segment padding;
        padding.first_row = end;
        padding.rows = args.rows - end;
        args.out.segments[args.batch.requests] = padding;
        *args.out.status = status;
    }
}

// A block a PCP rank; its threads share the rows of each request.
template <class Args>
CTXPAR_KERNEL void prefill_metadata_kernel(Args args) {
    const row_share share{thread_index(), block_threads()};
    for (std::int64_t rank = block_x(); rank < args.law.split.pcp; rank += grid_x()) {
        prefill_offsets at;
        for (std::int64_t index = 0; index < args.batch.requests; ++index) {
            write_prefill_request(args, index, at, rank, share);
            at.pass(args.law, request_of(args.batch, index), rank);
        }
        write_prefill_filling(args, at, rank, share);
    }
}

// One block.
template <class Args>
CTXPAR_KERNEL void piece_metadata_kernel(Args args) {
    write_piece(args, row_share{thread_index(), block_threads()}, [] { sync_block(); });
}

} // namespace ctxpar::inline v0_1::cuda
