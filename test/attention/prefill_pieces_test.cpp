// Pieces of keys that are brought to a rank, put together as the ranks would: every key that a piece's pages name is
// the right token, and over all pieces every row sees what it sees in its sequence, once.
#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <attention/plain_prefill.hpp>

#include <ctxpar/attention/prefill_pieces.hpp>

using namespace ctxpar;
using plain::numbers;
using plain::prefill_row;
using plain::prefills;

namespace {

template <class T>
std::vector<T> filled(std::int64_t count, T value) {
    return std::vector<T>(static_cast<std::size_t>(count), value);
}

// A cached or staged token; nothing where a rank fills its part up.
struct token_at {
    std::int64_t request = -1;
    std::int64_t position = -1;
    friend bool operator==(const token_at&, const token_at&) = default;
};

// The arrays of one piece, as large as they must be and full of what must not stay there.
struct piece_memory {
    static constexpr std::int64_t junk = 777;
    numbers starts, page_offsets, pages, slots, local_lengths, row_lengths, row_requests;
    std::vector<visible_keys> rows;
    std::vector<segment> segments;
    std::vector<std::uint8_t> live;

    piece_memory(const prefills& given, const kv_piece& piece, std::int64_t num_rows, std::int64_t num_requests) {
        const auto requests = static_cast<std::int64_t>(given.requests());
        const ownership& law = piece.law.law;
        for (numbers* each : {&starts, &page_offsets, &local_lengths}) *each = filled(requests, junk);
        pages = filled(law.ranks * piece.chunk.rows_per_rank / law.interleave, junk);
        slots = filled(piece.chunk.rows_per_rank, junk);
        row_lengths = row_requests = filled(num_rows, junk);
        rows = filled(num_rows, visible_keys{7, 7, 70, 70, 7});
        segments = filled(2 * num_requests + 1, segment{77, 77, 77, 77, 177, 77, 77});
        live = filled(num_rows, std::uint8_t{77});
    }
    piece_arrays arrays() {
        return {{rows.data(), segments.data(), nullptr, local_lengths.data(), live.data(), row_lengths.data(),
                 row_requests.data(), nullptr},
                starts.data(),
                page_offsets.data(),
                pages.data(),
                slots.data()};
    }
};

// All pieces of one rank; names what is wrong.
class piece_check {
public:
    // New tokens come in pieces of `new_rows`; `filling` attended rows belong to no request; arrays are written by some
    // workers at the same time.
    piece_check(const prefills& given, std::int64_t pcp_rank, std::int64_t tp_rank, std::int64_t new_rows,
                std::int64_t filling, std::int64_t workers)
        : given_(given), law_(given.law(pcp_rank, tp_rank)), pcp_rank_(pcp_rank), new_rows_(new_rows),
          filling_(filling), workers_(workers), seen_(kv_rows(pcp_rank, 0, given.requests()).size()) {}

    std::string run() {
        bool first = true;
        each_piece({{1, 1}, new_rows_}, false, [&](kv_piece piece) {
            piece.all_rows = first;
            first = false;
            check(piece);
        });
        each_piece(law_.gather, true, [&](const kv_piece& piece) { check(piece); });
        const std::vector<prefill_row> all = kv_rows(pcp_rank_, 0, given_.requests());
        for (std::size_t i = 0; i < all.size(); ++i)
            for (std::int64_t p = 0; p < given_.total(all[i].request); ++p) {
                const auto found = seen_[i].find(p);
                note((found == seen_[i].end() ? 0 : found->second) == (given_.sees(all[i], p) ? 1 : 0), "sights");
            }
        return wrong_;
    }
    int pieces() const { return pieces_; }

private:
    template <class Use>
    void each_piece(const gather_law& gather, bool context, const Use& use) {
        const prefill_batch batch = given_.batch(law_.part.rank);
        kv_piece piece;
        piece.law = gather;
        piece.context = context;
        for (;; piece.from = piece.chunk.next) {
            piece.chunk = gather.chunk(
                piece.from, batch.requests, [&](std::int64_t r) { return piece_range(batch, law_, context, r); },
                [](const context_span&) {});
            if (piece.chunk.rows_per_rank == 0) return;
            ++pieces_;
            use(piece);
        }
    }

