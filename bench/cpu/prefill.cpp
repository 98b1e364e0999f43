// Prefill of a chunk behind cached context: GQA, 32 query and 8 KV heads of 128 in bf16, causal, over one rank or
// several by both paths. The new keys are appended before the clock starts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/prefill.hpp>

#include "crew.hpp"
#include "decode_case.hpp"
#include "machine.hpp"
#include "reference.hpp"
#include "suite.hpp"

namespace bench {
namespace {

using ctxpar::bf16;

struct prefill_case {
    std::int64_t computed = 8192; // tokens of context
    std::int64_t rows = 1024;     // new tokens
    std::int64_t ranks = 1;       // PCP and DCP
    std::int64_t threads = 1;     // of each rank
    ctxpar::prefill_path path = ctxpar::prefill_path::automatic;

    static constexpr std::int64_t q_heads = 32, kv_heads = 8, width = 128, block = 16, interleave = 16;

    std::int64_t tokens() const { return computed + rows; }
    std::int64_t blocks() const { // of a rank
        const std::int64_t group = ranks * interleave;
        return ((tokens() + group - 1) / group * interleave + block - 1) / block;
    }
    std::int64_t pool_bytes() const { return blocks() * block * kv_heads * width * 2 * 2; }
    // Of the scores and of the output, each visible key once.
    double flops() const {
        const auto seen =
            static_cast<double>(rows) * (static_cast<double>(computed) + 0.5 * static_cast<double>(rows + 1));
        return seen * 4.0 * static_cast<double>(width * q_heads);
    }
    std::string name() const {
        const char* const how =
            ranks == 1 ? "local" : (path == ctxpar::prefill_path::gather_q ? "gather_q" : "gather_kv");
        return "prefill/gqa" + part("q_heads", q_heads) + part("kv_heads", kv_heads) + part("context", computed) +
               part("rows", rows) + "/path:" + how + part("ranks", ranks) + part("threads", threads);
    }
};

constexpr std::int64_t stride = prefill_case::q_heads * prefill_case::width; // elements of a row of Q

// bf16 numbers that follow from a row's position. Those of Q are large, so that few keys have most of the weight.
void make_row(std::uint64_t stream, std::int64_t position, std::int64_t count, float factor, std::uint16_t* to) {
    for (std::int64_t i = 0; i < count; ++i)
        to[i] = bf16_bits(factor * random_number(stream, static_cast<std::uint64_t>(position * count + i)));
}

class prefill_rank {
public:
    using policy_type = ctxpar::policy<ctxpar::gqa<bf16, 128>, ctxpar::interleave<>, ctxpar::merge::dynamic>;
    using prefiller_type = ctxpar::prefiller<policy_type, ctxpar::cpu_backend, ctxpar::local_communicator>;

    prefill_rank(const prefill_case& what, const std::vector<std::int32_t>& ids, std::byte* pool,
                 ctxpar::local_communicator& kv, ctxpar::local_communicator& rows)
        : case_(what), backend_(ctxpar::cpu_options{what.threads}), pool_(pool),
          prefiller_({&kv, nullptr, nullptr, &rows}, shape(), {{}, {what.interleave}, {}}, backend_),
          memory_(prefiller_.workspace_bytes()), computed_(what.computed), tokens_(what.rows) {
        batch_.requests = 1;
        batch_.computed = ctxpar::index_of(&computed_);
        batch_.tokens = ctxpar::index_of(&tokens_);
        batch_.table = ctxpar::table_2d(ids.data(), 1, what.blocks(), what.block);
    }

    // Plans, and appends the new keys and values.
    void begin() {
        step_ = prefiller_.plan(batch_, memory_, {});
        const std::int64_t rows = step_.rows(), kv = case_.kv_heads * case_.width;
        std::vector<std::uint16_t> k(static_cast<std::size_t>(rows * kv)), v(k);
        q_.resize(static_cast<std::size_t>(rows * stride));
        out_.resize(q_.size());
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t position = std::max<std::int64_t>(0, step_.positions()[row]);
            make_row(21, position, kv, 1.0F, k.data() + row * kv);
            make_row(22, position, kv, 1.0F, v.data() + row * kv);
            make_row(23, position, stride, 4.0F, reinterpret_cast<std::uint16_t*>(q_.data()) + row * stride);
        }
        prefiller_.append(step_, keys(k, rows), keys(v, rows), cache(), {});
    }

