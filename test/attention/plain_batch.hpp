// Batches, and what the metadata of a step must say of them, by asking every token. Whoever fills the arrays of a step
// is given as a function of metadata_args.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <attention/plain_rows.hpp>

#include <ctxpar/attention/batch.hpp>

namespace plain {

using numbers = std::vector<std::int64_t>;

// A batch with the memory it lives in. Block ids are those of one rank.
struct batch {
    numbers lengths;
    numbers query_rows; // empty: one each
    ctxpar::mask_rule mask;
    std::vector<std::uint64_t> tree_bits; // empty: none
    std::int64_t block_size = 4;
    std::int64_t columns = 8; // blocks a request
    numbers blocks;           // [requests][columns]
    std::int64_t pool_blocks = -1;
    std::int64_t rows = 0;
    std::int64_t longest = 1000;
    std::int64_t max_splits = 4;

    std::int64_t requests() const { return static_cast<std::int64_t>(lengths.size()); }
    std::int64_t rows_of(std::size_t request) const { return query_rows.empty() ? 1 : query_rows[request]; }
    std::int64_t id(std::size_t request, std::int64_t block) const {
        return blocks[request * static_cast<std::size_t>(columns) + static_cast<std::size_t>(block)];
    }

    ctxpar::metadata_args args(const ctxpar::shard& part, const ctxpar::step_arrays& out) const {
        ctxpar::decode_batch view;
        view.requests = requests();
        view.lengths = ctxpar::index_of(lengths.data());
        if (!query_rows.empty()) view.query_rows = ctxpar::index_of(query_rows.data());
        view.table = ctxpar::table_2d(blocks.data(), requests(), columns, block_size);
        view.mask = mask;
        if (!tree_bits.empty()) view.tree_bits = tree_bits.data();
        return {view, rows, longest, pool_blocks, max_splits, part, out};
    }
};

// What a request's metadata must say on one rank.
struct expected_request {
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
    ctxpar::entry_fault fault = ctxpar::entry_fault::none;
};

// The arrays of a step, filled with what must not stay there.
struct step_memory {
    std::vector<ctxpar::visible_keys> rows;
    std::vector<ctxpar::segment> segments;
    numbers slots, local_lengths, row_lengths, row_requests;
    std::vector<std::uint8_t> live;
    ctxpar::step_status status{77, 77, ctxpar::entry_fault::table};

    step_memory(std::int64_t num_rows, std::int64_t requests, std::int64_t ranks)
        : rows(static_cast<std::size_t>(num_rows), {7, 7, 70, 70, 7}), segments(static_cast<std::size_t>(requests + 1)),
          slots(static_cast<std::size_t>(num_rows), 777), local_lengths(static_cast<std::size_t>(requests), 777),
          row_lengths(static_cast<std::size_t>(num_rows), 777), row_requests(static_cast<std::size_t>(num_rows), 777),
          live(static_cast<std::size_t>(num_rows * ranks), 77) {
        for (ctxpar::segment& run : segments) run = {77, 77, 77, 77, 177, 77, 77};
    }
    ctxpar::step_arrays arrays() {
        return {rows.data(), segments.data(),    slots.data(),        local_lengths.data(),
                live.data(), row_lengths.data(), row_requests.data(), &status};
    }
};

// Checks the metadata of one rank; names what is wrong.
class batch_check {
public:
    batch_check(const batch& given, const ctxpar::shard& part)
        : batch_(given), part_(part), memory_(given.rows, given.requests(), part.ranks) {}

    template <class Driver>
    std::string run(Driver&& driver) {
        driver(batch_.args(part_, memory_.arrays()));
        std::int64_t row = 0;
        ctxpar::step_status status;
        for (std::size_t request = 0; request < batch_.lengths.size(); ++request) {
            const expected_request wanted = expect(request, row);
            if (wanted.fault != ctxpar::entry_fault::none && status.bad_entries++ == 0)
                status = {1, static_cast<std::int64_t>(request), wanted.fault};
            check_request(request, wanted);
            row += wanted.rows;
        }
        check_padding(row);
        const ctxpar::step_status& got = memory_.status;
        note(got.bad_entries == status.bad_entries && got.first_request == status.first_request &&
                 got.first_fault == status.first_fault,
             "status");
        return wrong_;
    }

    const step_memory& memory() const { return memory_; }

private:
    const std::uint64_t* bits(std::int64_t row) const {
        return batch_.tree_bits.empty() ? nullptr : &batch_.tree_bits[static_cast<std::size_t>(row)];
    }
    numbers held(std::int64_t length, std::int64_t rank) const {
        return positions_of(part_.ranks, part_.interleave, rank, length);
    }
    bool sees(std::size_t request, const expected_request& wanted, std::int64_t i, std::int64_t position) const {
        return wanted.fault == ctxpar::entry_fault::none &&
               row_sees(batch_.lengths[request], wanted.rows, i, batch_.mask, bits(wanted.first_row + i), position);
    }

    expected_request expect(std::size_t request, std::int64_t first_row) const {
        const std::int64_t left = batch_.rows - first_row;
        const std::int64_t length = batch_.lengths[request];
        const std::int64_t rows = batch_.rows_of(request);
        expected_request wanted{first_row, std::clamp<std::int64_t>(rows, 0, left), ctxpar::entry_fault::none};
        if (length < 0 || length > batch_.longest) {
            wanted.fault = ctxpar::entry_fault::length;
        } else if (rows < 0 || rows > left) {
            wanted.fault = ctxpar::entry_fault::query_rows;
        } else if (!batch_.tree_bits.empty() && rows > 64) {
            wanted.fault = ctxpar::entry_fault::tree_rows;
        } else if (misses_blocks(request, wanted)) {
            wanted.fault = ctxpar::entry_fault::table;
        }
        return wanted;
    }

