// Plans from bounds alone, as for lengths and tables that only a device can read: good entries give what a checked plan
// gives, bad ones become empty rows that are counted, and nothing outside the pool is touched.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

using policy_type = policy<gqa<bf16, 16>, interleave<>, merge::dynamic>;

// A good request, one that tests spoil, and a good one.
deployment three_requests() {
    deployment d;
    d.sizes = {2, 1, 2, 1, 1, 1};
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{50, 2}, {40, 3}, {33, 1}};
    d.table = table_form::csr;
    d.pad_rows = 2;
    d.bounds_plan = true;
    return d;
}

// A batch whose every number is a test's to spoil: lengths, rows, and a table of [offsets[r], offsets[r + 1]).
struct open_batch {
    std::vector<std::int64_t> lengths, rows, offsets{0}, ids;
    std::vector<std::uint64_t> tree_bits;

    open_batch(const deployment& d, const decode_batch& good) {
        for (std::size_t i = 0; i < d.requests.size(); ++i) {
            const auto request = static_cast<std::int64_t>(i);
            lengths.push_back(good.lengths.at(request));
            rows.push_back(good.query_rows.at(request));
            for (std::int64_t block = 0; block < good.table.blocks_of(request); ++block)
                ids.push_back(good.table.id(request, block));
            offsets.push_back(static_cast<std::int64_t>(ids.size()));
        }
    }

    decode_batch view(const deployment& d) const {
        decode_batch batch;
        batch.requests = static_cast<std::int64_t>(lengths.size());
        batch.lengths = index_of(lengths.data());
        batch.query_rows = index_of(rows.data());
        batch.table = table_csr(ids.data(), offsets.data(), batch.requests, d.block_size);
        batch.mask = d.mask;
        batch.tree_bits = tree_bits.empty() ? nullptr : tree_bits.data();
        return batch;
    }

    std::int64_t& id(std::size_t request, std::int64_t block) {
        return ids[static_cast<std::size_t>(offsets[request] + block)];
    }
};

struct spoiled_run {
    std::vector<rank_output> outputs;
    std::vector<step_status> statuses;
    std::vector<std::vector<std::int64_t>> slots;
    bool pool_holds = true; // no other slot than those of the good new rows was written
};

template <class Pool>
std::vector<bf16> key_of(const Pool& pool, std::int64_t slot) {
    const bf16* key = pool.view().key(slot, 0);
    return {key, key + pool.view().key_width};
}

// Runs the deployment after spoil(batch, shard) on every rank.
template <class Spoil>
spoiled_run run_spoiled(const deployment& d, const planted_data& data, const Spoil& spoil) {
    spoiled_run result;
    result.outputs.resize(static_cast<std::size_t>(d.world()));
    result.statuses.resize(result.outputs.size());
    result.slots.resize(result.outputs.size());
    std::vector<int> holds(result.outputs.size(), 1);
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        const auto number = static_cast<std::size_t>(world.rank());
        decode_rank<policy_type> rank(world, d, data, policy_for<policy_type>(d), suite_ranks::backend());
        rank.fill();
        open_batch batch(d, rank.batch());
        spoil(batch, rank.facts().shard);
        const decode_step step =
            rank.used().plan(batch.view(d), {d.rows() + d.pad_rows, d.longest()}, rank.scratch().view(), rank.stream());
        rank.wait();
        result.slots[number].assign(step.attention.arrays.slots, step.attention.arrays.slots + step.rows);
        const auto bits = [](const std::vector<bf16>& row) {
            std::vector<std::uint16_t> list;
            for (const bf16 element : row) list.push_back(element.bits);
            return list;
        };
        std::vector<std::vector<std::uint16_t>> before;
        for (std::int64_t slot = 0; slot < rank.pool().view().slots(); ++slot)
            before.push_back(bits(key_of(rank.pool(), slot)));
        rank.append(step);
        rank.wait();
        for (std::int64_t slot = 0; slot < rank.pool().view().slots(); ++slot) {
            const auto& own = result.slots[number];
            const bool may_change = std::find(own.begin(), own.end(), slot) != own.end();
            if (!may_change && bits(key_of(rank.pool(), slot)) != before[static_cast<std::size_t>(slot)])
                holds[number] = 0;
        }
        rank_report report;
        decode_into<float, lse_base::natural>(d, rank, step, result.outputs[number], report);
        result.statuses[number] = rank.used().check(step);
    });
    for (const int each : holds) result.pool_holds = result.pool_holds && each == 1;
    return result;
}

