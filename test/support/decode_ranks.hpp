// Runs a deployment: all ranks, each with its own decoder, one step from an empty cache to the output.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "decode_rank.hpp"

namespace ctxpar_test {

// Whether ranks are run over two kinds, the second to compare with.
template <class Ranks>
concept has_twin = requires {
    Ranks::takes(0);
};

// What one rank has to say afterwards.
struct rank_report {
    collective_schedule schedule;
    exchange_bytes exchange;
    std::uint64_t bytes_sent = 0;  // by all of its communicators in the decode call
    std::uint64_t other_bytes = 0; // by construction, plan and append
    std::uint64_t launches = 0;    // operations of the decode call
    std::size_t workspace_bytes = 0;
    step_status status;
    std::string problem; // something was written that should not have been
};

struct run_result {
    std::vector<rank_output> outputs;
    std::vector<rank_report> reports;

    // The first problem of any rank.
    std::string problem() const {
        for (const rank_report& report : reports)
            if (!report.problem.empty()) return report.problem;
        return "";
    }
    std::uint64_t number_of_values() const {
        std::uint64_t count = 0;
        for (const rank_output& output : outputs) count += output.out.size() + output.lse.size();
        return count;
    }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The policy of a deployment, from values where its parts are dynamic.
template <class Policy>
Policy policy_for(const deployment& d) {
    Policy chosen;
    using attention = typename Policy::attention_type;
    if constexpr (std::is_constructible_v<attention, std::int64_t, std::int64_t>) {
        chosen.attention = attention::values_in_keys ? attention(d.value_width, d.key_width - d.value_width)
                                                     : attention(d.key_width, d.value_width);
    }
    if constexpr (std::is_same_v<typename Policy::interleave_type, interleave<>>) chosen.interleaving = {d.interleave};
    if constexpr (std::is_same_v<typename Policy::merge_type, merge::dynamic>) chosen.merging = {d.merge};
    return chosen;
}

// An output buffer that is NaN at first, with gaps between vectors and rows where the deployment says so.
template <class T>
class output_buffer {
public:
    output_buffer(std::int64_t rows, std::int64_t heads, std::int64_t width, bool strided, bool head_major)
        : strided_(strided) {
        const std::int64_t gap = strided ? 5 : 0;
        view_ = dense_view<T>(nullptr, rows, heads, width);
        view_.head_stride = width + gap;
        view_.row_stride = heads * view_.head_stride + gap;
        if (strided && head_major) {
            view_.row_stride = width + gap;
            view_.head_stride = rows * view_.row_stride + gap;
        }
        memory_.resize(static_cast<std::size_t>(rows * heads * (width + gap) + (rows + heads) * gap + 1));
        std::memset(static_cast<void*>(memory_.data()), 0xff, memory_.size() * sizeof(T));
        view_.base = memory_.data();
    }

    const head_view<T>& view() const { return view_; }

    // [rows][heads][width] as numbers.
    template <class Number>
    std::vector<float> values(const Number& number) const {
        std::vector<float> all;
        for (std::int64_t row = 0; row < view_.rows; ++row)
            for (std::int64_t head = 0; head < view_.heads; ++head)
                for (std::int64_t x = 0; x < view_.width; ++x) all.push_back(number(view_.at(row, head)[x]));
        return all;
    }

