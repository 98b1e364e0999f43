// Finds out what an attention really writes, before it is trusted: the base and layout of its LSE, its outputs, and
// whether rows of one request see what they should.
//
// An LSE that is in another base or order than stated gives plausible, wrong results; no comparison between ranks shows
// it. The probe runs a tiny problem whose answers are known: two rows (one sees 1 key, the other 2), three heads with
// different scores.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/attention/rows.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/paged.hpp>

namespace ctxpar::inline v0_1 {

enum class probed_base { natural, binary, neither };

constexpr const char* name_of(probed_base base) {
    return base == probed_base::natural ? "natural" : (base == probed_base::binary ? "binary" : "neither base");
}

// Which base gives `value` as the LSE of scores whose natural LSE is `natural`; log2 e apart, so no tie is possible.
inline probed_base base_of_lse(float value, double natural, double tolerance = 1e-2) {
    if (std::fabs(value - natural) <= tolerance) return probed_base::natural;
    if (std::fabs(value - natural * 1.4426950408889634) <= tolerance) return probed_base::binary;
    return probed_base::neither;
}

struct attention_report {
    probed_base base = probed_base::neither; // of the last row's last head, which no layout of the LSE moves
    bool lse_in_place = false;               // every (row, head) has its own LSE, in the stated base
    bool outputs_right = false;              // every output is the softmax mean, to 2%
};

namespace detail {

// Natural LSE of scores a (key 0) and b (key 1) of a row that sees one or both.
inline double probe_lse(double a, double b, std::int64_t row) {
    return row == 0 ? a : std::log(std::exp(a) + std::exp(b));
}

} // namespace detail

// Runs `tested`.attend on the probe problem. Attention is the policy of the decoder it will serve; `tested` must work
// on host memory. Local, allocates; not for a step.
template <class Attention, class Backend>
attention_report probe_attention(Backend& tested, const Attention& attention, typename Backend::stream_type stream) {
    static_assert(Backend::host_memory, "ctxpar::probe_attention: the backend must work on host memory");
    using element = typename Attention::element;
    using kv_element = typename Attention::kv_element;
    constexpr std::int64_t rows = 2;
    constexpr std::int64_t heads = 3;
    constexpr std::int64_t keys = 2;
    constexpr lse_base base = Backend::attend_lse_base;
    const std::int64_t dq = attention.query_width();
    const std::int64_t dv = attention.value_width();

    // Key 0 is zero, key 1 has one component of 1: the scores of head h are 0 and h + 1. In MLA that component is not
    // one of the values where the rows are wider than the values.
    std::vector<element> q(static_cast<std::size_t>(rows * heads * dq));
    std::vector<kv_element> k(static_cast<std::size_t>(keys * dq));
    std::vector<kv_element> v(static_cast<std::size_t>(keys * dv));
    k[static_cast<std::size_t>(2 * dq - 1)] = kv_element(1.0F);
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t head = 0; head < heads; ++head)
            q[static_cast<std::size_t>((row * heads + head + 1) * dq - 1)] = element(static_cast<float>(head + 1));
    kv_element* const values = Attention::values_in_keys ? k.data() : v.data();
    values[0] = kv_element(1.0F);                                                    // value of key 0
    values[Attention::values_in_keys ? dq : dv] = kv_element(dq == 1 ? 1.0F : 2.0F); // value of key 1

    const std::int64_t block = 0;
    visible_keys seen[rows];
    for (std::int64_t row = 0; row < rows; ++row) seen[row].hi = seen[row].tail = row + 1;
    segment runs[2];
    runs[0] = {0, 0, rows, 0, keys, min_split_tokens, 0};
    runs[1].first_row = rows;
    std::int64_t row_lengths[rows] = {1, 2};
    std::int64_t row_requests[rows] = {0, 0};
    std::int64_t local_length = keys;

    std::vector<float> out(static_cast<std::size_t>(rows * heads * dv), std::nanf(""));
    std::vector<lse<base>> lses(static_cast<std::size_t>(rows * heads), lse<base>{std::nanf("")});
    std::vector<float> scratch(static_cast<std::size_t>(tested.attend_thread_floats(dq, dv) * tested.threads()) + 1);

    attend_args<element, kv_element, float, base> args;
    args.q = dense_view(static_cast<const element*>(q.data()), rows, heads, dq);
    args.cache = Attention::values_in_keys ? kv_view<const kv_element>(latent_kv(k.data(), 1, keys, dv, dq - dv))
                                           : kv_view<const kv_element>(nhd_kv(k.data(), v.data(), 1, keys, 1, dq, dv));
    args.plan.arrays.rows = seen;
    args.plan.arrays.segments = runs;
    args.plan.arrays.row_lengths = row_lengths;
    args.plan.arrays.row_requests = row_requests;
    args.plan.arrays.local_lengths = &local_length;
    args.plan.table = table_2d(&block, 1, 1, keys);
    args.plan.rows = rows;
    args.plan.requests = 1;
    args.plan.segments = 2;
    args.plan.heads = heads;
    args.plan.kv_heads = 1;
    args.plan.query_width = dq;
    args.plan.value_width = dv;
    args.out = dense_view(out.data(), rows, heads, dv);
    args.lse_out = dense_view(lses.data(), rows, heads, 1);
    args.score.scale = 1.0F;
    args.scratch.threads = scratch.data();
    args.scratch.thread_floats = tested.attend_thread_floats(dq, dv);
    std::vector<std::byte> memory;
    if constexpr (requires { tested.plan_bytes(rows, rows, heads); }) {
        memory.resize(tested.plan_bytes(rows, 1, heads) + 1);
        args.plan.memory = memory.data();
        tested.prepare(args.plan, stream);
    }
    tested.attend(args, stream);

    attention_report report;
    report.lse_in_place = report.outputs_right = true;
    report.base = base_of_lse(lses.back().value, detail::probe_lse(0.0, static_cast<double>(heads), 1));
    const double factor = base == lse_base::natural ? 1.0 : 1.4426950408889634;
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t head = 0; head < heads; ++head) {
            const double score = static_cast<double>(head + 1);
            const double wanted = detail::probe_lse(0.0, score, row);
            const float got = lses[static_cast<std::size_t>(row * heads + head)].value;
            if (!(std::fabs(got - wanted * factor) <= 1e-2)) report.lse_in_place = false;
            const double second = row == 0 ? 0.0 : 1.0 / (1.0 + std::exp(-score));
            const double mean = (1.0 - second) + second * (dq == 1 ? 1.0 : 2.0);
            const float value = out[static_cast<std::size_t>((row * heads + head) * dv)];
            if (!(std::fabs(value - mean) <= 2e-2 * mean)) report.outputs_right = false;
        }
    }
    return report;
}

// Probes and refuses an attention that does not keep its word: config_error "attention", saying what was found.
template <class Attention, class Backend>
void check_attention(Backend& tested, const Attention& attention, typename Backend::stream_type stream) {
    const attention_report report = probe_attention(tested, attention, stream);
    const probed_base stated =
        Backend::attend_lse_base == lse_base::natural ? probed_base::natural : probed_base::binary;
    require(report.base == stated, "attention", "the attention states a ", name_of(stated),
            " LSE; the LSE it wrote fits ", name_of(report.base));
    require(report.lse_in_place, "attention",
            "the attention did not write the LSE of every row and head where the view says (is it head-major, or does "
            "it give all rows of a request the same length?)");
    require(report.outputs_right, "attention", "the attention's outputs are not the softmax means of the probe");
}

} // namespace ctxpar::inline v0_1