    // Whether a token that some row reads, or that is new, lies in a block that is not there. With a draft tree all
    // nodes count as read.
    bool misses_blocks(std::size_t request, const expected_request& wanted) const {
        const std::int64_t length = batch_.lengths[request];
        const numbers own = held(length, part_.rank);
        for (std::size_t j = 0; j < own.size(); ++j) {
            bool needed = wanted.rows > 0 && own[j] >= length - wanted.rows;
            for (std::int64_t i = 0; i < wanted.rows && !needed; ++i) needed = sees(request, wanted, i, own[j]);
            const auto block = static_cast<std::int64_t>(j) / batch_.block_size;
            if (!needed) continue;
            if (block >= batch_.columns || batch_.id(request, block) < 0) return true;
            if (batch_.pool_blocks >= 0 && batch_.id(request, block) >= batch_.pool_blocks) return true;
        }
        return false;
    }

    void check_request(std::size_t request, const expected_request& wanted) {
        const bool sound = wanted.fault == ctxpar::entry_fault::none;
        const std::int64_t length = sound ? batch_.lengths[request] : 0;
        const numbers own = held(length, part_.rank);
        note(memory_.local_lengths[request] == static_cast<std::int64_t>(own.size()), "local_lengths");
        std::int64_t begin = -1;
        std::int64_t end = -1;
        for (std::int64_t i = 0; i < wanted.rows; ++i) {
            const auto row = static_cast<std::size_t>(wanted.first_row + i);
            note(memory_.row_requests[row] == static_cast<std::int64_t>(request), "row_requests");
            check_live(request, wanted, i, length);
            std::int64_t bound = 0; // own tokens up to the row's last one
            for (std::size_t j = 0; j < own.size(); ++j) {
                const auto key = static_cast<std::int64_t>(j);
                const bool visible = sees(request, wanted, i, own[j]);
                const bool starts = length - wanted.rows + i >= 0;
                if (starts && (own[j] <= length - wanted.rows + i || !batch_.tree_bits.empty())) ++bound;
                note(memory_.rows[row].sees(key) == visible, "rows");
                if (!visible) continue;
                begin = begin < 0 ? key : std::min(begin, key);
                end = std::max(end, key + 1);
            }
            note(memory_.rows[row].hi <= static_cast<std::int64_t>(own.size()), "rows end");
            note(memory_.row_lengths[row] == bound, "row_lengths");
            check_slot(request, row, sound ? length - wanted.rows + i : -1, own);
        }
        check_segment(request, wanted, begin, end);
    }

    void check_live(std::size_t request, const expected_request& wanted, std::int64_t i, std::int64_t length) {
        for (std::int64_t rank = 0; rank < part_.ranks; ++rank) {
            bool any = false;
            for (const std::int64_t position : held(length, rank)) any = any || sees(request, wanted, i, position);
            note(live(rank, wanted.first_row + i) == (any ? 1 : 0), "live");
        }
    }

    void check_slot(std::size_t request, std::size_t row, std::int64_t position, const numbers& own) {
        std::int64_t slot = -1;
        for (std::size_t j = 0; j < own.size(); ++j) {
            const auto index = static_cast<std::int64_t>(j);
            if (own[j] == position)
                slot = batch_.id(request, index / batch_.block_size) * batch_.block_size + index % batch_.block_size;
        }
        note(memory_.slots[row] == slot, "slots");
    }

    void check_segment(std::size_t request, const expected_request& wanted, std::int64_t begin, std::int64_t end) {
        const ctxpar::segment& run = memory_.segments[request];
        note(run.request == static_cast<std::int64_t>(request) && run.first_row == wanted.first_row &&
                 run.rows == wanted.rows,
             "segments");
        if (batch_.tree_bits.empty() && batch_.mask.prefix == 0) {
            note(end < 0 ? run.begin == run.end : run.begin == begin && run.end == end, "segment keys");
        } else {
            note(end < 0 || (0 <= run.begin && run.begin <= begin && run.end >= end), "keys of a segment with gaps");
        }
        check_splits(run);
    }

    void check_splits(const ctxpar::segment& run) {
        ctxpar::segment alone;
        alone.begin = run.begin;
        alone.end = run.end;
        ctxpar::schedule_splits(alone, batch_.max_splits);
        note(run.splits() == alone.splits() && (run.splits() == 0 || (run.split_tokens == alone.split_tokens &&
                                                                      run.first_split == alone.first_split)),
             "splits");
    }

    void check_padding(std::int64_t first_row) {
        for (std::int64_t row = first_row; row < batch_.rows; ++row) {
            const auto at = static_cast<std::size_t>(row);
            note(memory_.rows[at].count() == 0 && memory_.rows[at].lo == memory_.rows[at].hi &&
                     memory_.slots[at] == -1 && memory_.row_requests[at] == -1 && memory_.row_lengths[at] == 0,
                 "padding");
            for (std::int64_t rank = 0; rank < part_.ranks; ++rank) note(live(rank, row) == 0, "live padding");
        }
        const ctxpar::segment& pad = memory_.segments.back();
        note(pad.first_row == first_row && pad.rows == batch_.rows - first_row && pad.splits() == 0, "padding segment");
    }

    std::uint8_t live(std::int64_t rank, std::int64_t row) const {
        return memory_.live[static_cast<std::size_t>(rank * batch_.rows + row)];
    }
    void note(bool right, const char* what) {
        if (!right && wrong_.find(what) == std::string::npos) wrong_ += std::string(what) + "; ";
    }

    const batch& batch_;
    ctxpar::shard part_;
    step_memory memory_;
    std::string wrong_;
};

} // namespace plain