    // A PCP rank's rows of requests [first, last) whose keys travel.
    std::vector<prefill_row> kv_rows(std::int64_t pcp_rank, std::size_t first, std::size_t last) const {
        std::vector<prefill_row> rows;
        for (const prefill_row& row : given_.rows_on(pcp_rank))
            if (row.request >= first && row.request < last && given_.set(row.request) == row_set::kv)
                rows.push_back(row);
        return rows;
    }
    static std::size_t first_of(const kv_piece& piece) {
        return piece.all_rows ? 0 : static_cast<std::size_t>(piece.chunk.first_request);
    }
    std::size_t end_of(const kv_piece& piece) const {
        return piece.all_rows ? given_.requests() : static_cast<std::size_t>(piece.chunk.last_request) + 1;
    }
    std::int64_t kv_requests(const kv_piece& piece) const {
        std::int64_t count = 0;
        for (std::size_t r = first_of(piece); r < end_of(piece); ++r) count += given_.set(r) == row_set::kv ? 1 : 0;
        return count;
    }

    // What the library writes for a piece on the rank of these coordinates.
    piece_memory written(const kv_piece& piece, std::int64_t pcp_rank, std::int64_t tp_rank) const {
        const prefill_law law = given_.law(pcp_rank, tp_rank);
        const std::size_t attended = kv_rows(pcp_rank, first_of(piece), end_of(piece)).size();
        const std::int64_t rows = static_cast<std::int64_t>(attended) + (piece.all_rows ? filling_ : 0);
        piece_memory memory(given_, piece, rows, kv_requests(piece));
        const piece_metadata_args args{given_.batch(law.part.rank), law, piece, rows, memory.arrays()};
        if (workers_ == 1) {
            write_piece(args);
            return memory;
        }
        std::barrier meeting(workers_);
        std::vector<std::jthread> threads;
        for (std::int64_t worker = 0; worker < workers_; ++worker)
            threads.emplace_back([&, worker] {
                write_piece(args, {worker, workers_}, [&] { meeting.arrive_and_wait(); });
            });
        threads.clear(); // joins them
        return memory;
    }

    void check(const kv_piece& piece) {
        const piece_memory got = written(piece, pcp_rank_, law_.part.rank / given_.owners);
        check_extent(piece);
        check_keys(piece, got, gathered(piece, got));
        std::size_t row = 0;
        std::size_t run = 0;
        const std::size_t before = kv_rows(pcp_rank_, 0, first_of(piece)).size();
        for (std::size_t r = first_of(piece); r < end_of(piece); ++r) {
            if (given_.set(r) != row_set::kv) continue;
            std::vector<prefill_row> own = kv_rows(pcp_rank_, r, r + 1);
            std::size_t head = own.size();
            if (!given_.decodes(r)) {
                const auto chunks = plain::dealt_chunks(given_.tokens[r], given_.pcp, given_.split);
                head = chunks[static_cast<std::size_t>(pcp_rank_)].size();
            }
            check_segment(got, run++, r, row, head);
            check_segment(got, run++, r, row + head, own.size() - head);
            for (const prefill_row& each : own) {
                check_row(piece, got, row, each, seen_[before + row]);
                ++row;
            }
        }
        check_segment(got, run, 0, row, got.rows.size() - row);
        note(run + 1 == got.segments.size(), "number of segments");
        for (; row < got.rows.size(); ++row)
            note(got.rows[row] == visible_keys{} && got.live[row] == 0 && got.row_lengths[row] == 0 &&
                     got.row_requests[row] == -1,
                 "filling");
    }

    void check_extent(const kv_piece& piece) {
        const piece_extent got = extent_of(given_.batch(law_.part.rank), law_, piece);
        const auto size = [&](std::size_t first, std::size_t last) {
            return static_cast<std::int64_t>(kv_rows(pcp_rank_, first, last).size());
        };
        note(got.first_row == size(0, first_of(piece)) && got.rows == size(first_of(piece), end_of(piece)) &&
                 got.requests == kv_requests(piece),
             "extent");
    }

