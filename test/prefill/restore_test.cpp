// Rows of any width and type are scattered to the ranks that have them and put back in the order of the batch.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "../support/drawn.hpp"
#include "../support/prefill_ranks.hpp"

using namespace ctxpar_test;

namespace {

using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;

// Different for every element.
template <class T>
T numbered(std::int64_t number) {
    if constexpr (std::is_same_v<T, bf16>) {
        return bf16::from_bits(static_cast<std::uint16_t>(number + 1));
    } else {
        return static_cast<T>(number + 1);
    }
}

template <class T>
bool is_same(T a, T b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Rows with gaps between heads and rows, all of them `filled` at first.
template <class T>
class rows_of {
public:
    rows_of(std::int64_t rows, std::int64_t heads, std::int64_t width, T filled)
        : memory_(static_cast<std::size_t>(rows * (heads * (width + 2) + 3)) + 1, filled) {
        view_ = dense_view(memory_.data(), rows, heads, width);
        view_.head_stride = width + 2;
        view_.row_stride = heads * (width + 2) + 3;
    }
    rows_of(const rows_of&) = delete;

    const head_view<T>& view() const { return view_; }
    head_view<const T> input() const { return view_; }

    void number_row(std::int64_t row, std::int64_t as) const {
        each(row, [&](T& x, std::int64_t i) { x = numbered<T>(as * view_.heads * view_.width + i); });
    }
    bool holds_row(std::int64_t row, std::int64_t as) const {
        bool holds = true;
        each(row, [&](T& x, std::int64_t i) {
            holds = holds && is_same(x, numbered<T>(as * view_.heads * view_.width + i));
        });
        return holds;
    }
    bool holds_only(std::int64_t row, T value) const {
        bool holds = true;
        each(row, [&](T& x, std::int64_t) { holds = holds && is_same(x, value); });
        return holds;
    }

private:
    template <class Use>
    void each(std::int64_t row, const Use& use) const {
        for (std::int64_t head = 0; head < view_.heads; ++head)
            for (std::int64_t x = 0; x < view_.width; ++x) use(view_.at(row, head)[x], head * view_.width + x);
    }

    std::vector<T> memory_;
    head_view<T> view_;
};

// The first wrong thing, if any.
template <class T, class Rank>
std::string moves(const prefill_deployment& d, Rank& rank, const prefill_step& step, std::int64_t pcp_rank,
                  std::int64_t heads, std::int64_t width) {
    const T left = numbered<T>(30'000); // what nobody writes keeps
    const std::int64_t total = tokens_of(d.batch), requests = static_cast<std::int64_t>(d.batch.size());
    std::vector<std::int64_t> first_of{0}; // global row of each request's first token
    for (const new_tokens& each : d.batch) first_of.push_back(first_of.back() + each.tokens);

    const rows_of<T> all(total, heads, width, left), own(step.rows(), heads, width, left);
    for (std::int64_t row = 0; row < total; ++row) all.number_row(row, row);
    rank.used().scatter(step, all.input(), own.view(), rank.stream());
    rank.wait();
    const std::vector<own_row> mine = filled_rows(d, d.batch, pcp_rank);
    for (std::int64_t row = 0; row < step.rows(); ++row) {
        const own_row& it = mine[static_cast<std::size_t>(row)];
        const bool right = it.real ? own.holds_row(row, first_of[static_cast<std::size_t>(it.request)] + it.token)
                                   : own.holds_only(row, T{});
        if (!right) return sentence("row ", row, " was scattered wrongly");
        if (!it.real) own.number_row(row, 29'000); // must not come back
    }

    const rows_of<T> back(total, heads, width, left);
    rank.used().restore(step, own.input(), back.view(), rank.stream());
    rank.wait();
    for (std::int64_t row = 0; row < total; ++row)
        if (!back.holds_row(row, row)) return sentence("row ", row, " was restored wrongly");

    const rows_of<T> last(requests, heads, width, left);
    rank.used().restore_last(step, own.input(), last.view(), rank.stream());
    rank.wait();
    for (std::int64_t i = 0; i < requests; ++i) {
        const bool none = d.batch[static_cast<std::size_t>(i)].tokens == 0;
        const bool right =
            none ? last.holds_only(i, left) : last.holds_row(i, first_of[static_cast<std::size_t>(i) + 1] - 1);
        if (!right) return sentence("the last row of request ", i, " was restored wrongly");
    }
    return "";
}

void check_moves(const prefill_deployment& d) {
    if (!is_drawn(d)) return;
    const prefill_data data = plant(d);
    std::vector<std::string> problems(static_cast<std::size_t>(d.world()));
    const auto make = plain_backends(d);
    suite_ranks::run(d, [&](suite_ranks::communicator& world) {
        prefill_rank<policy_type> rank(world, d, data, policy_for<policy_type>(d), make(world.rank()));
        const prefill_step step = rank.plan(d.batch);
        const std::int64_t pcp_rank = world.rank() / d.sizes.tp;
        std::string& problem = problems[static_cast<std::size_t>(world.rank())];
        problem = moves<float>(d, rank, step, pcp_rank, 1, 7);
        if (problem.empty()) problem = moves<bf16>(d, rank, step, pcp_rank, 3, 5);
        if (problem.empty()) problem = moves<std::int32_t>(d, rank, step, pcp_rank, 1, 1);
        if (!rank.scratch().guards_hold()) problem = "something was written behind the workspace";
    });
    INFO(describe(d));
    for (const std::string& problem : problems) CHECK(problem == "");
}

prefill_deployment over(std::int64_t pcp) {
    prefill_deployment d;
    d.sizes.pcp = pcp;
    d.q_heads = 2 * pcp;
    d.block_size = 4;
    d.earlier_steps = 0;
    d.hidden_bytes = 30;
    return d;
}

} // namespace

TEST_CASE("restoring inverts scattering, for every split and any number of ranks") {
    for (const std::int64_t pcp : {1, 2, 3, 4}) {
        for (const zigzag_split split : {zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil}) {
            for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv}) {
                prefill_deployment d = over(pcp);
                d.sizes.dcp = path == prefill_path::gather_kv ? pcp : 1;
                d.split = split;
                d.prefill_rows = d.decode_rows = path;
                for (const std::int64_t n : {1, 2, 3, 5, 8, 21}) {
                    d.seed = static_cast<std::uint64_t>(n);
                    d.serve({prefills(4, n)});
                    check_moves(d);
                    d.serve({prefills(0, n), decodes(9), prefills(30, 11), decodes(40, 4), prefills(3, 0),
                             prefills(7, 2), decodes(2, 0)});
                    d.threads = n % 3;
                    d.threads += d.threads == 0 ? 1 : 0;
                    check_moves(d);
                }
            }
        }
    }
}

TEST_CASE("ranks of several TP coordinates restore all rows") {
    prefill_deployment d = over(2);
    d.sizes.tp = 2;
    d.sizes.dcp = 4;
    d.q_heads = 8;
    d.serve({decodes(9), prefills(30, 11), prefills(0, 6)});
    check_moves(d);
}

TEST_CASE("decode rows and empty batches are restored without a word to other ranks") {
    for (const new_batch& batch : {new_batch{decodes(3), decodes(0, 2)}, new_batch{prefills(4, 0)}, new_batch{}}) {
        prefill_deployment d = over(2);
        d.hidden_bytes = 0; // nothing may travel
        d.serve(batch);
        check_moves(d);
    }
}
