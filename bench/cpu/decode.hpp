// Decode over local ranks, timed: the whole of decoder::decode, or a whole step told apart into its parts.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>

#include "crew.hpp"
#include "decode_case.hpp"
#include "machine.hpp"
#include "timed_backend.hpp"

namespace bench {

// One rank: its decoder, its step, its inputs and its output.
template <class Attention>
class decode_rank {
public:
    using policy_type = ctxpar::policy<Attention, ctxpar::interleave<>, ctxpar::merge::dynamic>;
    using decoder_type = ctxpar::decoder<policy_type, timed_backend, ctxpar::local_communicator>;
    using element = typename Attention::element;

    decode_rank(const decode_case& what, const decode_data& data, ctxpar::local_communicator& comm)
        : case_(what), data_(data), rank_(comm.rank()), backend_(ctxpar::cpu_options{what.threads}),
          decoder_({&comm}, shape(), {{}, {what.interleave}, {}}, backend_), memory_(decoder_.workspace_bytes()),
          lengths_(static_cast<std::size_t>(what.batch), what.tokens) {
        batch_.requests = what.batch;
        batch_.lengths = ctxpar::index_of(lengths_.data());
        batch_.table = ctxpar::table_2d(data.ids().data(), what.batch, what.blocks_of_request(), what.block);
        const std::int64_t heads = decoder_.query_heads();
        first_head_ = what.latent ? rank_ * heads : 0;
        copy_heads(data.queries(), what.q_heads, first_head_, heads, what.query_width(), queries_);
        out_.resize(static_cast<std::size_t>(what.batch * decoder_.output_heads() * what.value_width()));
    }

    void plan() { step_ = decoder_.plan(batch_, memory_, {}); }

    // MLA: the new row's latent is its value, so one row holds both parts.
    void append(std::int64_t iteration) {
        const std::int64_t heads = case_.kv_heads, wide = case_.query_width();
        const auto* const keys = reinterpret_cast<const element*>(data_.new_keys().data());
        if (case_.latent) {
            const std::int64_t latent = case_.value_width();
            decoder_.append(step_, rows(keys, latent, wide), rows(keys + latent, wide - latent, wide), cache(iteration),
                            {});
        } else {
            const auto* const values = reinterpret_cast<const element*>(data_.new_values().data());
            decoder_.append(step_, rows(keys, wide, heads * wide), rows(values, case_.value_width(), heads * wide),
                            cache(iteration), {});
        }
    }

    void decode(std::int64_t iteration) {
        decoder_.decode(step_,
                        ctxpar::dense_view<const element>(queries_.data(), case_.batch, decoder_.query_heads(),
                                                          case_.query_width()),
                        cache(iteration),
                        ctxpar::dense_view(out_.data(), case_.batch, decoder_.output_heads(), case_.value_width()), {},
                        {});
    }

    // The output of a head of the model, null where this rank does not have it.
    const float* output(std::int64_t request, std::int64_t head) const {
        const std::int64_t local = head - first_head_;
        if (local < 0 || local >= decoder_.output_heads()) return nullptr;
        return out_.data() + (request * decoder_.output_heads() + local) * case_.value_width();
    }

    timed_backend& backend() { return backend_; }

private:
    ctxpar::decode_shape shape() const {
        ctxpar::decode_shape shape;
        (case_.latent ? shape.sizes.tp : shape.sizes.pcp) = case_.ranks; // ranks that hold all KV heads
        shape.sizes.dcp = case_.ranks;
        shape.q_heads = case_.q_heads;
        shape.kv_heads = case_.kv_heads;
        shape.max_requests = shape.max_rows = case_.batch;
        shape.longest = case_.tokens;
        shape.pool_blocks = case_.batch * case_.blocks_of_request();
        shape.output = ctxpar::scalar_type::f32;
        return shape;
    }

    ctxpar::kv_view<element> cache(std::int64_t iteration) const {
        auto* const base = reinterpret_cast<element*>(data_.pool(iteration, rank_));
        const std::int64_t blocks = case_.batch * case_.blocks_of_request();
        if (case_.latent)
            return ctxpar::latent_kv(base, blocks, case_.block, case_.value_width(),
                                     case_.query_width() - case_.value_width());
        return ctxpar::stacked_kv(base, blocks, case_.block, case_.kv_heads, case_.query_width(), case_.value_width(),
                                  case_.by_head ? ctxpar::page_order::hnd : ctxpar::page_order::nhd);
    }

    ctxpar::head_view<const element> rows(const element* base, std::int64_t width, std::int64_t pitch) const {
        const std::int64_t heads = case_.kv_heads;
        return {base, case_.batch, heads, width, heads, 0, pitch, pitch / heads};
    }

