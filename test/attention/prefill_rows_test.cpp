// The arrays of a prefill step against rows that were dealt out and tokens that were asked one at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <attention/plain_prefill.hpp>

#include <ctxpar/attention/prefill_rows.hpp>

using namespace ctxpar;
using plain::numbers;
using plain::prefill_row;
using plain::prefills;

namespace {

template <class T>
std::vector<T> filled(std::int64_t count, T value) {
    return std::vector<T>(static_cast<std::size_t>(count), value);
}

// The largest sums over the ranks, counted row by row.
prefill_counts counts_of(const prefills& given, std::int64_t pcp_rank) {
    prefill_counts counts;
    counts.requests = static_cast<std::int64_t>(given.requests());
    for (std::int64_t rank = 0; rank < given.pcp; ++rank) {
        prefill_counts mine;
        for (const prefill_row& row : given.rows_on(rank)) {
            const row_set set = given.set(row.request);
            ++mine.rows;
            mine.prefill_rows += given.decodes(row.request) ? 0 : 1;
            mine.spread_rows += set == row_set::spread ? 1 : 0;
            mine.decode_rows += set == row_set::decode ? 1 : 0;
            mine.kv_rows += set == row_set::kv ? 1 : 0;
            mine.last_rows += !given.decodes(row.request) && row.token == given.tokens[row.request] - 1 ? 1 : 0;
        }
        counts.rows = std::max(counts.rows, mine.rows);
        counts.prefill_rows = std::max(counts.prefill_rows, mine.prefill_rows);
        counts.spread_rows = std::max(counts.spread_rows, mine.spread_rows);
        counts.last_rows = std::max(counts.last_rows, mine.last_rows);
        counts.decode_rows = mine.decode_rows;
        if (rank != pcp_rank) continue;
        counts.own_rows = mine.rows;
        counts.kv_rows = mine.kv_rows;
    }
    for (std::size_t r = 0; r < given.requests(); ++r) {
        counts.batch_rows += given.tokens[r];
        counts.staged_rows += given.set(r) == row_set::kv ? given.tokens[r] : 0;
        counts.spread_requests += given.set(r) == row_set::spread ? 1 : 0;
        counts.kv_requests += given.set(r) == row_set::kv ? 1 : 0;
    }
    return counts;
}

// The arrays of one rank, as large as the counts say and full of what must not stay there.
struct step_memory {
    static constexpr std::int64_t junk = 777;
    numbers positions, batch_rows, slots, stage, last_of, prefill_rows, spread_rows, decode_rows, kv_rows, last_rows;
    numbers new_batch_rows, new_slots, new_stage, last_requests, decode_lengths, decode_counts;
    numbers local_lengths, row_lengths, row_requests;
    std::vector<visible_keys> rows;
    std::vector<segment> segments;
    std::vector<std::uint8_t> live;
    step_status status{7, 7, entry_fault::table};

    step_memory(const prefills& given, const prefill_counts& counts) {
        for (numbers* own : {&positions, &batch_rows, &slots, &stage, &last_of}) *own = filled(counts.rows, junk);
        prefill_rows = filled(counts.prefill_rows, junk);
        spread_rows = filled(counts.spread_rows, junk);
        decode_rows = filled(counts.decode_rows, junk);
        kv_rows = filled(counts.kv_rows, junk);
        last_rows = filled(counts.last_rows, junk);
        const std::int64_t arriving = given.pcp > 1 ? given.pcp * counts.prefill_rows : 0;
        for (numbers* other : {&new_batch_rows, &new_slots, &new_stage}) *other = filled(arriving, junk);
        last_requests = filled(given.pcp > 1 ? given.pcp * counts.last_rows : 0, junk);
        for (numbers* each : {&decode_lengths, &decode_counts, &local_lengths}) *each = filled(counts.requests, junk);
        const std::int64_t spread = given.owners * counts.spread_rows;
        row_lengths = row_requests = filled(spread, junk);
        rows = filled(spread, visible_keys{7, 7, 70, 70, 7});
        segments = filled(given.owners * (2 * counts.spread_requests + 1), segment{77, 77, 77, 77, 177, 77, 77});
        live = filled(given.ranks * spread, std::uint8_t{77});
    }
    prefill_arrays arrays() {
        return {positions.data(),
                batch_rows.data(),
                slots.data(),
                stage.data(),
                last_of.data(),
                prefill_rows.data(),
                spread_rows.data(),
                decode_rows.data(),
                kv_rows.data(),
                last_rows.data(),
                new_batch_rows.data(),
                new_slots.data(),
                new_stage.data(),
                last_requests.data(),
                decode_lengths.data(),
                decode_counts.data(),
                {rows.data(), segments.data(), nullptr, local_lengths.data(), live.data(), row_lengths.data(),
                 row_requests.data(), &status}};
    }
};

// Writes and checks the arrays of the rank of these coordinates; names what is wrong.
class step_check {
public:
    step_check(const prefills& given, std::int64_t pcp_rank, std::int64_t tp_rank)
        : given_(given), law_(given.law(pcp_rank, tp_rank)), pcp_rank_(pcp_rank), kv_rank_(law_.part.rank),
          counts_(counts_of(given, pcp_rank)), memory_(given, counts_) {}