    void attend() {
        const std::int64_t rows = step_.rows();
        prefiller_.attend(step_, ctxpar::dense_view<const bf16>(q_.data(), rows, case_.q_heads, case_.width), cache(),
                          ctxpar::dense_view(out_.data(), rows, case_.q_heads, case_.width), {}, {});
    }

    // The output of a new token, null where it is another rank's.
    const float* output(std::int64_t position, std::int64_t head) const {
        for (std::int64_t row = 0; row < step_.rows(); ++row)
            if (step_.positions()[row] == position && step_.arrays.batch_rows[row] >= 0)
                return out_.data() + row * stride + head * case_.width;
        return nullptr;
    }

    const ctxpar::cpu_backend& backend() const { return backend_; }

private:
    ctxpar::prefill_shape shape() const {
        ctxpar::prefill_shape shape;
        shape.sizes.pcp = shape.sizes.dcp = case_.ranks;
        shape.q_heads = case_.q_heads;
        shape.kv_heads = case_.kv_heads;
        shape.max_rows = case_.rows + 2; // more than the share of any rank
        shape.longest = case_.tokens();
        shape.pool_blocks = case_.blocks();
        shape.prefill_rows = case_.path;
        shape.context_rows = 8192;
        shape.output = ctxpar::scalar_type::f32;
        return shape;
    }
    ctxpar::head_view<const bf16> keys(const std::vector<std::uint16_t>& bits, std::int64_t rows) const {
        return ctxpar::dense_view(reinterpret_cast<const bf16*>(bits.data()), rows, case_.kv_heads, case_.width);
    }
    ctxpar::kv_view<bf16> cache() const {
        return ctxpar::stacked_kv(reinterpret_cast<bf16*>(pool_), case_.blocks(), case_.block, case_.kv_heads,
                                  case_.width, case_.width);
    }

    const prefill_case& case_;
    ctxpar::cpu_backend backend_;
    std::byte* pool_;
    prefiller_type prefiller_;
    ctxpar::host_workspace memory_;
    std::int64_t computed_, tokens_;
    ctxpar::prefill_batch batch_;
    ctxpar::prefill_step step_;
    std::vector<bf16> q_;
    std::vector<float> out_;
};

class sharded_prefill final : public prepared {
public:
    sharded_prefill(const prefill_case& what, const plan_of_run& run)
        : case_(what), cpus_(static_cast<int>(std::min<std::int64_t>(run.cpus, what.ranks * what.threads))),
          best_(run.best.of(cpus_)), ids_(scattered_ids(what.blocks())),
          base_(numbers(static_cast<std::size_t>(what.ranks * what.pool_bytes()))), rows_(static_cast<int>(what.ranks)),
          crew_(static_cast<int>(what.ranks)), ranks_(static_cast<std::size_t>(what.ranks)) {
        place_.base = base_;
        place_.ranks = what.ranks;
        place_.interleave = what.interleave;
        place_.block = what.block;
        place_.blocks = place_.request_blocks = what.blocks();
        place_.ids = ids_.data();
        place_.kv_heads = what.kv_heads;
        place_.query_width = place_.value_width = what.width;
        for (int rank = 0; rank < rows_.size(); ++rank)
            comms_.push_back(std::make_unique<ctxpar::local_communicator>(rows_.rank(rank)));
        crew_.run([&](int rank) {
            const auto at = static_cast<std::size_t>(rank);
            ranks_[at] = std::make_unique<prefill_rank>(case_, ids_, base_ + rank * case_.pool_bytes(),
                                                        crew_.comm(rank), *comms_[at]);
        });
    }

