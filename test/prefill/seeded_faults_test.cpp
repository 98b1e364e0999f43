// The bounds and the data of these tests find the faults that prefills invite: every seeded one is further off than ten
// times what is allowed. They are seeded through a backend that a user could write, which without a fault is exact.
#include "runs.hpp"

#include <algorithm>
#include <functional>

using namespace ctxpar_test;

namespace {

enum class prefill_fault {
    none,
    newest_dropped,   // a row does not see its own token
    tail_short,       // rows of a tail see one token less
    owners_exchanged, // rows of two PCP ranks are taken for each other
    rank_order,       // pages of a chunk in the order in which they arrive
    pages_reversed,   // spans of a chunk are taken for one another
    sum_lost,         // a chunk of context replaces what was accumulated before it
    chunk_lost,       // what a chunk of context adds is left out
    pad_written,      // a pad's keys are kept as those of a token
    decode_shifted,   // a decode row is written where the next token belongs
};

class faulty_prefill_backend : public suite_ranks::backend {
public:
    explicit faulty_prefill_backend(prefill_fault fault) : fault_(fault) {}

    void metadata(const metadata_args& args, stream_type stream) {
        suite_ranks::backend::metadata(args, stream);
        suite_ranks::finish(stream);
        if (fault_ != prefill_fault::newest_dropped) return;
        for (std::int64_t request = 0; request < args.batch.requests; ++request) {
            const segment& run = args.out.segments[request];
            for (std::int64_t i = 0; i < run.rows; ++i)
                if (args.part.owns(args.batch.lengths.at(request) - run.rows + i))
                    shorten(args.out.rows[run.first_row + i]);
        }
    }

    void prefill_metadata(const prefill_metadata_args& args, stream_type stream) {
        suite_ranks::backend::prefill_metadata(args, stream);
        suite_ranks::finish(stream);
        const prefill_law& law = args.law;
        const step_arrays& spread = args.out.spread;
        const std::int64_t per_owner = 2 * args.counts.spread_requests + 1;
        for (std::int64_t s = 0; s < per_owner * law.row_owners && args.counts.spread_rows > 0; ++s) {
            const segment& run = spread.segments[s];
            if (s % per_owner == per_owner - 1 || run.rows == 0) continue;
            const bool tail = s % per_owner % 2 == 1;
            const prefill_request request = request_of(args.batch, run.request);
            const std::int64_t owner = law.first_row_owner() + s / per_owner;
            const token_run tokens =
                tail ? law.split.tail(request.tokens, owner) : law.split.head(request.tokens, owner);
            for (std::int64_t i = 0; i < run.rows; ++i)
                if (shortens(tail) && law.part.owns(request.computed + tokens.first + i))
                    shorten(spread.rows[run.first_row + i]);
        }
        if (fault_ == prefill_fault::owners_exchanged && law.row_owners > 1) {
            std::swap_ranges(spread.rows, spread.rows + args.counts.spread_rows, spread.rows + args.counts.spread_rows);
            for (std::int64_t s = 0; s < per_owner; ++s) {
                segment &first = spread.segments[s], &second = spread.segments[s + per_owner];
                std::swap(first, second);
                std::swap(first.first_row, second.first_row);
            }
        }
        if (fault_ == prefill_fault::pad_written) write_pads(args);
        if (fault_ == prefill_fault::decode_shifted) shift_decodes(args);
    }

    void piece_metadata(const piece_metadata_args& args, stream_type stream) {
        suite_ranks::backend::piece_metadata(args, stream);
        suite_ranks::finish(stream);
        const piece_arrays& out = args.out;
        if (!args.piece.context) return spoil_new_tokens(args);
        const std::int64_t last = args.piece.chunk.last_request;
        const std::int64_t pages =
            out.page_offsets[last] + (out.rows.local_lengths[last] + page(args) - 1) / page(args);
        if (fault_ == prefill_fault::rank_order) std::sort(out.pages, out.pages + pages);
        if (fault_ == prefill_fault::pages_reversed) std::reverse(out.pages, out.pages + pages);
        if (fault_ == prefill_fault::chunk_lost) std::fill_n(out.rows.live, args.rows, 0);
        forgets_ = fault_ == prefill_fault::sum_lost;
    }

