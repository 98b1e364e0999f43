// One pass over the shards of a group, used alone: its output is plain attention, for one rank and for two, whichever
// of heads and rows are theirs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <support/plain_merge.hpp>
#include <support/reference.hpp>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/decode/pass.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>

#include <attention/plain_rows.hpp>

using namespace ctxpar;

namespace {

using pass_policy = policy<gqa<float, 4, 3>, interleave<2>, merge::dynamic>;

constexpr std::int64_t length = 13, rows = 6, heads = 4, key_width = 4, value_width = 3, block_size = 4, blocks = 4;

// The last six tokens of one sequence, of four query heads on one KV head.
struct sequence {
    std::vector<float> q, k, v, sinks;

    sequence() {
        const auto fill = [](std::vector<float>& to, std::int64_t count, float step) {
            for (std::int64_t i = 0; i < count; ++i) to.push_back(2 * std::sin(step * static_cast<float>(i + 1)));
        };
        fill(q, rows * heads * key_width, 1.3F);
        fill(k, length * key_width, 2.1F);
        fill(v, length * value_width, 0.7F);
        fill(sinks, heads, 0.9F);
    }
    ctxpar_test::attention_result attended(bool with_sinks) const {
        ctxpar_test::attention_problem ask;
        ask.length = length;
        ask.rows = rows;
        ask.q_heads = heads;
        ask.key_width = key_width;
        ask.value_width = value_width;
        ask.q = q.data();
        ask.k = k.data();
        ask.v = v.data();
        ask.scale = 0.5; // 1 / sqrt(key_width), what the policy says where a call says nothing
        ask.sinks = with_sinks ? sinks.data() : nullptr;
        return ctxpar_test::attend(ask);
    }
};

// N ranks, m of them with heads of their own, and the rows spread over s of them.
struct cut {
    std::int64_t ranks = 1, m = 1, s = 1;
    std::int64_t own_rows() const { return rows / s; }
    std::int64_t own_heads() const { return heads / m; }
    std::int64_t first_row(std::int64_t rank) const { return rank % s * own_rows(); }
    std::int64_t first_head(std::int64_t rank) const { return rank / (ranks / m) * own_heads(); }
};

// One rank's shard of the sequence, the metadata of the step and all the memory that a pass needs.
class pass_rank {
public:
    pass_rank(const sequence& of, const cut& how, std::int64_t rank, merge_kind kind)
        : how_(how), rank_(rank), policy_{{}, {}, {kind}}, keys_(blocks * block_size * key_width, NAN),
          values_(blocks * block_size * value_width, NAN) {
        const std::vector<std::int64_t> held = plain::positions_of(how.ranks, 2, rank, length);
        for (std::size_t j = 0; j < held.size(); ++j) {
            const auto at = static_cast<std::int64_t>(j);
            const std::int64_t slot = ids_[j / block_size] * block_size + at % block_size;
            std::copy_n(of.k.data() + held[j] * key_width, key_width, keys_.data() + slot * key_width);
            std::copy_n(of.v.data() + held[j] * value_width, value_width, values_.data() + slot * value_width);
        }
        for (std::int64_t row = 0; row < how.own_rows(); ++row)
            for (std::int64_t head = 0; head < how.own_heads(); ++head) {
                const std::int64_t at = (how.first_row(rank) + row) * heads + how.first_head(rank) + head;
                queries_.insert(queries_.end(), of.q.data() + at * key_width, of.q.data() + (at + 1) * key_width);
            }
        set_shape();
        write_metadata();
        carver counting(nullptr);
        detail::carve_pass(counting, policy_, backend_, shape_, 1);
        memory_.assign(counting.bytes() + workspace_alignment, std::byte{0xff});
    }