    // The tokens of the rows that all ranks of the KV group put into a piece, or that the stage holds.
    std::vector<token_at> gathered(const kv_piece& piece, const piece_memory& own) {
        std::vector<token_at> all;
        if (!piece.context) {
            std::vector<token_at> staged;
            for (std::size_t r = 0; r < given_.requests(); ++r)
                for (std::int64_t t = 0; t < given_.tokens[r] && given_.set(r) == row_set::kv; ++t)
                    staged.push_back({static_cast<std::int64_t>(r), given_.computed[r] + t});
            for (const std::int64_t at : own.slots)
                all.push_back(at < 0 ? token_at{} : staged.at(static_cast<std::size_t>(at)));
            if (staged.size() == own.slots.size()) // one piece has them all: they are attended where they lie
                for (std::size_t i = 0; i < staged.size(); ++i)
                    note(own.slots[i] == static_cast<std::int64_t>(i), "staged rows in one piece");
            return all;
        }
        for (std::int64_t kv_rank = 0; kv_rank < given_.ranks; ++kv_rank) {
            std::map<std::int64_t, token_at> cached;
            for (std::size_t r = 0; r < given_.requests(); ++r)
                for (std::int64_t p = 0; p < given_.computed[r]; ++p)
                    cached[given_.slot(r, kv_rank, p)] = {static_cast<std::int64_t>(r), p};
            cached[-1] = {};
            const std::int64_t pcp_rank = pcp_rank_ - pcp_rank_ % given_.owners + kv_rank % given_.owners;
            for (const std::int64_t at : written(piece, pcp_rank, kv_rank / given_.owners).slots) {
                note(cached.count(at) == 1, "slots");
                all.push_back(cached.count(at) == 1 ? cached[at] : token_at{});
            }
        }
        return all;
    }

    // Every key of a span is found through the pages; cached tokens that no row sees are not read.
    void check_keys(const kv_piece& piece, const piece_memory& got, const std::vector<token_at>& rows) {
        const std::int64_t page = piece.law.law.interleave;
        for (std::size_t r = first_of(piece); r < end_of(piece); ++r)
            for (std::int64_t key = 0; key < got.local_lengths[r]; ++key) {
                const std::int64_t block = got.pages[static_cast<std::size_t>(got.page_offsets[r] + key / page)];
                const auto row = static_cast<std::size_t>(block * page + key % page);
                const std::int64_t position = first_position(piece, got, r) + key;
                bool read = !piece.context;
                for (std::int64_t t = 0; t < given_.tokens[r]; ++t) read = read || given_.sees({r, t, true}, position);
                const token_at wanted = read ? token_at{static_cast<std::int64_t>(r), position} : token_at{};
                note(row < rows.size() && rows[row] == wanted, "pages");
            }
    }
    std::int64_t first_position(const kv_piece& piece, const piece_memory& got, std::size_t r) const {
        return got.starts[r] + (piece.context ? 0 : given_.computed[r]);
    }

    void check_row(const kv_piece& piece, const piece_memory& got, std::size_t row, const prefill_row& of,
                   std::map<std::int64_t, int>& seen) {
        const visible_keys& keys = got.rows[row];
        const std::int64_t length = got.local_lengths[of.request];
        std::int64_t count = 0;
        std::int64_t last = -1;
        for (std::int64_t key = 0; key < length; ++key) {
            const std::int64_t position = first_position(piece, got, of.request) + key;
            note(keys.sees(key) == given_.sees(of, position), "rows");
            if (!keys.sees(key)) continue;
            ++seen[position];
            ++count;
            last = key;
        }
        note(0 <= keys.prefix && keys.prefix <= keys.lo && keys.lo <= keys.hi && keys.hi <= length, "bounds");
        note(keys.hi - keys.tail <= max_tree_nodes, "tail");
        note(keys.count() == count, "count");
        note(got.live[row] == (count > 0 ? 1 : 0), "live");
        note(got.row_requests[row] == static_cast<std::int64_t>(of.request), "row_requests");
        note(got.row_lengths[row] > last && got.row_lengths[row] <= keys.hi, "row_lengths");
        const bool plain_row = given_.mask == mask_rule{} && given_.tree_bits.empty();
        note(!plain_row || got.row_lengths[row] == count, "row_lengths without a mask");
    }

