// Deployments with prefills over the ranks of the suites, for the element types that are compiled here: the types are
// fields of the deployment. And the check that most tests make of one.
#pragma once

#include <doctest/doctest.h>

#include "../support/drawn.hpp"
#include "../support/prefill_ranks.hpp"

namespace ctxpar_test {

// Each in the file that compiles it.
prefill_result run_gqa_bf16(const prefill_deployment& d, const prefill_data& data);
prefill_result run_gqa_narrow(const prefill_deployment& d, const prefill_data& data);
prefill_result run_gqa_fp8(const prefill_deployment& d, const prefill_data& data);
prefill_result run_mla_bf16(const prefill_deployment& d, const prefill_data& data);
prefill_result run_mla_fp8(const prefill_deployment& d, const prefill_data& data);
prefill_result run_mla_f32(const prefill_deployment& d, const prefill_data& data);

inline prefill_result run_once(const prefill_deployment& d, const prefill_data& data) {
    if (d.is_mla && d.element == scalar_type::f32) return run_mla_f32(d, data);
    if (d.is_mla) return d.kv_element == scalar_type::e4m3 ? run_mla_fp8(d, data) : run_mla_bf16(d, data);
    if (d.partials == partial::output) return run_gqa_narrow(d, data);
    if (d.kv_element == scalar_type::e4m3) return run_gqa_fp8(d, data);
    return run_gqa_bf16(d, data);
}

// The same bits on every rank.
inline bool same_bits(const prefill_result& a, const prefill_result& b) {
    for (std::size_t rank = 0; rank < a.outputs().size(); ++rank) {
        if (!same_bits(a.outputs()[rank].out, b.outputs()[rank].out)) return false;
        if (!same_bits(a.outputs()[rank].lse, b.outputs()[rank].lse)) return false;
    }
    return a.outputs().size() == b.outputs().size();
}

// Where the ranks have a twin, over both, which must give the same bits.
template <class Ranks = suite_ranks>
prefill_result run(const prefill_deployment& d, const prefill_data& data) {
    if constexpr (has_twin<Ranks>) {
        auto [result, are_same] = Ranks::twice([&] { return run_once(d, data); },
                                               [](const auto& a, const auto& b) { return same_bits(a, b); });
        INFO(describe(d));
        CHECK(are_same);
        return std::move(result);
    } else {
        return run_once(d, data);
    }
}

// The law of the library: what the ranks return together is what one unsharded attention returns.
inline void check_exact(const prefill_deployment& d, const prefill_data& data, const prefill_result& got) {
    const distance far = distance_of(d, data, got);
    INFO(describe(d));
    CHECK(got.problem() == "");
    CHECK(far.out <= 1.0);
    CHECK(far.lse <= 1.0);
}

inline void check_always(const prefill_deployment& d) {
    const prefill_data data = plant(d);
    check_exact(d, data, run(d, data));
}

// Of a deployment of a suite, where it is drawn.
inline void check_exact(const prefill_deployment& d) {
    if (is_drawn(d)) check_always(d);
}

// The same for both ways in which rows meet the keys of other ranks, and for the one that sends fewer bytes.
inline void each_path(prefill_deployment d) {
    for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv, prefill_path::automatic}) {
        d.prefill_rows = path;
        ++d.seed;
        check_exact(d);
    }
}

} // namespace ctxpar_test