    template <lse_base Base>
    void accumulate(accumulate_args<Base> args, stream_type stream) {
        args.first = args.first || forgets_;
        forgets_ = false;
        suite_ranks::backend::accumulate(args, stream);
    }

private:
    static std::int64_t page(const piece_metadata_args& args) { return args.piece.law.law.interleave; }

    static void shorten(visible_keys& row) {
        row.hi = std::max(row.lo, row.hi - 1);
        row.tail = row.hi;
    }
    bool shortens(bool tail) const {
        return fault_ == prefill_fault::newest_dropped || (fault_ == prefill_fault::tail_short && tail);
    }

    // Rows of the piece whose own token is in it.
    void spoil_new_tokens(const piece_metadata_args& args) const {
        const prefill_law& law = args.law;
        std::int64_t row = 0;
        for (std::int64_t index = 0; index < args.batch.requests; ++index) {
            const prefill_request request = request_of(args.batch, index);
            if (law.set_of(request) != row_set::kv) continue;
            const std::int64_t head =
                request.decodes ? request.tokens : law.split.head(request.tokens, law.pcp_rank).count;
            for (std::int64_t i = 0; i < law.rows_of(request, law.pcp_rank); ++i, ++row)
                if (shortens(i >= head) && law.token_of(request, law.pcp_rank, i) < request.tokens)
                    shorten(args.out.rows.rows[row]);
        }
    }

    // Every pad of a prefill that arrives goes where the first token of the batch is.
    static void write_pads(const prefill_metadata_args& args) {
        const std::int64_t first = args.law.part.rank * args.law.part.interleave;
        const std::int64_t slot = slot_of(args.law.part, args.batch.table, 0, first);
        for (std::int64_t row = 0; row < args.law.split.pcp * args.counts.prefill_rows; ++row)
            if (args.out.new_batch_rows[row] < 0) args.out.new_slots[row] = args.out.new_stage[row] = slot;
    }

    static void shift_decodes(const prefill_metadata_args& args) {
        std::int64_t row = 0;
        for (std::int64_t index = 0; index < args.batch.requests; ++index) {
            const prefill_request request = request_of(args.batch, index);
            const std::int64_t count = args.law.rows_of(request, args.law.pcp_rank);
            for (std::int64_t i = 0; i < count && request.decodes; ++i) {
                const std::int64_t position = request.computed + i;
                if (args.out.slots[row + i] >= 0)
                    args.out.slots[row + i] = slot_of(args.law.part, args.batch.table, index, position - 1);
            }
            row += count;
        }
    }

    prefill_fault fault_;
    bool forgets_ = false; // the next sum starts anew
};

static_assert(backend<faulty_prefill_backend>);

using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;

prefill_result run_faulty(const prefill_deployment& d, const prefill_data& data, prefill_fault fault) {
    return run_prefill<policy_type>(d, data, policy_for<policy_type>(d),
                                    [&](int) { return faulty_prefill_backend(fault); });
}

prefill_deployment over(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 2;
    d.block_size = 4;
    d.earlier_steps = 0; // no fault before the step that is tested
    d.finite_pads = true;
    d.serve({prefills(48, 21), decodes(40, 3), prefills(48, 18)});
    return d;
}

const std::array<std::array<std::int64_t, 3>, 3> topologies{{{1, 2, 2}, {2, 2, 4}, {1, 4, 2}}};
const std::array<prefill_path, 2> both_paths{prefill_path::gather_q, prefill_path::gather_kv};
const std::array<prefill_path, 1> queries_travel{prefill_path::gather_q};
const std::array<prefill_path, 1> keys_travel{prefill_path::gather_kv};

template <class Paths>
void check_fault(prefill_fault fault, const Paths& paths, const std::function<void(prefill_deployment&)>& change = {}) {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const prefill_path path : paths) {
            prefill_deployment d = over(tp, pcp, dcp);
            d.prefill_rows = d.decode_rows = path;
            if (change) change(d);
            if (!is_drawn(d)) continue;
            const prefill_data data = plant(d);
            INFO(describe(d));
            const prefill_result right = run_faulty(d, data, prefill_fault::none);
            CHECK(right.problem() == "");
            CHECK(distance_of(d, data, right).right());
            CHECK(distance_of(d, data, run_faulty(d, data, fault)).out > 10.0);
        }
    }
}

} // namespace