    // Pairs of request and rank are written in random order, some by several workers that share their rows: each is
    // independent of the others.
    std::string run(std::mt19937_64& random) {
        const prefill_metadata_args args{given_.batch(kv_rank_), law_, counts_, memory_.arrays()};
        struct job {
            std::int64_t request, rank;
            row_share share;
        };
        std::vector<job> jobs;
        for (std::int64_t rank = 0; rank < given_.pcp; ++rank)
            for (std::int64_t r = 0; r <= counts_.requests; ++r) {
                const std::int64_t workers = 1 + plain::at_most(random, 2);
                for (std::int64_t worker = 0; worker < workers; ++worker) jobs.push_back({r, rank, {worker, workers}});
            }
        std::shuffle(jobs.begin(), jobs.end(), random);
        for (const job& one : jobs) {
            prefill_offsets at;
            for (std::int64_t r = 0; r < one.request; ++r) at.pass(law_, request_of(args.batch, r), one.rank);
            if (one.request < counts_.requests) {
                write_prefill_request(args, one.request, at, one.rank, one.share);
            } else {
                write_prefill_filling(args, at, one.rank, one.share);
            }
        }
        check_own_rows();
        check_sets();
        check_arriving();
        check_writes();
        check_decode();
        check_spread();
        return wrong_;
    }

private:
    std::int64_t position(const prefill_row& row) const { return given_.computed[row.request] + row.token; }
    bool is_last(const prefill_row& row) const { return row.token == given_.tokens[row.request] - 1; }
    bool stays(const prefill_row& row) const { return row.real && (given_.pcp == 1 || given_.decodes(row.request)); }
    std::int64_t batch_row(const prefill_row& row) const {
        return row.real ? given_.batch_row(row.request) + row.token : -1;
    }
    std::int64_t slot(const prefill_row& row) const {
        return row.real ? given_.slot(row.request, kv_rank_, position(row)) : -1;
    }
    std::int64_t stage(const prefill_row& row) const {
        const bool staged = row.real && given_.set(row.request) == row_set::kv;
        return staged ? given_.staged_row(row.request) + row.token : -1;
    }

    void check_own_rows() {
        const std::vector<prefill_row> own = given_.rows_on(pcp_rank_);
        numbers positions, batch_rows, slots, stages, lasts;
        for (const prefill_row& row : own) {
            positions.push_back(position(row));
            batch_rows.push_back(batch_row(row));
            slots.push_back(stays(row) ? slot(row) : -1);
            stages.push_back(stays(row) ? stage(row) : -1);
            lasts.push_back(is_last(row) ? static_cast<std::int64_t>(row.request) : -1);
        }
        expect(memory_.positions, positions, 0, "positions");
        expect(memory_.batch_rows, batch_rows, -1, "batch_rows");
        expect(memory_.slots, slots, -1, "slots");
        expect(memory_.stage, stages, -1, "stage");
        expect(memory_.last_of, lasts, -1, "last_of");
    }

    void check_sets() {
        const std::vector<prefill_row> own = given_.rows_on(pcp_rank_);
        numbers prefill, lasts;
        std::map<row_set, numbers> sets; // every row in one of them
        for (std::size_t i = 0; i < own.size(); ++i) {
            const auto row = static_cast<std::int64_t>(i);
            sets[given_.set(own[i].request)].push_back(row);
            if (!given_.decodes(own[i].request)) prefill.push_back(row);
            if (!given_.decodes(own[i].request) && is_last(own[i])) lasts.push_back(row);
        }
        expect(memory_.prefill_rows, prefill, -1, "prefill_rows");
        expect(memory_.spread_rows, sets[row_set::spread], -1, "spread_rows");
        expect(memory_.decode_rows, sets[row_set::decode], -1, "decode_rows");
        expect(memory_.kv_rows, sets[row_set::kv], -1, "kv_rows");
        expect(memory_.last_rows, lasts, -1, "last_rows");
    }