    // Whether no gap was written.
    bool gaps_hold() const {
        std::vector<bool> used(memory_.size(), false);
        for (std::int64_t row = 0; row < view_.rows; ++row)
            for (std::int64_t head = 0; head < view_.heads; ++head)
                for (std::int64_t x = 0; x < view_.width; ++x)
                    used[static_cast<std::size_t>(view_.offset(row, head) + x)] = true;
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            const auto* bytes = reinterpret_cast<const unsigned char*>(&memory_[i]);
            for (std::size_t byte = 0; byte < sizeof(T); ++byte)
                if (!used[i] && bytes[byte] != 0xff) return false;
        }
        return true;
    }

private:
    bool strided_;
    std::vector<T> memory_;
    head_view<T> view_;
};

// Decodes a planned step on one rank.
template <class Out, lse_base Base, class Rank, class Maps = head_maps<>>
void decode_into(const deployment& d, Rank& rank, const decode_step& step, rank_output& output, rank_report& report,
                 const Maps& maps = {}) {
    const std::int64_t rows = d.rows() + d.pad_rows, heads = rank.facts().output.count;
    output_buffer<Out> out(rows, heads, d.output_width(), d.strided_views, false);
    output_buffer<lse<Base>> lses(d.merged_lse ? rows : 0, heads, 1, d.strided_views, true);
    const head_view<lse<Base>> nothing;
    report.other_bytes = rank.communicators().bytes_sent();
    const std::uint64_t before = rank.used().used_backend().launches();
    rank.decode(step, out.view(), d.merged_lse ? lses.view() : nothing, maps);
    rank.wait();
    report.launches = rank.used().used_backend().launches() - before;
    report.bytes_sent = rank.communicators().bytes_sent() - report.other_bytes;
    output.out = out.values([](Out value) { return number_of(value); });
    output.lse = lses.values([](lse<Base> value) { return value.value; });
    if (!out.gaps_hold() || !lses.gaps_hold()) report.problem = "something was written between the outputs";
    if (!rank.scratch().guards_hold()) report.problem = "something was written behind the workspace";
}

// All ranks, of the kind `Ranks`. make(rank number) gives the backend of a rank; before_decode(rank, step) is called on
// each between append and decode; maps_of(rank) gives the maps of its heads.
template <class Policy, class Out, lse_base Base, class Ranks = suite_ranks, class Make, class Before, class MapsOf>
run_result run_ranks(const deployment& d, const planted_data& data, const Policy& policy, const Make& make,
                     const Before& before_decode, const MapsOf& maps_of) {
    using backend_type = decltype(make(0));
    run_result result;
    result.outputs.resize(static_cast<std::size_t>(d.world()));
    result.reports.resize(static_cast<std::size_t>(d.world()));
    Ranks::run(d, [&](typename Ranks::communicator& world) {
        const auto number = static_cast<std::size_t>(world.rank());
        rank_report& report = result.reports[number];
        decode_rank<Policy, backend_type, Ranks> rank(world, d, data, policy, make(world.rank()));
        rank.fill();
        const decode_step step = rank.plan();
        rank.append(step);
        before_decode(rank, step);
        decode_into<Out, Base>(d, rank, step, result.outputs[number], report, maps_of(rank));
        report.schedule = step.schedule;
        report.exchange = exchange(policy.merging, step.shape);
        report.workspace_bytes = rank.used().workspace_bytes();
        report.status = rank.used().check(step);
    });
    if constexpr (has_twin<Ranks>) {
        Ranks::exchange_results(result.outputs, [](rank_output& output, const auto& send) {
            send(output.out);
            send(output.lse);
        });
        Ranks::exchange_results(result.reports, [](rank_report& report, const auto& send) {
            send(report.bytes_sent);
            send(report.problem);
        });
        Ranks::count_run(result.number_of_values());
    }
    return result;
}

template <class Policy, class Out, lse_base Base, class Ranks = suite_ranks, class Make, class Before>
run_result run_ranks(const deployment& d, const planted_data& data, const Policy& policy, const Make& make,
                     const Before& before_decode) {
    return run_ranks<Policy, Out, Base, Ranks>(d, data, policy, make, before_decode,
                                               [](auto&) { return head_maps<>{}; });
}

template <class Policy, class Out = float, lse_base Base = lse_base::natural, class Ranks = suite_ranks, class Make>
run_result run_ranks(const deployment& d, const planted_data& data, const Policy& policy, const Make& make) {
    return run_ranks<Policy, Out, Base, Ranks>(d, data, policy, make, [](auto&, const decode_step&) {});
}

// The plain backend of every rank.
inline auto plain_backends(const deployment& d) {
    return suite_ranks::backends(d);
}

} // namespace ctxpar_test
