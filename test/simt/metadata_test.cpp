// The arrays that the metadata kernels write are those of the CPU backend, byte for byte, whatever the order of
// threads.
#include <ctxpar/cuda.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "block.hpp"

using namespace ctxpar;

namespace {

constexpr std::int64_t requests = 5, rows = 40, ranks = 3, columns = 8, block_size = 4;

// Arrays of a decode step in one piece of memory, filled with the same bytes before.
struct step_memory {
    std::vector<std::byte> bytes = std::vector<std::byte>(1 << 16, std::byte{0x5a});
    step_arrays arrays;

    step_memory() {
        void* base = bytes.data();
        std::size_t room = bytes.size();
        std::align(workspace_alignment, bytes.size() / 2, base, room);
        carver memory(base);
        arrays.rows = memory.take<visible_keys>(rows);
        arrays.segments = memory.take<segment>(requests + 1);
        arrays.slots = memory.take<std::int64_t>(rows);
        arrays.local_lengths = memory.take<std::int64_t>(requests);
        arrays.live = memory.take<std::uint8_t>(ranks * rows);
        arrays.row_lengths = memory.take<std::int64_t>(rows);
        arrays.row_requests = memory.take<std::int64_t>(rows);
        arrays.status = memory.take<step_status>(1);
    }
    // All numbers, field by field: structs have holes.
    std::vector<std::int64_t> numbers() const {
        std::vector<std::int64_t> all;
        for (std::int64_t i = 0; i < rows; ++i) {
            const visible_keys& seen = arrays.rows[i];
            for (const std::int64_t each :
                 {seen.prefix, seen.lo, seen.hi, seen.tail, static_cast<std::int64_t>(seen.tail_bits), arrays.slots[i],
                  arrays.row_lengths[i], arrays.row_requests[i]})
                all.push_back(each);
        }
        for (std::int64_t i = 0; i <= requests; ++i) {
            const segment& run = arrays.segments[i];
            for (const std::int64_t each :
                 {run.request, run.first_row, run.rows, run.begin, run.end, run.split_tokens, run.first_split})
                all.push_back(each);
        }
        for (std::int64_t i = 0; i < requests; ++i) all.push_back(arrays.local_lengths[i]);
        for (std::int64_t i = 0; i < ranks * rows; ++i) all.push_back(arrays.live[i]);
        all.push_back(arrays.status->bad_entries);
        all.push_back(arrays.status->first_request);
        all.push_back(static_cast<std::int64_t>(arrays.status->first_fault));
        return all;
    }
};

void check_batch(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& query_rows) {
    std::vector<std::int64_t> table;
    for (std::int64_t i = 0; i < requests * columns; ++i) table.push_back((i * 7) % (requests * columns));
    metadata_args args;
    args.batch.requests = requests;
    args.batch.lengths = index_of(lengths.data());
    args.batch.query_rows = index_of(query_rows.data());
    args.batch.table = table_2d(table.data(), requests, columns, block_size);
    args.batch.mask.window = 13;
    args.batch.mask.prefix = 2;
    args.rows = rows;
    args.longest = 90;
    args.pool_blocks = requests * columns;
    args.max_splits = 4;
    args.part = {ranks, 1, 2};
    step_memory due;
    args.out = due.arrays;
    cpu_backend().metadata(args, {});
    for (const simt::thread_order order :
         {simt::thread_order::first_in, simt::thread_order::any, simt::thread_order::one_warp}) {
        cuda::emulated_order() = {order, 5};
        step_memory got;
        args.out = got.arrays;
        cuda_backend().metadata(args, nullptr);
        CHECK(got.numbers() == due.numbers());
    }
}

} // namespace

TEST_CASE("the arrays of a step are those of the CPU") {
    check_batch({30, 0, 89, 7, 12}, {3, 0, 9, 7, 1});
    check_batch({1, 1, 1, 1, 1}, {1, 1, 1, 1, 1});
}

TEST_CASE("bad entries are neutralised and counted as on the CPU") {
    check_batch({30, -4, 89, 91, 12}, {3, 1, 9, 7, 1});   // negative, past the bound
    check_batch({30, 20, 89, 7, 12}, {3, -1, 30, 20, 1}); // negative rows, more than are left
}
