// A step is a value: several are alive at once, and one serves any number of layers.
#include <doctest/doctest.h>

#include "../support/decode_ranks.hpp"

using namespace ctxpar_test;

namespace {

using policy_type = policy<gqa<bf16, 16>, interleave<>, merge::dynamic>;

// Counts metadata operations of all of its copies.
class counting_backend : public suite_ranks::backend {
public:
    explicit counting_backend(std::int64_t& plans) : plans_(&plans) {}
    void metadata(const metadata_args& args, stream_type stream) {
        ++*plans_;
        suite_ranks::backend::metadata(args, stream);
    }

private:
    std::int64_t* plans_;
};

deployment four_requests(merge_kind merge) {
    deployment d;
    d.sizes = {2, 2, 4, 1, 1, 1};
    d.interleave = 2;
    d.block_size = 4;
    d.table = table_form::csr;
    d.requests = {{131, 2}, {64, 3}, {40, 1}, {200, 2}};
    d.merge = merge;
    d.merged_lse = false;
    d.same_bits = true;
    return d;
}

// Requests [first, first + count) of a batch whose table is CSR.
decode_batch part_of(const decode_batch& all, std::int64_t first, std::int64_t count, std::int64_t window) {
    decode_batch part = all;
    part.requests = count;
    part.lengths.data = static_cast<const std::int64_t*>(all.lengths.data) + first;
    part.query_rows.data = static_cast<const std::int32_t*>(all.query_rows.data) + first;
    part.table.row_offsets.data = static_cast<const std::int64_t*>(all.table.row_offsets.data) + first;
    part.table.requests = count;
    part.mask.window = window;
    return part;
}

// One micro-batch seen through one mask, with a workspace of its own.
struct micro_batch {
    decode_batch batch;
    std::int64_t first_row;
    guarded_workspace memory;
    decode_step step{};
};

// All micro-batches of a rank: two halves of the batch, each for full layers and for layers with a window.
template <class Rank>
std::vector<micro_batch> micro_batches(Rank& rank) {
    const decode_batch all = rank.batch();
    const std::size_t bytes = rank.used().workspace_bytes();
    std::vector<micro_batch> list;
    for (const std::int64_t window : {0, 30}) {
        list.push_back({part_of(all, 0, 2, window), 0, guarded_workspace(bytes)});
        list.push_back({part_of(all, 2, 2, window), 5, guarded_workspace(bytes)});
    }
    return list;
}

template <class Rank>
std::vector<float> decode_one(Rank& rank, const micro_batch& one) {
    const std::int64_t rows = one.step.rows, heads = rank.facts().output.count;
    std::vector<float> out(static_cast<std::size_t>(rows * heads * 16), std::numeric_limits<float>::quiet_NaN());
    rank.used().decode(one.step, rank.queries().slice_rows(one.first_row, rows),
                       kv_view<const bf16>(rank.pool().view()), dense_view(out.data(), rows, heads, 16),
                       layer_options<>{}, rank.stream());
    rank.wait();
    return out;
}

} // namespace

TEST_CASE("plans that are alive at once give the bits of one at a time") {
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        const deployment d = four_requests(merge);
        const planted_data data = plant(d);
        std::vector<int> same(static_cast<std::size_t>(d.world()), 0);
        suite_ranks::run(d, [&](suite_ranks::communicator& world) {
            decode_rank<policy_type> rank(world, d, data, policy_for<policy_type>(d), suite_ranks::backend());
            rank.fill();
            rank.append(rank.plan());
            std::vector<micro_batch> list = micro_batches(rank);
            std::vector<std::vector<float>> alone, together;
            for (micro_batch& one : list) {
                one.step = rank.used().plan(one.batch, one.memory.view(), rank.stream());
                alone.push_back(decode_one(rank, one));
            }
            // All planned again, in the other order, before any is decoded; two layers each, in turn.
            for (std::size_t i = list.size(); i > 0; --i)
                list[i - 1].step = rank.used().plan(list[i - 1].batch, list[i - 1].memory.view(), rank.stream());
            for (int layer = 0; layer < 2; ++layer)
                for (const micro_batch& one : list) together.push_back(decode_one(rank, one));
            int& count = same[static_cast<std::size_t>(world.rank())];
            for (std::size_t i = 0; i < together.size(); ++i)
                count += same_bits(together[i], alone[i % list.size()]) ? 1 : 0;
        });
        CHECK(same == std::vector<int>(same.size(), 8));
    }
}

TEST_CASE("a plan is made once a step, however many layers there are") {
    const deployment d = four_requests(merge_kind::a2a);
    const planted_data data = plant(d);
    std::vector<std::int64_t> plans(static_cast<std::size_t>(d.world()), 0);
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        decode_rank<policy_type, counting_backend> rank(
            world, d, data, policy_for<policy_type>(d),
            counting_backend(plans[static_cast<std::size_t>(world.rank())]));
        rank.fill();
        const decode_step step = rank.plan();
        rank_output output;
        rank_report report;
        for (int layer = 0; layer < 5; ++layer) {
            rank.append(step);
            decode_into<float, lse_base::natural>(d, rank, step, output, report);
        }
    });
    CHECK(plans == std::vector<std::int64_t>(plans.size(), 1));
}

TEST_CASE("a step serves the decoder that planned it") {
    deployment d = four_requests(merge_kind::a2a);
    d.sizes = {1, 1, 1, 1, 1, 1};
    deployment other = d;
    other.q_heads = 16;
    const planted_data data = plant(d), other_data = plant(other);
    std::string code, unplanned;
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        decode_rank<policy_type> one(world, d, data, policy_for<policy_type>(d), suite_ranks::backend());
        decode_rank<policy_type> two(world, other, other_data, policy_for<policy_type>(other), suite_ranks::backend());
        const decode_step step = one.plan();
        try {
            two.append(step);
        } catch (const config_error& problem) {
            code = problem.code();
        }
        try {
            one.append(decode_step{});
        } catch (const config_error& problem) {
            unplanned = problem.code();
        }
    });
    CHECK(code == "step");
    CHECK(unplanned == "step");
}
