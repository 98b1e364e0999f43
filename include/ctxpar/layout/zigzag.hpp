// How the query tokens of a prefill are split over the PCP ranks: head and tail, so that causal work is even.
//
// Under a causal mask later tokens see more, so equal slices are unfair. The n new tokens of a request are cut into 2W
// chunks, and rank w takes chunk w (its head) and then chunk 2W-1-w (its tail); the two add up to about the same work
// on every rank. Rows of decode requests are on every rank. Requests keep their order on every rank, head before tail.
//
// zigzag_law is the formula, for one request, on host and device: which tokens a rank has, and the inverse, where a
// token is. zigzag is a whole batch on the host: every array that a split needs, from that one law.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <ctxpar/core/config.hpp>
#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1 {

// How n tokens become 2W chunks.
//   balanced  n/(2W) tokens each, the first n mod 2W chunks one more: ranks differ by at most one token
//   padded    c = ceil(n/(2W)) rows each, [i*c, (i+1)*c): rows at and past n are pads, which count as rows
//   ceil      the same cut at n: chunks at the end may be short or empty
enum class zigzag_split : std::uint8_t { balanced, padded, ceil };

// What the rows of a request are: a prefill is split over the PCP ranks, decode rows (verify rows too) are on all.
enum class row_kind : std::int32_t { prefill = 0, decode = 1 };

// New tokens [first, first + count) of a request; under `padded` those past its last token are pads.
struct token_run {
    std::int64_t first = 0;
    std::int64_t count = 0;

    friend constexpr bool operator==(const token_run&, const token_run&) = default;
};

// Where a token's row lies: on which PCP rank, and which of that rank's rows of the request it is.
struct row_place {
    std::int64_t rank = 0;
    std::int64_t row = 0;

    friend constexpr bool operator==(const row_place&, const row_place&) = default;
};

// The split of one prefill request over W ranks. Functions expect 0 <= tokens and 0 <= rank < pcp.
struct zigzag_law {
    std::int64_t pcp = 1; // W
    zigzag_split split = zigzag_split::balanced;

    // Chunk i of 2W; a chunk without tokens has count 0.
    CTXPAR_HD constexpr token_run chunk(std::int64_t tokens, std::int64_t i) const {
        const std::int64_t each = tokens / (2 * pcp);
        const std::int64_t more = tokens % (2 * pcp);
        if (split == zigzag_split::balanced) return {i * each + (i < more ? i : more), each + (i < more ? 1 : 0)};
        const std::int64_t size = each + (more > 0 ? 1 : 0);
        if (split == zigzag_split::padded) return {i * size, size};
        const std::int64_t first = i * size < tokens ? i * size : tokens;
        return {first, tokens - first < size ? tokens - first : size};
    }
    CTXPAR_HD constexpr token_run head(std::int64_t tokens, std::int64_t rank) const { return chunk(tokens, rank); }
    CTXPAR_HD constexpr token_run tail(std::int64_t tokens, std::int64_t rank) const {
        return chunk(tokens, 2 * pcp - 1 - rank);
    }

    // Rows of the request on a rank, pads included.
    CTXPAR_HD constexpr std::int64_t rows(std::int64_t tokens, std::int64_t rank) const {
        return head(tokens, rank).count + tail(tokens, rank).count;
    }

    // The largest of rows() over all ranks. Chunks do not grow with i, so no rank has more than one of chunk 0's size
    // and one of chunk W's, and rank 0 or rank W-1 has as many.
    CTXPAR_HD constexpr std::int64_t most_rows(std::int64_t tokens) const {
        return chunk(tokens, 0).count + chunk(tokens, pcp).count;
    }

    // The token of a rank's row i; tokens or more where the row is a pad.
    CTXPAR_HD constexpr std::int64_t token(std::int64_t tokens, std::int64_t rank, std::int64_t i) const {
        const token_run first = head(tokens, rank);
        return i < first.count ? first.first + i : tail(tokens, rank).first + (i - first.count);
    }

    // The inverse of token(): where token t of the request is, 0 <= t < tokens.
    CTXPAR_HD constexpr row_place place(std::int64_t tokens, std::int64_t t) const {
        const std::int64_t i = chunk_of(tokens, t);
        const std::int64_t inside = t - chunk(tokens, i).first;
        if (i < pcp) return {i, inside};
        const std::int64_t rank = 2 * pcp - 1 - i;
        return {rank, head(tokens, rank).count + inside};
    }