TEST_CASE("a newest token that a prefill row does not see is found") {
    check_fault(prefill_fault::newest_dropped, both_paths);
}
TEST_CASE("a tail whose context is one token short is found") {
    check_fault(prefill_fault::tail_short, both_paths);
}
TEST_CASE("rows of two PCP ranks that are taken for each other are found") {
    check_fault(prefill_fault::owners_exchanged, queries_travel, [](prefill_deployment& d) {
        d.serve({prefills(48, 24), decodes(40, 3), prefills(48, 16)}); // as many rows on every rank
    });
}
TEST_CASE("gathered context in the order of ranks is found") {
    check_fault(prefill_fault::rank_order, keys_travel, [](prefill_deployment& d) { d.mask.window = 30; });
}
TEST_CASE("chunks of two requests that are taken for each other are found") {
    check_fault(prefill_fault::pages_reversed, keys_travel);
}
TEST_CASE("a chunk that replaces the chunks before it is found") {
    check_fault(prefill_fault::sum_lost, keys_travel, [](prefill_deployment& d) { d.context_rows = 32; });
}
TEST_CASE("a chunk that is not accumulated is found") {
    check_fault(prefill_fault::chunk_lost, keys_travel, [](prefill_deployment& d) { d.context_rows = 32; });
}
TEST_CASE("a pad whose keys are kept is found") {
    check_fault(prefill_fault::pad_written, both_paths, [](prefill_deployment& d) { d.split = zigzag_split::padded; });
}
TEST_CASE("a decode row that is written one token early is found") {
    check_fault(prefill_fault::decode_shifted, queries_travel, [](prefill_deployment& d) {
        d.serve({prefills(48, 21), decodes(40, 2), prefills(48, 18)});
    });
}

// The decode row's token stands twice in the cache, and the row sees both.
TEST_CASE("a decode row that counts twice beside a prefill is found") {
    for (const auto& [tp, pcp, dcp] : topologies) {
        for (const prefill_path path : both_paths) {
            prefill_deployment d = over(tp, pcp, dcp);
            d.prefill_rows = d.decode_rows = path;
            d.serve({prefills(48, 21), decodes(40), prefills(48, 18)});
            if (!is_drawn(d)) continue;
            const prefill_data data = plant(d);
            prefill_deployment longer = d;
            longer.serve({prefills(48, 21), decodes(41), prefills(48, 18)});
            prefill_data twice = data;
            planted_sequence& sequence = twice.sequences[1];
            const std::vector<float> k(sequence.k.end() - d.kv_heads * d.key_width, sequence.k.end());
            const std::vector<float> v(sequence.v.end() - d.kv_heads * d.value_width, sequence.v.end());
            sequence.k.insert(sequence.k.end(), k.begin(), k.end());
            sequence.v.insert(sequence.v.end(), v.begin(), v.end());
            std::vector<float>& queries = twice.queries[1];
            const std::vector<float> q(queries.end() - d.q_heads * d.key_width, queries.end());
            queries.insert(queries.end(), q.begin(), q.end());
            INFO(describe(d));
            CHECK(distance_of(d, data, run(d, data)).right());
            CHECK(distance_of(longer, twice, run(longer, twice)).right());
            CHECK(distance_of(d, data, run(longer, twice)).out > 10.0);
        }
    }
}