// The expectation with rows [first, last) neutral.
expectation without_rows(const deployment& d, expectation want, std::int64_t first, std::int64_t last) {
    const std::int64_t width = d.q_heads * d.value_width;
    std::fill(want.out.begin() + first * width, want.out.begin() + last * width, 0.0);
    want.floor.clear();
    std::fill(want.lse.begin() + first * d.q_heads, want.lse.begin() + last * d.q_heads, minus_infinity);
    return want;
}

// Request 1 (rows 2..4) is bad on all ranks: it is neutral and written nowhere, all others are exact.
template <class Spoil>
void check_spoiled(const deployment& d, entry_fault fault, const Spoil& spoil) {
    const planted_data data = plant(d);
    const std::int64_t first = d.requests[0].rows, last = first + d.requests[1].rows;
    const spoiled_run got = run_spoiled(d, data, spoil);
    const distance far = distance_between(d, without_rows(d, expected(d, data), first, last), got.outputs);
    INFO(std::string(name_of(fault)));
    CHECK(far.out <= 1.0);
    CHECK(far.lse <= 1.0);
    CHECK(got.pool_holds);
    for (std::size_t rank = 0; rank < got.outputs.size(); ++rank) {
        CHECK(got.statuses[rank].bad_entries == 1);
        CHECK(got.statuses[rank].first_request == 1);
        CHECK(got.statuses[rank].first_fault == fault);
        for (std::int64_t row = first; row < last; ++row) CHECK(got.slots[rank][static_cast<std::size_t>(row)] == -1);
    }
}

} // namespace

TEST_CASE("a plan from bounds gives the bits of a checked plan, and neutral pads") {
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        for (const bool tree : {false, true}) {
            deployment d = three_requests();
            d.requests = {{50, 2}, {0, 0}, {40, 5}, {2, 3}, {700, 1}};
            d.merge = merge;
            d.tree = tree;
            d.mask.window = tree ? 0 : 21;
            check_exact(d); // pads included
            d.pad_rows = 0;
            d.same_bits = true;
            const planted_data data = plant(d);
            const run_result bounded = run(d, data);
            d.bounds_plan = false;
            CHECK(same_bits(bounded, run(d, data)));
            for (const rank_report& report : bounded.reports) CHECK(report.status.bad_entries == 0);
        }
    }
}

TEST_CASE("a bad length makes an empty request") {
    for (const std::int64_t length :
         {std::int64_t{-1}, std::int64_t{51}, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::min()}) {
        check_spoiled(three_requests(), entry_fault::length,
                      [&](open_batch& batch, std::int64_t) { batch.lengths[1] = length; });
    }
}