    static void copy_heads(const std::vector<std::uint16_t>& from, std::int64_t heads, std::int64_t first,
                           std::int64_t count, std::int64_t width, std::vector<element>& to) {
        const std::int64_t rows = static_cast<std::int64_t>(from.size()) / (heads * width);
        to.resize(static_cast<std::size_t>(rows * count * width));
        for (std::int64_t row = 0; row < rows; ++row)
            std::memcpy(static_cast<void*>(to.data() + row * count * width),
                        from.data() + (row * heads + first) * width, static_cast<std::size_t>(count * width) * 2);
    }

    const decode_case& case_;
    const decode_data& data_;
    std::int64_t rank_;
    timed_backend backend_;
    decoder_type decoder_;
    ctxpar::host_workspace memory_;
    std::vector<std::int64_t> lengths_;
    ctxpar::decode_batch batch_;
    ctxpar::decode_step step_;
    std::int64_t first_head_ = 0;
    std::vector<element> queries_;
    std::vector<float> out_;
};

// All ranks of a case.
template <class Attention>
class sharded_decode final : public prepared {
public:
    sharded_decode(const decode_case& what, const plan_of_run& run)
        : case_(what), cpus_(run.cpus), best_(run.best), data_(case_, run.smoke), crew_(static_cast<int>(what.ranks)),
          ranks_(static_cast<std::size_t>(what.ranks)) {
        data_.plant();
        crew_.run([&](int rank) {
            ranks_[static_cast<std::size_t>(rank)] =
                std::make_unique<decode_rank<Attention>>(case_, data_, crew_.comm(rank));
        });
    }

    std::string verify() override {
        crew_.run([&](int rank) {
            decode_rank<Attention>& own = of(rank);
            own.plan();
            own.append(0);
            own.decode(0);
        });
        const auto output = [&](std::int64_t request, std::int64_t head) {
            std::vector<const float*> all;
            for (const auto& rank : ranks_)
                if (rank->output(request, head) != nullptr) all.push_back(rank->output(request, head));
            return all;
        };
        return data_.compare(output, std::is_same_v<timed_backend::p_type, float>, error_);
    }

    void run(std::int64_t iteration) override {
        if (iteration == 0) {
            spent_ = {};
            of(0).backend().spent() = {};
        }
        crew_.run([&](int rank) {
            if (!case_.whole_step) return of(rank).decode(iteration);
            timed_step(rank, iteration);
        });
    }

    void report(benchmark::State& state) override {
        const ceiling& best = best_.of(case_.busy(cpus_));
        rate(state, "read_GB_per_s", case_.read_bytes(), "of_read", best.read_bytes);
        rate(state, "GFLOP_per_s", case_.flops(), "of_compute", best.flops);
        state.counters["cpus"] = case_.busy(cpus_);
        state.counters["error"] = error_;
        state.SetLabel(ctxpar::cpu::name_of(of(0).backend().instructions()));
        if (!case_.whole_step) return;
        const auto count = [&](const char* name, double seconds) {
            state.counters[name] = seconds * 1e6 / static_cast<double>(state.iterations());
        };
        const part_seconds& own = of(0).backend().spent();
        count("plan_us", spent_.plan);
        count("append_us", spent_.append);
        count("attend_us", own.attend);
        count("merge_us", own.merge);
        count("exchange_us", spent_.decode - own.attend - own.merge);
    }

private:
    struct step_seconds {
        double plan = 0.0, append = 0.0, decode = 0.0;
    };

    decode_rank<Attention>& of(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

    void timed_step(int rank, std::int64_t iteration) {
        decode_rank<Attention>& own = of(rank);
        const double begin = seconds_now();
        own.plan();
        const double planned = seconds_now();
        own.append(iteration);
        const double appended = seconds_now();
        own.decode(iteration);
        if (rank != 0) return;
        spent_.plan += planned - begin;
        spent_.append += appended - planned;
        spent_.decode += seconds_now() - appended;
    }

    decode_case case_;
    int cpus_;
    ceilings best_;
    decode_data data_;
    crew crew_;
    std::vector<std::unique_ptr<decode_rank<Attention>>> ranks_;
    step_seconds spent_;
    double error_ = 0.0;
};

// Registers a case, with fewer tokens where the run is small.
template <class Attention>
void add_decode(const plan_of_run& run, decode_case what) {
    what.tokens = run.tokens(what.tokens);
    add(run, what.name(), static_cast<double>(what.region_bytes()),
        [what, &run] { return std::make_unique<sharded_decode<Attention>>(what, run); });
}

} // namespace bench