    std::string verify() override {
        for (std::int64_t p = case_.computed; p < case_.tokens(); ++p) // nonsense where new keys will be
            for (std::int64_t head = 0; head < case_.kv_heads; ++head)
                std::memset(place_.key(0, p, head), 0xff, static_cast<std::size_t>(case_.width) * 2);
        crew_.run([&](int rank) {
            ranks_[static_cast<std::size_t>(rank)]->begin();
            ranks_[static_cast<std::size_t>(rank)]->attend();
        });
        if (!new_tokens_are_there()) return "new tokens are not in the cache as they were appended";
        comparison compared;
        std::vector<std::uint16_t> row(static_cast<std::size_t>(stride));
        for (const std::int64_t position : {case_.computed, case_.computed + case_.rows / 3, case_.tokens() - 1})
            for (const std::int64_t head : {std::int64_t{0}, case_.q_heads / 2 + 1, case_.q_heads - 1}) {
                make_row(23, position, stride, 4.0F, row.data());
                std::vector<float> query;
                for (std::int64_t d = 0; d < case_.width; ++d)
                    query.push_back(bf16_value(row[static_cast<std::size_t>(head * case_.width + d)]));
                const answer expected = attend_again(place_, query, 0, head / (case_.q_heads / case_.kv_heads),
                                                     position + 1, 1.0 / std::sqrt(128.0), {});
                int found = 0;
                for (const auto& rank : ranks_) {
                    const float* const got = rank->output(position, head);
                    if (got == nullptr) continue;
                    ++found;
                    for (std::size_t d = 0; d < expected.output.size(); ++d)
                        compared.add(static_cast<double>(got[d]), expected.output[d]);
                }
                if (found != 1)
                    return "position " + std::to_string(position) + " is on " + std::to_string(found) + " ranks";
            }
        error_ = compared.relative_l2();
        const double bound = attention_bound(std::is_same_v<ctxpar::cpu_backend::p_type, float>, case_.tokens());
        if (error_ <= bound) return {};
        char text[120];
        std::snprintf(text, sizeof(text), "relative L2 error %.2g, at most %.2g is right", error_, bound);
        return text;
    }

    void run(std::int64_t) override {
        crew_.run([&](int rank) { ranks_[static_cast<std::size_t>(rank)]->attend(); });
    }

    void report(benchmark::State& state) override {
        rate(state, "GFLOP_per_s", case_.flops(), "of_compute", best_.flops);
        state.counters["cpus"] = cpus_;
        state.counters["error"] = error_;
        state.SetLabel(ctxpar::cpu::name_of(ranks_[0]->backend().instructions()));
    }

private:
    bool new_tokens_are_there() const {
        const std::int64_t width = case_.width, all = case_.kv_heads * width;
        const auto bytes = static_cast<std::size_t>(width) * 2;
        std::vector<std::uint16_t> k(static_cast<std::size_t>(all)), v(k);
        for (std::int64_t p = case_.computed; p < case_.tokens(); ++p) {
            make_row(21, p, all, 1.0F, k.data());
            make_row(22, p, all, 1.0F, v.data());
            for (std::int64_t head = 0; head < case_.kv_heads; ++head)
                if (std::memcmp(place_.key(0, p, head), k.data() + head * width, bytes) != 0 ||
                    std::memcmp(place_.value(0, p, head), v.data() + head * width, bytes) != 0)
                    return false;
        }
        return true;
    }

    prefill_case case_;
    int cpus_;
    ceiling best_;
    std::vector<std::int32_t> ids_;
    std::byte* base_;
    cache_place place_;
    ctxpar::local_world rows_; // a second group of the same ranks
    std::vector<std::unique_ptr<ctxpar::local_communicator>> comms_;
    crew crew_;
    std::vector<std::unique_ptr<prefill_rank>> ranks_;
    double error_ = 0.0;
};

void add_case(const plan_of_run& run, prefill_case what) {
    if (run.smoke) {
        what.computed = std::min<std::int64_t>(what.computed / 64, 256);
        what.rows = 65;
    }
    add(run, what.name(), static_cast<double>(what.ranks * what.pool_bytes()),
        [what, &run] { return std::make_unique<sharded_prefill>(what, run); });
}

} // namespace

void add_prefill(const plan_of_run& run) {
    prefill_case usual;
    usual.threads = run.cpus;
    for (const std::int64_t computed : {0, 8192, 32768}) {
        prefill_case what = usual;
        what.computed = computed;
        if (computed == 0) what.rows = 4096;
        add_case(run, what);
    }
    prefill_case one = usual;
    one.threads = 1;
    add_case(run, one);
    for (const ctxpar::prefill_path path : {ctxpar::prefill_path::gather_q, ctxpar::prefill_path::gather_kv})
        for (const std::int64_t ranks : {2, 4}) {
            prefill_case what = usual;
            what.ranks = ranks;
            what.threads = std::max<std::int64_t>(1, run.cpus / ranks);
            what.path = path;
            add_case(run, what);
        }
}

} // namespace bench