    template <lse_base LseBase>
    void run(const groups<local_communicator>& ranks, const float* sinks, std::vector<float>& out,
             std::vector<lse<LseBase>>& lses) {
        const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
        carver carve(memory_.data() + (workspace_alignment - start % workspace_alignment) % workspace_alignment);
        const auto buffers = detail::carve_pass(carve, policy_, backend_, shape_, 1);
        const auto states = static_cast<std::size_t>(how_.own_rows() * how_.own_heads());
        out.assign(states * value_width, NAN);
        lses.assign(states, lse<LseBase>{NAN});
        layer_options<LseBase> options;
        options.sinks = sinks;
        options.lse_out = dense_view(lses.data(), how_.own_rows(), how_.own_heads(), 1);
        const detail::shard_pass<pass_policy, cpu_backend, local_communicator> pass{
            ranks, backend_, policy_, shape_, plan_, buffers, how_.first_head(rank_), 1};
        const kv_view<const float> cache =
            nhd_kv(keys_.data(), values_.data(), blocks, block_size, 1, key_width, value_width);
        pass.run(dense_view(static_cast<const float*>(queries_.data()), how_.own_rows(), how_.own_heads(), key_width),
                 cache, dense_view(out.data(), how_.own_rows(), how_.own_heads(), value_width), options, {});
    }

private:
    void set_shape() {
        shape_.ranks = how_.ranks;
        shape_.distinct_tp = how_.m;
        shape_.row_owners = how_.s;
        shape_.rows = rows;
        shape_.gathered_heads = heads;
        shape_.query_width = key_width;
        shape_.value_width = value_width;
        shape_.query_bytes = shape_.partial_bytes = shape_.output_bytes = sizeof(float);
        shape_.query_type = shape_.partial_type = shape_.output_type = scalar_type::f32;
        shape_.merged_lse = true;
    }
    void write_metadata() {
        const std::int64_t num_rows = rows;
        decode_batch batch;
        batch.requests = 1;
        batch.lengths = index_of(&length_);
        batch.query_rows = index_of(&num_rows);
        batch.table = table_2d(ids_, 1, blocks, block_size);
        live_.resize(static_cast<std::size_t>(how_.ranks * rows));
        plan_.arrays = {seen_, segments_, slots_, &local_length_, live_.data(), lengths_, requests_, &status_};
        backend_.metadata({batch, rows, length, blocks, 1, {how_.ranks, rank_, 2}, plan_.arrays}, {});
        plan_.table = batch.table;
        plan_.rows = rows;
        plan_.requests = 1;
        plan_.segments = 2;
        plan_.heads = heads;
        plan_.kv_heads = 1;
        plan_.query_width = key_width;
        plan_.value_width = value_width;
    }

    cut how_;
    std::int64_t rank_;
    pass_policy policy_;
    cpu_backend backend_;
    std::vector<float> keys_, values_, queries_;
    exchange_shape shape_;
    attention_plan plan_;
    const std::int64_t length_ = length;
    const std::int64_t ids_[blocks] = {2, 0, 3, 1};
    visible_keys seen_[rows];
    segment segments_[2];
    std::int64_t slots_[rows], lengths_[rows], requests_[rows], local_length_ = 0;
    std::vector<std::uint8_t> live_;
    step_status status_;
    std::vector<std::byte> memory_;
};

template <lse_base LseBase>
void check_rank(const sequence& of, const cut& how, const groups<local_communicator>& ranks, merge_kind kind,
                bool with_sinks) {
    const std::int64_t rank = group_rank(ranks.kv);
    pass_rank own(of, how, rank, kind);
    std::vector<float> out;
    std::vector<lse<LseBase>> lses;
    own.run(ranks, with_sinks ? of.sinks.data() : nullptr, out, lses);
    const ctxpar_test::attention_result expected = of.attended(with_sinks);
    plain::relative_error error;
    std::size_t at = 0;
    for (std::int64_t row = 0; row < how.own_rows(); ++row)
        for (std::int64_t head = 0; head < how.own_heads(); ++head, ++at) {
            const auto state =
                static_cast<std::size_t>((how.first_row(rank) + row) * heads + how.first_head(rank) + head);
            const double unit = LseBase == lse_base::natural ? 1.0 : 1 / std::log(2.0);
            CHECK(plain::near_lse(lses[at].value, expected.lse[state] * unit));
            for (std::size_t d = 0; d < value_width; ++d)
                error.add(out[at * value_width + d], expected.out[state * value_width + d]);
        }
    CHECK(error.value() <= 1e-6);
}

void check_rank(const sequence& of, const cut& how, const groups<local_communicator>& ranks, merge_kind kind) {
    for (const bool with_sinks : {false, true}) {
        check_rank<lse_base::natural>(of, how, ranks, kind, with_sinks);
        check_rank<lse_base::binary>(of, how, ranks, kind, with_sinks);
    }
}

constexpr merge_kind kinds[] = {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a};

} // namespace

TEST_CASE("A pass of one rank is plain attention, in place or through a merge of one") {
    for (const merge_kind kind : kinds) check_rank(sequence(), {}, {}, kind);
}

TEST_CASE("A pass of two ranks with heads of their own is plain attention") {
    const sequence of;
    for (const merge_kind kind : kinds)
        run_local_ranks(2, {}, [&](local_communicator& comm) {
            check_rank(of, {2, 2, 1}, {&comm, &comm, nullptr, nullptr}, kind);
        });
}

TEST_CASE("A pass of two ranks with the same heads and rows is plain attention on both") {
    const sequence of;
    for (const merge_kind kind : kinds)
        run_local_ranks(2, {}, [&](local_communicator& comm) {
            check_rank(of, {2, 1, 1}, {&comm, nullptr, &comm, nullptr}, kind);
        });
}

TEST_CASE("A pass of two ranks with rows of their own is plain attention") {
    const sequence of;
    for (const merge_kind kind : kinds)
        run_local_ranks(2, {}, [&](local_communicator& comm) {
            check_rank(of, {2, 1, 2}, {&comm, nullptr, nullptr, nullptr}, kind);
        });
}