TEST_CASE("a block id outside the pool makes an empty request") {
    for (const std::int64_t id :
         {std::int64_t{-1}, std::int64_t{1'000}, std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::min()}) {
        for (const std::int64_t block : {0, 2}) {
            check_spoiled(three_requests(), entry_fault::table,
                          [&](open_batch& batch, std::int64_t) { batch.id(1, block) = id; });
        }
    }
}

TEST_CASE("a table that is too short makes an empty request") {
    check_spoiled(three_requests(), entry_fault::table, [](open_batch& batch, std::int64_t) {
        // The last block of request 1 now belongs to nobody.
        batch.offsets[2] -= 1;
        batch.ids.erase(batch.ids.begin() + batch.offsets[2]);
        batch.offsets[3] -= 1;
    });
}

TEST_CASE("a tree of more than 64 rows makes an empty request") {
    deployment d = three_requests();
    d.requests[1] = {90, 65};
    check_spoiled(d, entry_fault::tree_rows, [&](open_batch& batch, std::int64_t) {
        // The tree of a plain sequence: a row sees all rows up to its own.
        for (const request& each : d.requests)
            for (std::int64_t i = 0; i < each.rows; ++i)
                batch.tree_bits.push_back(i >= 63 ? ~std::uint64_t{0} : (std::uint64_t{2} << i) - 1);
        batch.tree_bits.resize(static_cast<std::size_t>(d.rows() + d.pad_rows), 0);
    });
}

TEST_CASE("numbers of rows that do not fit leave earlier requests exact and the rest neutral") {
    for (const std::int64_t rows : {std::int64_t{100}, std::numeric_limits<std::int64_t>::max()}) {
        const deployment d = three_requests();
        const planted_data data = plant(d);
        const spoiled_run got = run_spoiled(d, data, [&](open_batch& batch, std::int64_t) { batch.rows[1] = rows; });
        const expectation want = without_rows(d, expected(d, data), 2, d.rows() + d.pad_rows);
        CHECK(distance_between(d, want, got.outputs).right());
        CHECK(got.pool_holds);
        for (const step_status& status : got.statuses) {
            CHECK(status.bad_entries == 2); // the last request finds no row left
            CHECK(status.first_request == 1);
            CHECK(status.first_fault == entry_fault::query_rows);
        }
    }
    // A negative number takes no rows: request 2 comes right behind request 0, and the rows behind it are pads.
    const deployment d = three_requests();
    const planted_data data = plant(d);
    const spoiled_run got = run_spoiled(d, data, [&](open_batch& batch, std::int64_t) { batch.rows[1] = -3; });
    expectation want = without_rows(d, expected(d, data), 3, d.rows() + d.pad_rows);
    deployment shifted = d; // request 2 with the query that stands in row 2
    shifted.requests = {d.requests[0], d.requests[2]};
    planted_data shifted_data = data;
    shifted_data.sequences.erase(shifted_data.sequences.begin() + 1);
    const expectation moved = expected(shifted, shifted_data);
    const std::int64_t width = d.q_heads * d.value_width;
    std::copy_n(moved.out.begin() + 2 * width, width, want.out.begin() + 2 * width);
    std::copy_n(moved.lse.begin() + 2 * d.q_heads, d.q_heads, want.lse.begin() + 2 * d.q_heads);
    for (const step_status& status : got.statuses) {
        CHECK(status.bad_entries == 1);
        CHECK(status.first_fault == entry_fault::query_rows);
    }
    // The new token that append is given in row 2 is request 1's, so only old tokens of request 2 are as planted.
    CHECK(got.pool_holds);
    CHECK(got.slots[0][3] == -1);
    CHECK(got.outputs[0].lse[3 * 4] == -std::numeric_limits<float>::infinity());
}

TEST_CASE("a table that is bad on one rank takes its share away and leaves other requests alone") {
    const deployment d = three_requests();
    const planted_data data = plant(d);
    const spoiled_run got = run_spoiled(d, data, [](open_batch& batch, std::int64_t shard) {
        if (shard == 1) batch.id(1, 1) = 1'000;
    });
    expectation want = expected(d, data);
    want.floor.clear();
    const cached_sequence cache = cached(d, data, 1);
    const attention_result rest =
        attend(problem_of(d, data, cache, 1), [&](std::int64_t token) { return d.owner(token) != 1; });
    std::copy(rest.out.begin(), rest.out.end(), want.out.begin() + 2 * d.q_heads * d.value_width);
    std::copy(rest.lse.begin(), rest.lse.end(), want.lse.begin() + 2 * d.q_heads);
    CHECK(distance_between(d, want, {got.outputs[0]}).right());
    CHECK(got.statuses[0].bad_entries == 0);
    CHECK(got.statuses[1].bad_entries == 1);
    CHECK(got.pool_holds);
    // On both ranks, all rows but those of request 1 have the bits of a good step.
    const spoiled_run good = run_spoiled(d, data, [](open_batch&, std::int64_t) {});
    for (std::size_t rank = 0; rank < 2; ++rank) {
        const std::vector<float>&bad_lse = got.outputs[rank].lse, &good_lse = good.outputs[rank].lse;
        const std::vector<float>&bad_out = got.outputs[rank].out, &good_out = good.outputs[rank].out;
        const auto row = static_cast<std::ptrdiff_t>(bad_lse.size()) / 8; // heads of a row; 6 rows and 2 pads
        const auto wide = row * d.value_width;
        CHECK(std::equal(bad_lse.begin(), bad_lse.begin() + 2 * row, good_lse.begin()));
        CHECK(std::equal(bad_lse.begin() + 5 * row, bad_lse.end(), good_lse.begin() + 5 * row));
        CHECK(std::equal(bad_out.begin(), bad_out.begin() + 2 * wide, good_out.begin()));
        CHECK(std::equal(bad_out.begin() + 5 * wide, bad_out.end(), good_out.begin() + 5 * wide));
    }
}

TEST_CASE("bounds that the decoder can not serve are refused") {
    const deployment d = three_requests();
    const planted_data data = plant(d);
    std::vector<std::string> codes;
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        decode_rank<policy_type> rank(world, d, data, policy_for<policy_type>(d), suite_ranks::backend());
        const std::int64_t rows = rank.used().shape().max_rows, longest = rank.used().shape().longest;
        for (const step_bounds& bounds :
             {step_bounds{rows + 1, 1}, step_bounds{-1, 1}, step_bounds{1, longest + 1}, step_bounds{1, -1}}) {
            try {
                rank.used().plan(rank.batch(), bounds, rank.scratch().view(), rank.stream());
                if (world.rank() == 0) codes.push_back("none");
            } catch (const config_error& problem) {
                if (world.rank() == 0) codes.push_back(problem.code());
            }
        }
    });
    CHECK(codes == std::vector<std::string>{"query_rows", "query_rows", "length", "length"});
}