    void check_segment(const piece_memory& got, std::size_t index, std::size_t request, std::size_t first_row,
                       std::size_t rows) {
        const segment& run = got.segments[index];
        note(run.request == static_cast<std::int64_t>(request) &&
                 run.first_row == static_cast<std::int64_t>(first_row) && run.rows == static_cast<std::int64_t>(rows),
             "segments");
        note(run.splits() <= 1, "splits");
        for (std::size_t row = first_row; row < first_row + rows; ++row) {
            const visible_keys& keys = got.rows[row];
            note(row == first_row || (keys.lo >= got.rows[row - 1].lo && keys.hi >= got.rows[row - 1].hi),
                 "order in a segment");
            for (std::int64_t key = 0; key < keys.hi; ++key)
                note(!keys.sees(key) || (run.begin <= key && key < run.end), "keys of a segment");
        }
    }

    void note(bool right, const char* what) {
        if (!right && wrong_.find(what) == std::string::npos) wrong_ += std::string(what) + "; ";
    }

    const prefills& given_;
    prefill_law law_;
    std::int64_t pcp_rank_;
    std::int64_t new_rows_;
    std::int64_t filling_;
    std::int64_t workers_;
    std::vector<std::map<std::int64_t, int>> seen_; // of each own row whose keys travel, how often it saw a position
    int pieces_ = 0;
    std::string wrong_;
};

// All ranks of a batch; how many pieces there were.
int check_all_ranks(std::mt19937_64& random, const prefills& given, std::int64_t workers = 1) {
    CAPTURE(given.pcp);
    CAPTURE(given.ranks);
    CAPTURE(given.interleave);
    CAPTURE(static_cast<int>(given.split));
    int pieces = 0;
    for (std::int64_t rank = 0; rank < given.pcp; ++rank)
        for (std::int64_t tp = 0; tp < given.tp(); ++tp)
            for (const std::int64_t new_rows : {std::int64_t{1000}, 1 + plain::at_most(random, 9)}) {
                CAPTURE(rank);
                CAPTURE(tp);
                CAPTURE(new_rows);
                piece_check check(given, rank, tp, new_rows, plain::at_most(random, 2), workers);
                CHECK(check.run() == "");
                pieces += check.pieces();
            }
    return pieces;
}

} // namespace

TEST_CASE("Over all pieces a row sees what it sees in its sequence, once, through pages that name the right tokens") {
    std::mt19937_64 random(71);
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        int pieces = 0;
        for (int round = 0; round < 8; ++round) {
            prefills given = plain::random_prefills(random, pcp, ranks, split);
            if (round > 1) given.prefill_path = prefill_path::gather_kv;
            if (round > 3) given.decode_path = prefill_path::gather_kv;
            pieces += check_all_ranks(random, given);
        }
        CHECK(pieces > 20);
    });
}

TEST_CASE("Without a mask a row's length says what it sees of a piece") {
    std::mt19937_64 random(72);
    plain::for_each_split([&](std::int64_t pcp, std::int64_t ranks, zigzag_split split) {
        prefills given = plain::random_prefills(random, pcp, ranks, split);
        given.mask = {};
        given.tree_bits.clear();
        given.prefill_path = given.decode_path = prefill_path::gather_kv;
        check_all_ranks(random, given);
    });
}

TEST_CASE("Several workers write the same arrays as one") {
    std::mt19937_64 random(74);
    for (const std::int64_t workers : {2, 3}) {
        prefills given = plain::random_prefills(random, 2, 2, zigzag_split::padded);
        while (given.requests() < 3) given = plain::random_prefills(random, 2, 2, zigzag_split::padded);
        given.prefill_path = given.decode_path = prefill_path::gather_kv;
        check_all_ranks(random, given, workers);
    }
}

TEST_CASE("Requests that bring nothing to a piece have rows that see nothing of it") {
    std::mt19937_64 random(73);
    prefills given;
    given.pcp = given.ranks = given.owners = 2;
    given.units = 50; // one piece of context: of requests 0 and 2, and of 1 that has none
    given.prefill_path = given.decode_path = prefill_path::gather_kv;
    given.kinds = {0, 0, 1, 0};
    given.computed = {9, 0, 12, 0};
    given.tokens = {6, 7, 2, 0};
    given.columns = 20;
    given.blocks = {numbers(80), numbers(80)};
    for (numbers& ids : given.blocks) std::iota(ids.begin(), ids.end(), std::int64_t{0});
    CHECK(check_all_ranks(random, given) > 0);
}