    // Rows of prefills from all PCP ranks, each rank's filled up to the largest.
    void check_arriving() {
        numbers batch_rows, slots, stages, lasts;
        for (std::int64_t rank = 0; rank < given_.pcp && given_.pcp > 1; ++rank) {
            for (const prefill_row& row : given_.rows_on(rank)) {
                if (given_.decodes(row.request)) continue;
                batch_rows.push_back(batch_row(row));
                slots.push_back(slot(row));
                stages.push_back(stage(row));
                if (is_last(row)) lasts.push_back(static_cast<std::int64_t>(row.request));
            }
            for (numbers* list : {&batch_rows, &slots, &stages})
                list->resize(static_cast<std::size_t>((rank + 1) * counts_.prefill_rows), -1);
            lasts.resize(static_cast<std::size_t>((rank + 1) * counts_.last_rows), -1);
        }
        expect(memory_.new_batch_rows, batch_rows, -1, "new_batch_rows");
        expect(memory_.new_slots, slots, -1, "new_slots");
        expect(memory_.new_stage, stages, -1, "new_stage");
        expect(memory_.last_requests, lasts, -1, "last_requests");
    }

    // Over own and arriving rows together every new token that the rank owns is written once, and nothing else; every
    // new token of a request whose keys travel is staged once; every batch row comes back.
    void check_writes() {
        numbers slots, wanted, staged, all_staged, back, all_back;
        for (std::size_t r = 0; r < given_.requests(); ++r)
            for (std::int64_t t = 0; t < given_.tokens[r]; ++t) {
                const std::int64_t at = given_.slot(r, kv_rank_, given_.computed[r] + t);
                if (at >= 0) wanted.push_back(at);
                all_back.push_back(given_.batch_row(r) + t);
            }
        for (std::int64_t i = 0; i < counts_.staged_rows; ++i) all_staged.push_back(i);
        const auto collect = [](numbers& into, const numbers& from) {
            std::copy_if(from.begin(), from.end(), std::back_inserter(into), [](std::int64_t x) { return x >= 0; });
        };
        for (const numbers* list : {&memory_.slots, &memory_.new_slots}) collect(slots, *list);
        for (const numbers* list : {&memory_.stage, &memory_.new_stage}) collect(staged, *list);
        for (const numbers* list : {&memory_.batch_rows, &memory_.new_batch_rows}) collect(back, *list);
        std::sort(back.begin(), back.end());
        back.erase(std::unique(back.begin(), back.end()), back.end()); // own prefill rows arrive once more
        for (numbers* list : {&slots, &wanted, &staged}) std::sort(list->begin(), list->end());
        note(slots == wanted, "written slots");
        note(staged == all_staged, "staged rows");
        note(back == all_back, "restored rows");
    }

    void check_decode() {
        for (std::size_t r = 0; r < given_.requests(); ++r) {
            const bool decode = given_.set(r) == row_set::decode;
            note(memory_.decode_lengths[r] == (decode ? given_.total(r) : 0), "decode_lengths");
            note(memory_.decode_counts[r] == (decode ? given_.tokens[r] : 0), "decode_counts");
        }
    }

    void check_spread() {
        note(memory_.status.bad_entries == 0 && memory_.status.first_request == -1, "status");
        for (std::size_t r = 0; r < given_.requests(); ++r) {
            const auto held = static_cast<std::int64_t>(given_.held(r, kv_rank_).size());
            note(memory_.local_lengths[r] == (given_.set(r) == row_set::spread ? held : 0), "local_lengths");
        }
        const std::int64_t first_owner = pcp_rank_ - pcp_rank_ % given_.owners;
        std::size_t row = 0;
        std::size_t run = 0;
        for (std::int64_t owner = 0; owner < given_.owners; ++owner) {
            for (std::size_t r = 0; r < given_.requests(); ++r) {
                if (given_.set(r) != row_set::spread) continue;
                const auto chunks = plain::dealt_chunks(given_.tokens[r], given_.pcp, given_.split);
                const auto head = static_cast<std::size_t>(first_owner + owner);
                for (const numbers& tokens : {chunks[head], chunks[chunks.size() - 1 - head]}) {
                    check_segment(run++, r, row, tokens);
                    for (const std::int64_t token : tokens)
                        check_spread_row(row++, {r, token, token < given_.tokens[r]});
                }
            }
            const auto end = static_cast<std::size_t>((owner + 1) * counts_.spread_rows);
            check_segment(run++, 0, row, numbers(end - row));
            for (; row < end; ++row) check_filling(row);
        }
        note(static_cast<std::int64_t>(run) == spread_segments(law_, counts_.spread_requests), "spread_segments");
    }