    friend constexpr bool operator==(const zigzag_law&, const zigzag_law&) = default;

private:
    CTXPAR_HD constexpr std::int64_t chunk_of(std::int64_t tokens, std::int64_t t) const {
        const std::int64_t each = tokens / (2 * pcp);
        const std::int64_t more = tokens % (2 * pcp);
        if (split != zigzag_split::balanced) return t / (each + (more > 0 ? 1 : 0));
        const std::int64_t in_larger = more * (each + 1);
        return t < in_larger ? t / (each + 1) : more + (t - in_larger) / each;
    }
};

static_assert(std::is_trivially_copyable_v<zigzag_law>);

// No PCP group is larger; a bound that keeps every product of this file in 63 bits.
inline constexpr std::int64_t max_pcp = std::int64_t{1} << 24;

// config_error "pcp" for W < 1 or W > max_pcp.
inline zigzag_law make_zigzag(std::int64_t pcp, zigzag_split split = zigzag_split::balanced) {
    require(pcp >= 1 && pcp <= max_pcp, "pcp", "the number of PCP ranks is ", pcp, "; it must be 1 to ", max_pcp);
    return {pcp, split};
}

// One request of a batch: its new tokens, the tokens computed before them, and what its rows are.
struct zigzag_request {
    std::int64_t tokens = 0;
    std::int64_t computed = 0;
    row_kind kind = row_kind::prefill;
};

// A run of rows of one request on one rank: new tokens [first, first + count), pads included, which see `context`
// positions before their own first one.
struct zigzag_segment {
    std::int64_t request = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t context = 0;

    friend constexpr bool operator==(const zigzag_segment&, const zigzag_segment&) = default;
};

// The split of a batch, with its own inverse. Global batch rows number the real tokens of all requests in order. A rank
// has rows() rows; where its requests have fewer, the last ones are pads. A gathered array has the rows of all ranks,
// rank-major: W * rows().
class zigzag {
public:
    // config_error "pcp"; "request" for a negative number, an unknown kind, or work that does not fit 63 bits.
    zigzag(std::int64_t pcp, std::span<const zigzag_request> requests, zigzag_split split = zigzag_split::balanced)
        : law_(make_zigzag(pcp, split)), requests_(requests.begin(), requests.end()) {
        std::int64_t work = 0; // a bound for all of them
        for (std::size_t r = 0; r < requests_.size(); ++r) work += check(r, work);
        for (std::int64_t rank = 0; rank < law_.pcp; ++rank) rows_ = rows_ < rows(rank) ? rows(rank) : rows_;
    }

    const zigzag_law& law() const { return law_; }
    std::span<const zigzag_request> requests() const { return requests_; }

    // M: rows of every rank, pads included.
    std::int64_t rows() const { return rows_; }

    // Rows of the requests on one rank.
    std::int64_t rows(std::int64_t rank) const {
        std::int64_t count = 0;
        for (const zigzag_request& request : requests_) count += rows_of(request, rank);
        return count;
    }

    // Real tokens of the whole batch.
    std::int64_t batch_rows() const {
        std::int64_t count = 0;
        for (const zigzag_request& request : requests_) count += request.tokens;
        return count;
    }

    // Runs of rows on one rank, in order; together they are its first rows(rank) rows. Empty runs are left out; head
    // and tail stay two where they touch.
    std::vector<zigzag_segment> segments(std::int64_t rank) const {
        std::vector<zigzag_segment> all;
        for (std::size_t r = 0; r < requests_.size(); ++r) {
            const zigzag_request& request = requests_[r];
            const bool everywhere = request.kind == row_kind::decode;
            add(all, r, everywhere ? token_run{0, request.tokens} : law_.head(request.tokens, rank));
            if (!everywhere) add(all, r, law_.tail(request.tokens, rank));
        }
        return all;
    }

    // The position of each of a rank's rows, pads of `padded` included; the filling up to rows() is left out. What a
    // rotary embedding needs.
    std::vector<std::int64_t> positions(std::int64_t rank) const {
        std::vector<std::int64_t> all;
        for (const zigzag_segment& run : segments(rank))
            for (std::int64_t i = 0; i < run.count; ++i) all.push_back(run.context + i);
        return all;
    }

    // [W * rows()] the global batch row of each gathered row, -1 for a pad.
    std::vector<std::int64_t> gather() const {
        std::vector<std::int64_t> all(gathered_rows(), -1);
        each_row([&](const placed_row& row) { all[row.place] = row.global; });
        return all;
    }

    // [batch_rows()] for each global batch row its place among the gathered rows; decode rows are taken from rank 0.
    // The inverse of gather(): restored[x] = gathered[restore()[x]].
    std::vector<std::int64_t> restore() const {
        std::vector<std::int64_t> all(static_cast<std::size_t>(batch_rows()), -1);
        each_row([&](const placed_row& row) {
            if (row.counts) all[static_cast<std::size_t>(row.global)] = static_cast<std::int64_t>(row.place);
        });
        return all;
    }

    // [W * rows()] whether the new K and V of a gathered row count: not for pads, and once for decode rows.
    std::vector<bool> kv_write() const {
        std::vector<bool> all(gathered_rows(), false);
        each_row([&](const placed_row& row) { all[row.place] = row.counts; });
        return all;
    }

    // [W] the positions that a rank's real prefill rows may see under a causal mask, added up.
    std::vector<std::int64_t> work() const {
        std::vector<std::int64_t> all(static_cast<std::size_t>(law_.pcp), 0);
        each_row([&](const placed_row& row) {
            if (row.kind == row_kind::prefill) all[static_cast<std::size_t>(row.rank)] += row.position + 1;
        });
        return all;
    }

    // [requests] the place of each request's last real token among the gathered rows, -1 for a request without one:
    // what sampling needs. Decode rows are taken from rank 0.
    std::vector<std::int64_t> last() const {
        const std::vector<std::int64_t> places = restore();
        std::vector<std::int64_t> all;
        std::size_t end = 0;
        for (const zigzag_request& request : requests_) {
            end += static_cast<std::size_t>(request.tokens);
            all.push_back(request.tokens == 0 ? -1 : places[end - 1]);
        }
        return all;
    }

private:
    // The most work that request r can be, where it may be added to `before`.
    std::int64_t check(std::size_t r, std::int64_t before) const {
        constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
        const zigzag_request& request = requests_[r];
        require(request.tokens >= 0 && request.computed >= 0, "request", "request ", r, " has ", request.tokens,
                " new tokens after ", request.computed, " computed ones; both must be at least 0");
        require(request.kind == row_kind::prefill || request.kind == row_kind::decode, "request", "request ", r,
                " has rows of kind ", static_cast<std::int32_t>(request.kind),
                "; it must be 0 (prefill) or 1 (decode)");
        const bool fits =
            request.computed <= most - request.tokens - 2 * law_.pcp &&
            (request.tokens == 0 || request.computed + request.tokens <= (most - before) / request.tokens);
        require(fits, "request", "request ", r, " has ", request.tokens, " new tokens after ", request.computed,
                " computed ones; new tokens times all tokens, added up over the requests, must fit 63 bits");
        return request.tokens * (request.computed + request.tokens);
    }

    std::int64_t rows_of(const zigzag_request& request, std::int64_t rank) const {
        return request.kind == row_kind::decode ? request.tokens : law_.rows(request.tokens, rank);
    }

    std::size_t gathered_rows() const { return static_cast<std::size_t>(law_.pcp * rows_); }

    void add(std::vector<zigzag_segment>& all, std::size_t r, const token_run& run) const {
        if (run.count > 0)
            all.push_back({static_cast<std::int64_t>(r), run.first, run.count, requests_[r].computed + run.first});
    }

    // A gathered row that is a real token.
    struct placed_row {
        std::size_t place = 0;   // among the gathered rows
        std::int64_t global = 0; // batch row
        std::int64_t rank = 0;
        std::int64_t position = 0;
        row_kind kind = row_kind::prefill;
        bool counts = true; // false for the copies of a decode row on ranks other than 0
    };

    template <class Use>
    void each_row(const Use& use) const {
        for (std::int64_t rank = 0; rank < law_.pcp; ++rank) {
            std::int64_t place = rank * rows_;
            std::int64_t first = 0;
            for (const zigzag_request& request : requests_) {
                const bool everywhere = request.kind == row_kind::decode;
                const std::int64_t count = rows_of(request, rank);
                for (std::int64_t i = 0; i < count; ++i, ++place) {
                    const std::int64_t token = everywhere ? i : law_.token(request.tokens, rank, i);
                    if (token < request.tokens)
                        use(placed_row{static_cast<std::size_t>(place), first + token, rank, request.computed + token,
                                       request.kind, !everywhere || rank == 0});
                }
                first += request.tokens;
            }
        }
    }

    zigzag_law law_;
    std::vector<zigzag_request> requests_;
    std::int64_t rows_ = 0;
};

} // namespace ctxpar::inline v0_1