    void check_spread_row(std::size_t row, const prefill_row& of) {
        const numbers held = given_.held(of.request, kv_rank_);
        const visible_keys& got = memory_.rows[row];
        std::int64_t bound = 0; // own tokens up to the row's own one
        for (std::size_t j = 0; j < held.size(); ++j) {
            note(got.sees(static_cast<std::int64_t>(j)) == given_.sees(of, held[j]), "spread rows");
            bound += of.real && held[j] <= position(of) ? 1 : 0;
        }
        note(got.hi <= static_cast<std::int64_t>(held.size()) && got.lo <= got.hi && got.prefix <= got.lo, "bounds");
        note(memory_.row_lengths[row] == bound, "row_lengths");
        note(memory_.row_requests[row] == static_cast<std::int64_t>(of.request), "row_requests");
        for (std::int64_t rank = 0; rank < given_.ranks; ++rank) {
            bool any = false;
            for (const std::int64_t each : given_.held(of.request, rank)) any = any || given_.sees(of, each);
            note(live(rank, row) == (any ? 1 : 0), "live");
        }
    }

    void check_filling(std::size_t row) {
        note(memory_.rows[row] == visible_keys{} && memory_.row_lengths[row] == 0 && memory_.row_requests[row] == -1,
             "filling");
        for (std::int64_t rank = 0; rank < given_.ranks; ++rank) note(live(rank, row) == 0, "live filling");
    }

    // Head, tail or filling; its rows are checked apart.
    void check_segment(std::size_t index, std::size_t request, std::size_t first_row, const numbers& tokens) {
        const segment& run = memory_.segments[index];
        note(run.first_row == static_cast<std::int64_t>(first_row) &&
                 run.rows == static_cast<std::int64_t>(tokens.size()) &&
                 run.request == static_cast<std::int64_t>(request),
             "segments");
        note(run.splits() <= 1, "splits");
        std::int64_t lo = 0;
        std::int64_t hi = 0;
        std::int64_t bound = 0; // of all rows that are no pads
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            const visible_keys& row = memory_.rows[first_row + i];
            bound = std::max(bound, memory_.row_lengths[first_row + i]);
            note(row.lo >= lo && row.hi >= hi, "order in a segment");
            lo = row.lo;
            hi = row.hi;
            for (std::int64_t key = 0; key < row.hi; ++key)
                note(!row.sees(key) || (run.begin <= key && key < run.end), "keys of a segment");
        }
        note(run.end <= bound, "end of a segment");
    }

    std::uint8_t live(std::int64_t rank, std::size_t row) const {
        const std::int64_t stride = given_.owners * counts_.spread_rows;
        return memory_.live[static_cast<std::size_t>(rank * stride) + row];
    }
    void expect(const numbers& got, numbers wanted, std::int64_t filling, const char* what) {
        note(wanted.size() <= got.size(), what);
        wanted.resize(got.size(), filling);
        note(got == wanted, what);
    }
    void note(bool right, const char* what) {
        if (!right && wrong_.find(what) == std::string::npos) wrong_ += std::string(what) + "; ";
    }

    const prefills& given_;
    prefill_law law_;
    std::int64_t pcp_rank_;
    std::int64_t kv_rank_;
    prefill_counts counts_;
    step_memory memory_;
    std::string wrong_;
};

void check_all_ranks(std::mt19937_64& random, const prefills& given) {
    CAPTURE(given.pcp);
    CAPTURE(given.ranks);
    CAPTURE(given.interleave);
    CAPTURE(static_cast<int>(given.split));
    for (std::int64_t rank = 0; rank < given.pcp; ++rank)
        for (std::int64_t tp = 0; tp < given.tp(); ++tp) {
            CAPTURE(rank);
            CAPTURE(tp);
            CHECK(step_check(given, rank, tp).run(random) == "");
        }
}

} // namespace

TEST_CASE("Own rows, sets, slots, stages and sights are those of dealt rows and asked tokens, for any batch") {
    std::mt19937_64 random(61);
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        for (int round = 0; round < 10; ++round)
            check_all_ranks(random, plain::random_prefills(random, pcp, ranks, split));
    });
}

TEST_CASE("Batches of one kind and one way: all spread, all decoded, all with travelling keys") {
    std::mt19937_64 random(62);
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        for (const std::int64_t kind : {0, 1})
            for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv}) {
                prefills given = plain::random_prefills(random, pcp, ranks, split);
                std::fill(given.kinds.begin(), given.kinds.end(), kind);
                given.tree_bits.clear();
                given.prefill_path = given.decode_path = path;
                check_all_ranks(random, given);
            }
    });
}

TEST_CASE("A batch without requests is all filling") {
    std::mt19937_64 random(63);
    prefills given;
    given.pcp = given.ranks = given.owners = 2;
    given.blocks = {{}, {}};
    check_all_ranks(random, given);
}
